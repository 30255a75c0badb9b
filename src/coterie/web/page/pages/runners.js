// Runners: what each holds, and how it does.

import { actButton } from "../acts.js";
import { app, now, page } from "../app.js";
import { sparkline } from "../charts.js";
import { h } from "../dom.js";
import { bytes, count, duration, percent, rate } from "../format.js";
import { link } from "../router.js";
import { rows } from "../store.js";
import { acts, empty, loading, name, runner, section, state, table, terms, time, words } from "../ui.js";

export default { id: "runners", title: "Runners", pages: ["overview", "runners"], view };

const KINDS = { ready: "good", starting: "busy", draining: "busy", "no answer": "bad" };

function stateOf(row) {
  return [state(KINDS[row.state] ?? "off", row.state), row.missing && h("span", { class: "dim" }, " ", words(row.missing))];
}

function view({ params }) {
  const seen = page("runners");
  if (!seen) return loading("runners");
  const all = rows(seen, (row) => row.name);
  const chosen = all.find((row) => (params.id === undefined ? row.name === params.name : row.id === params.id));
  return h(
    "div",
    { class: "grid" },
    chosen && detail(chosen),
    !chosen && (params.id ?? params.name) !== undefined && section("Runner", { class: "wide detail", id: "detail", aside: close() }, h("p", null, state("off", "gone "), name(params.name ?? params.id), " is no runner of this cluster any more.")),
    section("Runners", { class: "wide" }, table({
      label: "runners",
      rows: all,
      key: (row) => row.id,
      selected: chosen?.id,
      columns: [
        { title: "Runner", cell: (row) => h("a", { class: "primary", href: link("runners", { name: row.name }) }, runner(row.name, { plain: true })) },
        { title: "State", cell: stateOf },
        { title: "Shards", class: "number", cell: (row) => count(row.shards) },
        { title: "Entities", class: "number", cell: (row) => known(row, count(row.entities)) },
        { title: "Calls", class: "number", cell: (row) => [known(row, rate(row.calls_s)), sparkline(app.runnerSamples.get(row.id)?.calls ?? [], `calls of ${row.name} in the last minute`)] },
        { title: "p99", class: "number extra", cell: (row) => known(row, duration(row.p99_s)) },
        { title: "Lag", class: "number", cell: (row) => known(row, duration(row.loop_lag_s)) },
        { title: "CPU", class: "number", cell: (row) => known(row, percent(row.cpu)) },
        { title: "Memory", class: "number extra", cell: (row) => known(row, bytes(row.memory_bytes)) },
        { title: "Up", class: "number", cell: (row) => duration((now() - Date.parse(row.started_at)) / 1000) },
        { title: "Version", class: "extra", cell: (row) => known(row, row.version) },
        { title: "Leads", cell: (row) => row.leads.map((each) => h("a", { key: each, class: "spot", href: link("singletons", { name: each }) }, "★ ", name(each, 40))) },
      ],
      empty: empty("No runner is in the cluster. Start one:", "coterie run app.py"),
    })),
  );
}

function close() {
  return h("a", { href: link("runners") }, "close");
}

function known(row, text) {
  return row.state === "no answer" ? h("span", { class: "dim" }, "no answer") : text;
}

/** How many plain functions run in threads, and wait for one. */
function threads(row) {
  const most = row.threads_most === null ? "" : ` of ${count(row.threads_most)}`;
  return `${count(row.threads_busy)}${most} busy${row.threads_waiting ? `, ${count(row.threads_waiting)} waiting` : ""}`;
}

function detail(row) {
  const said = row.state === "no answer" ? [] : [
    ["version", row.version],
    ["entities", count(row.entities)],
    ["waiting", count(row.waiting)],
    ["running", count(row.running)],
    ["threads", threads(row)],
    ["stuck in threads", row.stubborn.length > 0 && h("ul", null, row.stubborn.map((each, index) => h("li", { key: index }, state("bad", "cancelled "), duration(each.for_s), " ago: ", name(each.what, 80))))],
    ["calls", `${rate(row.calls_s)}, p50 ${duration(row.p50_s)}, p99 ${duration(row.p99_s)}`],
    ["cpu", percent(row.cpu)],
    ["memory", bytes(row.memory_bytes)],
    ["loop lag", duration(row.loop_lag_s)],
    ["database answers in", duration(row.storage_s)],
    ["clock differs by", duration(Math.abs(row.clock_offset_s ?? 0))],
    ["lease left", duration(row.lease_left_s)],
  ];
  return section(row.name.length > 80 ? "Runner" : `Runner ${row.name}`, { class: "wide detail", id: "detail", aside: close() },
    terms([
      ["state", stateOf(row)],
      ["id", name(row.id)],
      ["address", name(row.address)],
      ["groups", name(row.groups.join(", "))],
      ["weight", String(row.weight)],
      ["started", time(row.started_at)],
      ["shards", h("a", { href: link("shards", { runner: row.name }) }, count(row.shards))],
      ["leads", row.leads.length ? row.leads.map((each) => h("a", { key: each, class: "spot", href: link("singletons", { name: each }) }, "★ ", name(each, 60))) : "nothing"],
      ["crons", row.crons.length ? row.crons.map((each) => h("a", { key: each, class: "spot", href: link("cron", { name: each }) }, name(each, 60))) : "none"],
      ...said,
    ]),
    acts(actButton("Drain …", "Drain " + row.name.slice(0, 60), "drain", { runner: row.id }, { danger: true })));
}
