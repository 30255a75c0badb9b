// Is it healthy, who leads, what runs next, what failed: without a click.

import { actButton } from "../acts.js";
import { address } from "../api.js";
import { app, colour, mayAct, now, page } from "../app.js";
import { callsChart, sparkline } from "../charts.js";
import { h } from "../dom.js";
import { quoted } from "../filter.js";
import { count, duration, percent, rate } from "../format.js";
import { use } from "../resource.js";
import { link } from "../router.js";
import { compare, rows } from "../store.js";
import { asked, empty, health, loading, name, runner, section, state, table, time, words } from "../ui.js";
import { cronState, nextTick } from "./cron.js";
import { jobGroupFilter, queueTable } from "./jobs.js";
import { singletonState } from "./singletons.js";

export default { id: "overview", title: "Overview", pages: ["overview", "runners"], view };

const CRONS_MOST = 8;
const RUNNERS_MOST = 24;

function view() {
  const seen = page("overview");
  if (!seen) return loading("the cluster");
  return h(
    "div",
    { class: "grid" },
    verdict(seen),
    tiles(seen),
    section("Leaders", { class: "half" }, leaders(seen)),
    section("Next", { class: "half" }, next(seen)),
    section("Calls", { class: "half", aside: legend(seen) }, app.samples.at.length < 2 ? loading("the first figures") : callsChart()),
    section("Failed lately", { class: "half" }, failures(seen)),
    seen.queues.size > 0 && section("Queues", { class: "wide" }, queueTable(rows(seen.queues, (row) => row.name))),
    section("Runners", { class: "wide" }, runners(seen)),
    section("Lately", { class: "wide" }, lately()),
  );
}

function verdict(seen) {
  return h(
    "section",
    { class: `card wide verdict ${seen.status}`, "aria-labelledby": "verdict" },
    h("h2", { id: "verdict" }, health(seen.status)),
    seen.reasons.length === 0
      ? h("p", { class: "dim" }, "Nothing is wrong.")
      : h(
          "ul",
          { class: "reasons" },
          seen.reasons.map((why, index) =>
            h(
              "li",
              { key: index },
              state(why.status === "unhealthy" ? "bad" : "warn", why.status), " ",
              h("a", { href: placeOf(why.what) }, name(why.what)), ": ", words(why.problem),
              why.hint && h("p", { class: "hint" }, words(why.hint)),
            ),
          ),
        ),
  );
}

/** The page that shows what a reason is about. */
function placeOf(what) {
  const [kind, called] = what.split(" ");
  if (kind === "singleton") return link("singletons", { name: called });
  if (kind === "cron") return link("cron", { name: called });
  if (kind === "runner") return link("runners", { name: called });
  if (kind === "queue") return link("jobs", { queue: called });
  if (/shard/.test(what)) return link("shards");
  if (/message/.test(what)) return link("messages");
  return link("runners");
}

function tiles(seen) {
  const { waiting } = app.samples;
  const tile = (title, figure, href, note) =>
    h("a", { class: "tile", href, key: title }, h("span", { class: figure.length > 10 ? "figure long" : "figure" }, figure), h("span", { class: "dim" }, title), note);
  return h(
    "nav",
    { class: "tiles wide", "aria-label": "figures" },
    tile(seen.runners === 1 ? "runner" : "runners", `${seen.healthy_runners} of ${seen.runners}`, link("runners"), h("span", { class: "note" }, "healthy")),
    tile("shards", `${count(seen.owned_shards)} of ${count(seen.shards)}`, link("shards"), h("span", { class: "note" }, "owned")),
    tile("entities", count(seen.entities), link("entities"), h("span", { class: "note" }, "in memory")),
    tile("waiting", count(seen.waiting), link("messages"), sparkline(waiting, "waiting calls, last minutes")),
    tile("running", count(seen.running), link("messages"), h("span", { class: "note" }, "handlers")),
    tile("dead", count(seen.dead), link("messages", { filter: "state:dead" }), seen.dead ? h("span", { class: "note" }, state("warn", "messages")) : h("span", { class: "note" }, "messages")),
  );
}

function leaders(seen) {
  return table({
    label: "leaders",
    rows: rows(seen.singletons, (row) => row.name),
    key: (row) => row.name,
    columns: [
      { title: "Singleton", cell: (row) => h("a", { class: "primary", href: link("singletons", { name: row.name }) }, name(row.name, 40)) },
      { title: "Leader", cell: (row) => runner(row.leader, { star: true }) },
      { title: "Epoch", class: "number", cell: (row) => count(row.epoch) },
      { title: "Since", cell: (row) => time(row.since_at) },
      { title: "State", cell: singletonState },
    ],
    empty: empty("No singletons yet. Add one:", '@cluster.singleton("importer")\nasync def importer(leader: Leader) -> None: …'),
  });
}

