// Activity: who did what, when and from where.

import { address } from "../api.js";
import { app, now } from "../app.js";
import { h } from "../dom.js";
import { use } from "../resource.js";
import { link } from "../router.js";
import { asked, name, section, table, time, words } from "../ui.js";

export default { id: "activity", title: "Activity", pages: ["overview", "runners"], view };

function view({ params }) {
  const resource = use(address("activity", { before: params.before, limit: 50 }), String(Math.floor(now() / 5_000)));
  return h(
    "div",
    { class: "grid" },
    section("Acts", { class: "wide" }, asked(resource, "activity", (data) => [
      table({
        label: "acts",
        rows: data.rows,
        key: (row) => row.id,
        columns: [
          { title: "When", cell: (row) => time(row.at) },
          { title: "Who", cell: (row) => name(row.who ?? "unknown", 60) },
          { title: "From", cell: (row) => name(row.from ?? "unknown", 60) },
          { title: "Act", cell: (row) => row.act },
          { title: "What", class: "grow", cell: (row) => h("span", { class: "clip" }, words(typeof row.what === "string" ? row.what : JSON.stringify(row.what ?? ""))) },
          { title: "Result", cell: (row) => words(row.result ?? "") },
        ],
        empty: h("p", { class: "dim" }, "Nobody has done anything here yet. What is done on this page is written down: who, what, when, from where."),
      }),
      data.more && data.rows.length > 0 && h("p", null, h("a", { href: link("activity", { before: data.rows.at(-1).id }) }, "older ones")),
    ])),
    section("Seen since this page was opened", { class: "wide" }, app.events.length
      ? h("ol", { class: "events" }, app.events.slice(0, 100).map((event, index) => h("li", { key: app.events.length - index }, time(event.at), " ", h("a", { href: link(event.page, event.params) }, name(event.text)))))
      : h("p", { class: "dim" }, "Nothing moved, joined or left.")),
  );
}
