// Entities: types, those of one type that are in memory, and one with its state.

import { actButton } from "../acts.js";
import { address } from "../api.js";
import { now, page } from "../app.js";
import { h } from "../dom.js";
import { bytes, count, duration, json } from "../format.js";
import { use } from "../resource.js";
import { go, link } from "../router.js";
import { compare, rows } from "../store.js";
import { acts, asked, block, empty, loading, name, runner, section, state, table, terms, words } from "../ui.js";
import { quoted } from "../filter.js";

export default { id: "entities", title: "Entities", pages: ["overview", "entities"], view };

function view({ params }) {
  const seen = page("entities");
  if (!seen) return loading("entities");
  const all = rows(seen, (row) => row.type);
  return h(
    "div",
    { class: "grid" },
    params.type !== undefined && params.id !== undefined && detail(params),
    section("Entity types", { class: "wide" }, table({
      label: "entity types",
      rows: all,
      key: (row) => row.type,
      selected: params.type,
      columns: [
        { title: "Type", cell: (row) => h("a", { class: "primary", href: link("entities", { type: row.type }) }, name(row.type, 60)) },
        { title: "In memory", class: "number", cell: (row) => [count(row.resident), !row.is_complete && h("span", { class: "dim" }, " at least: not all runners replied")] },
        { title: "Where", class: "grow", cell: (row) => Object.entries(row.runners).map(([called, held]) => h("span", { key: called, class: "spot" }, runner(called), ` ${count(held)} `)) },
      ],
      empty: empty("No entities are in memory. Define a type, and call one:", "@cluster.entity\nclass Account(Entity[Balance]): …\n\nawait cluster.ref(Account, \"alice\").balance()"),
    })),
    params.type !== undefined && section("In memory", { class: "wide" }, list(params)),
  );
}

function list(params) {
  const resource = use(address("entities", { type: params.type, limit: 100 }), String(Math.floor(now() / 5_000)));
  const open = (event) => {
    event.preventDefault();
    const id = new FormData(event.target).get("id");
    if (id) go("entities", { type: params.type, id });
  };
  return [
    h("form", { class: "tools", onsubmit: open }, h("label", { class: "choice" }, h("span", null, "open by id"), h("input", { name: "id", autocomplete: "off", spellcheck: "false", "data-filter": "" })), h("button", { type: "submit" }, "Show")),
    asked(resource, "entities", (data) => [
      table({
        label: `entities of ${params.type}`,
        rows: [...(data.entities ?? [])].sort((one, other) => other.waiting - one.waiting || other.running - one.running || compare(one.id, other.id)),
        key: (row) => row.id,
        selected: params.id,
        hold: true,
        columns: [
          { title: "Id", cell: (row) => h("a", { class: "primary", href: link("entities", { type: params.type, id: row.id }) }, name(row.id, 80)) },
          { title: "Shard", cell: (row) => h("a", { href: link("shards", { shard: row.shard }) }, name(row.shard)) },
          { title: "Runner", cell: (row) => runner(row.runner) },
          { title: "Waiting", class: "number", cell: (row) => count(row.waiting) },
          { title: "Running", class: "number", cell: (row) => count(row.running) },
        ],
        empty: h("p", { class: "dim" }, "None of this type is in memory: an entity is activated by its first call."),
      }),
      data.more && h("p", { class: "dim" }, "There are more; open others by their id."),
    ]),
  ];
}

function isKnown(value) {
  return value !== null && value !== undefined;
}

function detail(params) {
  const resource = use(address("entity", { type: params.type, id: params.id }), String(Math.floor(now() / 2_000)));
  const title = `${params.type}/${params.id}`;
  return section(title.length > 80 ? "Entity" : title, { class: "wide detail", id: "detail", aside: h("a", { href: link("entities", { type: params.type }) }, "all of this type") }, asked(resource, "the entity", (data) => [
    title.length > 80 && h("p", null, words(title)),
    terms([
      ["in memory", data.known === false ? state("off", "no") : data.runner ? state("good", "yes") : null],
      ["shard", data.shard && h("a", { href: link("shards", { shard: data.shard }) }, name(data.shard))],
      ["runner", data.runner && runner(data.runner)],
      ["epoch", isKnown(data.epoch) ? count(data.epoch) : null],
      ["owner of the shard", data.owner && data.owner !== data.runner ? runner(data.owner) : null],
      ["mailbox", isKnown(data.waiting) ? [`${count(data.waiting)}${isKnown(data.mailbox) ? ` of ${count(data.mailbox)}` : ""} waiting `, isKnown(data.mailbox) && h("meter", { min: "0", max: data.mailbox, value: data.waiting, "aria-label": "mailbox" })] : null],
      ["running", isKnown(data.running) ? `${count(data.running)}${data.method ? `: ${data.method}` : ""}${isKnown(data.running_s) && data.running ? ` for ${duration(data.running_s)}` : ""}` : null],
      ["idle for", isKnown(data.idle_s) ? duration(data.idle_s) : null],
      ["leaves memory in", isKnown(data.leaves_s) ? duration(data.leaves_s) : null],
      ["messages", h("a", { href: link("messages", { filter: `type:${quoted(title)}` }) }, data.messages ? `${count(data.messages.pending)} pending, ${count(data.messages.dead)} dead` : "of this entity")],
    ]),
    acts(actButton("Reset …", "Reset " + title.slice(0, 60), "reset", { type: params.type, id: params.id }, { danger: true })),
    h("h3", null, "Saved state"),
    data.state
      ? [
          h("p", { class: "dim" }, `version ${data.state.version} · ${bytes(data.state.bytes)}`),
          data.state.value === undefined ? h("p", { class: "dim" }, "The value is hidden by a setting.") : block(json(data.state.value), "state"),
        ]
      : h("p", { class: "dim" }, "It has no saved state."),
  ]));
}