function next(seen) {
  return table({
    label: "next cron runs",
    rows: rows(seen.crons, order).slice(0, CRONS_MOST),
    key: (row) => row.name,
    columns: [
      { title: "Cron", cell: (row) => h("a", { class: "primary", href: link("cron", { name: row.name }) }, name(row.name, 40)) },
      { title: "Next", cell: nextTick },
      { title: "Last", cell: (row) => [cronState(row), row.took_s === null || row.running ? null : h("span", { class: "dim" }, ` ${duration(row.took_s)}`)] },
      ...(mayAct() ? [{ title: "Run", class: "right", cell: (row) => actButton("▶ now", "Trigger " + row.name, "trigger", { cron: row.name }, { label: `run ${row.name} now` }) }] : []),
    ],
    empty: empty("No crons yet. Add one:", '@cluster.cron("nightly", "0 3 * * *", timezone="Europe/Zurich")\nasync def nightly(tick: Tick) -> None: …'),
  });
}

function order(row) {
  if (row.problem || row.overdue_s !== null) return 0;
  return row.next_at ? Date.parse(row.next_at) : Infinity;
}

function failures(seen) {
  if (!seen.failures.length) return empty("Nothing failed lately.");
  return table({
    label: "failures",
    rows: seen.failures,
    key: (row) => `${row.kind}/${row.what}/${row.error}`,
    columns: [
      { title: "What", cell: (row) => h("a", { class: "primary", href: placeOfFailure(row) }, row.kind !== "messages" && `${row.kind === "cron" ? "cron" : "task"} `, name(row.what, 60)) },
      { title: "Error", class: "grow", cell: (row) => h("span", { class: "clip" }, words(row.error)) },
      { title: "Count", class: "number", cell: (row) => `${count(row.count)}×` },
      { title: "Last", cell: (row) => time(row.last_at) },
    ],
  });
}

function placeOfFailure(row) {
  if (row.kind === "cron") return link("cron", { name: row.what });
  return row.kind === "jobs" ? link("jobs", { filter: jobGroupFilter(row) }) : link("messages", { filter: groupFilter(row) });
}

/** The filter of the messages that died for one reason. */
export function groupFilter(row) {
  const [type, method] = row.what.split(".");
  return [`state:dead type:${quoted(type)}`, method && `method:${quoted(method)}`, row.error && `error:${quoted(row.error.split("\n")[0].slice(0, 80))}`].filter(Boolean).join(" ");
}

function legend(seen) {
  return [
    h("span", { class: "key calls", key: "calls" }, `calls ${rate(seen.calls_s)}`), " ",
    h("span", { class: "key p50", key: "p50" }, `p50 ${duration(seen.p50_s)}`), " ",
    h("span", { class: "key p99", key: "p99" }, `p99 ${duration(seen.p99_s)}`),
  ];
}

function runners(seen) {
  const all = rows(page("runners"), (row) => row.name);
  const most = Math.max(1, ...all.map((row) => row.shards));
  return h(
    "ul",
    { class: "strip" },
    all.slice(0, RUNNERS_MOST).map((row) =>
      h(
        "li",
        { key: row.id },
        runner(row.name),
        h("span", null, `${count(row.shards)} of ${count(seen.shards)} shards`),
        h("span", { class: `share hue-${colour(row.name)}`, "aria-hidden": "true" }, h("span", { style: { width: `${(row.shards / most) * 100}%` } })),
        row.state === "no answer" ? state("bad", "no answer") : row.state !== "ready" ? state("busy", row.state) : h("span", { class: "dim" }, `${percent(row.cpu)} cpu · ${duration(row.loop_lag_s)} lag`),
        h("span", { class: "dim" }, "up ", duration((now() - Date.parse(row.started_at)) / 1000), row.version && ` · ${row.version}`),
      ),
    ),
    all.length > RUNNERS_MOST && h("li", { key: " rest" }, h("a", { href: link("runners") }, `${count(all.length - RUNNERS_MOST)} more runners`)),
  );
}

function lately() {
  const resource = use(address("activity", { limit: 5 }), String(Math.floor(now() / 15_000)));
  const acts = (resource.data?.rows ?? []).map((row) => ({ at: row.at, text: `${row.who ?? "somebody"}: ${row.act} ${row.what ?? ""}`.trim(), page: "activity", params: {} }));
  const found = [...app.events.slice(0, 8), ...acts].sort((one, other) => compare(other.at, one.at)).slice(0, 8);
  if (!found.length) return resource.phase === "loading" ? asked(resource, "activity", () => null) : h("p", { class: "dim" }, "Nothing happened since this page was opened. What moves, joins and leaves will stand here.");
  return h("ol", { class: "events" }, found.map((event, index) => h("li", { key: index }, time(event.at), " ", h("a", { href: link(event.page, event.params) }, name(event.text)))));
}
