// Crons: past and future on one line of time, now in the middle; below it the table.

import { actButton } from "../acts.js";
import { address } from "../api.js";
import { now, page, zone } from "../app.js";
import { Axis, CROSS, DASH, RING } from "../charts.js";
import { h, memo } from "../dom.js";
import { absolute, count, counted, duration } from "../format.js";
import { use } from "../resource.js";
import { go, link } from "../router.js";
import { compare, rows } from "../store.js";
import { acts, asked, block, empty, failed, filterField, loading, name, runner, section, select, state, table, terms, time, words } from "../ui.js";

export default { id: "cron", title: "Cron", pages: ["overview", "cron"], view };

const RANGES = [["5m", "5 minutes"], ["1h", "1 hour"], ["6h", "6 hours"], ["24h", "1 day"], ["7d", "1 week"]];
const RANGE_S = { "5m": 300, "1h": 3600, "6h": 21600, "24h": 86400, "7d": 604800 };
const LANES_MOST = 24;
const LANES_STAY_MS = 60_000;
const ADDRESS_MOST = 6_000; // of the names in one request: servers refuse longer ones
const MARKS_MOST = 1_800; // in all lanes; where there are more, the worst of each place is drawn
const PLACES_MOST = 240; // in one lane
const NEXT_MOST = 34; // rings in the width of a lane: more would touch each other
const KNOWN_MOST = 100; // ticks to come that the server names
const KINDS = { ran: "good", failed: "bad", skipped: "off" };

export function cronState(row) {
  if (row.running) return state("busy", "running");
  if (row.outcome === null) return h("span", { class: "dim" }, "never");
  const word = row.failures > 1 ? `${row.outcome}, ${row.failures} in a row` : row.outcome;
  return state(KINDS[row.outcome] ?? "warn", word);
}

export function nextTick(row) {
  if (row.paused_at) return state("off", "paused");
  if (row.overdue_s !== null) return [state("warn", `overdue ${duration(row.overdue_s)}`), row.problem && h("p", { class: "hint" }, words(row.problem))];
  if (row.problem) return [state("warn", "attention"), h("p", { class: "hint" }, words(row.problem))];
  if (!row.next_at) return h("span", { class: "dim" }, "never");
  return Date.parse(row.next_at) <= now() ? h("span", null, "now") : time(row.next_at, { scheduled: row.timezone });
}

function view({ params }) {
  const seen = page("cron");
  if (!seen) return loading("crons");
  const all = rows(seen, (row) => row.name);
  if (!all.length) return empty("No crons yet. Add one:", '@cluster.cron("nightly", "0 3 * * *", timezone="Europe/Zurich")\nasync def nightly(tick: Tick) -> None: …');
  const range = RANGE_S[params.range] ? params.range : "1h";
  const one = params.name !== undefined;
  const text = (params.filter ?? "").toLowerCase();
  const found = all.filter((row) => row.name.toLowerCase().includes(text));
  return h(
    "div",
    { class: "grid" },
    one ? detail(params, seen.get(params.name), range) : section("Line of time", { class: "wide", aside: h("div", { class: "tools" }, ranges(params, range)) }, lanes(found, range)),
    section("Crons", { class: "wide" },
      all.length > 10 && filterField("filter", params.filter ?? "", (value) => go("cron", { ...params, filter: value }, { replace: true }), { placeholder: "part of a name" }),
      list(found, params)),
  );
}

function ranges(params, range) {
  return select("range", range, RANGES, (value) => go("cron", { ...params, range: value }));
}

function list(all, params) {
  return table({
    label: "crons",
    rows: all,
    key: (row) => row.name,
    selected: params.name,
    columns: [
      { title: "Cron", cell: (row) => h("a", { class: "primary", href: link("cron", { ...params, name: row.name }) }, name(row.name, 60)) },
      { title: "When", class: "wraps", cell: (row) => [name(row.explained || row.schedule, 80), !row.explained.includes(row.timezone) && !row.schedule.startsWith("@every") && h("span", { class: "dim" }, " ", name(row.timezone))] },
      { title: "Next", cell: nextTick },
      { title: "Last", cell: (row) => time(row.last_run_at, { scheduled: row.timezone }) },
      { title: "Took", class: "number extra", cell: (row) => (row.took_s === null ? "" : duration(row.took_s)) },
      { title: "Result", cell: cronState },
      { title: "On", class: "extra", cell: (row) => runner(row.runner) },
      { title: "Acts", class: "right", cell: (row) => h("div", { class: "acts" }, trigger(row, "▶"), pauseOrResume(row)) },
    ],
  });
}

function trigger(row, text = "▶ Run now …") {
  return actButton(text, "Trigger " + row.name.slice(0, 60), "trigger", { cron: row.name }, { label: text === "▶" ? `run ${row.name.slice(0, 60)} now` : undefined });
}

function pauseOrResume(row, text = "❚❚") {
  const called = row.name.slice(0, 60);
  if (row.paused_at) return actButton("Resume …", "Resume " + called, "resume", { cron: row.name }, { label: `resume ${called}` });
  return actButton(text, "Pause " + called, "pause", { cron: row.name }, { label: `pause ${called}` });
}

// ── the line of time ────────────────────────────────────────────────────────────────────────────────────────────────

function lanes(found, range) {
  const shown = chosen(found);
  if (!shown.length) return h("p", { class: "dim" }, "No cron has this in its name.");
  const span = RANGE_S[range] * 1000;
  const step = Math.max(1000, span / 600); // it moves on by a pixel or so
  const middle = Math.floor(now() / step) * step;
  const axis = new Axis(middle - span, middle + span / 2);
  const stamp = shown.map((row) => `${row.runs}/${row.running}/${row.last_run_at}/${row.next_at}`).join() + Math.floor(now() / 10_000);
  const bucket = Math.max(10_000, span / 20);
  const from = new Date(Math.floor((middle - span) / bucket) * bucket).toISOString();
  const until = new Date(Math.ceil((middle + span / 2) / bucket) * bucket).toISOString();
  const resource = use(address("ticks", { name: shown.map((row) => row.name), from, until }), stamp);
  kept = resource.data ?? kept;
  if (!kept) return resource.phase === "failed" ? failed("the ticks", resource.error) : loading("ticks");
  const places = Math.min(PLACES_MOST, Math.floor(MARKS_MOST / shown.length));
  const ticks = new Map(kept.crons.map((each) => [each.name, each]));
  return h(
    "div",
    { class: "lanes" },
    h("div", { class: "lane-row", key: " scale" }, h("span", null), axis.scale(shown[0]?.timezone)),
    shown.map((row) =>
      memo(row.name, [row, ticks.get(row.name), middle, range, zone(row.timezone), shown.length], () => laneOf(axis, row, ticks.get(row.name), places)),
    ),
    h("p", { class: "dim key-line", key: " key" }, state("good", "ran", "▮"), " ", state("bad", "failed"), " ", state("off", "skipped", "+"), " ", state("busy", "running", "▮"), " ", state("off", "to come", "○"), ". Each bar is as long as the run took; the thin line before it is how late it began."),
    shown.length < found.length && h("p", { class: "dim", key: " rest" }, `${count(shown.length)} of ${count(found.length)} crons are drawn: those with problems, and those that run next. A filter chooses others.`),
    resource.error && failed("newer ticks", resource.error),
  );
}

let kept = null; // the ticks that were read last: shown while a later span is read
let choice = { stamp: null, names: [] };

/** The crons whose lanes are drawn. They stay for a while: lanes that move cannot be read. */
function chosen(found) {
  if (found.length <= LANES_MOST) return fitting(found);
  const wrong = found.filter((row) => urgency(row) === 0).map((row) => row.name);
  const stamp = [Math.floor(now() / LANES_STAY_MS), found.length, ...wrong].join("\n");
  const known = new Map(found.map((row) => [row.name, row]));
  if (choice.stamp !== stamp || !choice.names.every((each) => known.has(each))) {
    const urgent = [...found].sort((one, other) => compare(urgency(one), urgency(other)));
    choice = { stamp, names: urgent.slice(0, LANES_MOST).map((row) => row.name) };
  }
  return fitting(choice.names.map((each) => known.get(each)));
}

/** The first of them, whose names fit into one request. */
function fitting(found) {
  let length = 0;
  return found.filter((row) => (length += encodeURIComponent(row.name).length) <= ADDRESS_MOST);
}

/** What is wrong comes first, then what runs next. */
function urgency(row) {
  if (row.problem || row.overdue_s !== null || row.outcome === "failed") return 0;
  return row.next_at ? Date.parse(row.next_at) : Infinity;
}

function laneOf(axis, row, found, places) {
  const ticks = (found?.ticks ?? []).filter((tick) => axis.has(Date.parse(tick.started_at ?? tick.scheduled_at)) || axis.has(Date.parse(tick.ended_at ?? tick.scheduled_at)));
  const future = (found?.next ?? []).filter((at) => axis.has(Date.parse(at)));
  const failures = ticks.filter((tick) => tick.outcome === "failed").length;
  const text = found ? `${counted(ticks.length, "tick")}${failures ? `, ${count(failures)} failed` : ""}${found.more ? ", more than shown" : ""}` : "reading …";
  const label = `${row.name.slice(0, 60)}: ${text}, ${count(future.length)} to come in this span`;
  return h(
    "div",
    { class: "lane-row", key: row.name },
    h("a", { class: "lane-name", href: link("cron", { name: row.name }) }, name(row.name, 40), h("span", { class: "dim" }, " ", name(row.explained || row.schedule, 40))),
    axis.lane(label, worst(axis, ticks, places).map((tick) => drawn(axis, tick)), thinned(axis, future, Math.min(NEXT_MOST, places)).map((at) => axis.mark(Date.parse(at), "tick next", RING, `to come: ${absolute(at, zone(row.timezone))}`)), beyond(axis, found)),
    h("span", { class: "lane-text dim" }, text),
  );
}

function worst(axis, ticks, most) {
  if (ticks.length <= most) return ticks;
  const rank = { failed: 3, skipped: 1, ran: 0 };
  const places = new Map();
  for (const tick of ticks) {
    const place = Math.floor((axis.at(Date.parse(tick.scheduled_at)) / 100) * most);
    const old = places.get(place);
    if (!old || (rank[tick.outcome] ?? 2) > (rank[old.outcome] ?? 2)) places.set(place, tick);
  }
  return [...places.values()];
}

/** Those after the last one that is known. */
function beyond(axis, found) {
  const known = found?.next ?? [];
  if (known.length < KNOWN_MOST || !axis.has(Date.parse(known.at(-1)))) return null;
  return h("line", { key: " beyond", class: "beyond", x1: `${(axis.at(Date.parse(known.at(-1))) + 1.5).toFixed(2)}%`, x2: "100%", y1: 12, y2: 12 });
}

function thinned(axis, instants, most) {
  const last = instants.slice(0, 1);
  for (const at of instants) if (axis.at(Date.parse(at)) - axis.at(Date.parse(last.at(-1))) >= 100 / most) last.push(at);
  return last;
}

function drawn(axis, tick) {
  const due = Date.parse(tick.scheduled_at);
  const began = tick.started_at ? Date.parse(tick.started_at) : null;
  const ended = tick.ended_at ? Date.parse(tick.ended_at) : null;
  const title = `${absolute(tick.scheduled_at)}: ${tick.outcome ?? "running"}${began === null ? "" : `, ${duration((began - due) / 1000)} late`}${began !== null && ended !== null ? `, took ${duration((ended - began) / 1000)}` : ""}${tick.count > 1 ? `, ${tick.count} ticks` : ""}${tick.reason ? `, ${tick.reason}` : ""}${tick.runner ? ` on ${tick.runner}` : ""}${tick.error ? `: ${tick.error.slice(0, 200)}` : ""}`;
  const key = tick.scheduled_at;
  if (tick.outcome === "skipped" || (began === null && tick.outcome !== null)) return h("g", { key }, axis.mark(due, `tick ${tick.outcome === "failed" ? "failed" : "skipped"}`, tick.outcome === "failed" ? CROSS : DASH, title));
  const from = began ?? due;
  const kind = tick.outcome === null || tick.outcome === "running" ? "running" : tick.outcome;
  return h(
    "g",
    { key },
    from - due > 50 && h("line", { class: "late", x1: `${axis.at(due).toFixed(3)}%`, x2: `${axis.at(from).toFixed(3)}%`, y1: 12, y2: 12 }),
    axis.bar(from, ended ?? now(), `tick ${kind}`, title),
    kind === "failed" && axis.mark(from, "tick failed over", CROSS, title),
  );
}

// ── one cron ────────────────────────────────────────────────────────────────────────────────────────────────────────

function detail(params, line, range) {
  const stamp = `${line?.runs}/${line?.running}/${line?.last_run_at}/${line?.next_at}/${line?.paused_at}`;
  const resource = use(address("cron", { name: params.name }), stamp);
  const back = h("div", { class: "tools" }, ranges(params, range), h("a", { href: link("cron", { range }) }, "all crons"));
  return section(params.name.length > 80 ? "Cron" : `Cron ${params.name}`, { class: "wide detail", id: "detail", aside: back }, asked(resource, "the cron", (data) => shown(params.name, line ?? data.line, data, range)));
}

function shown(called, line, data, range) {
  const scheduled = line.timezone;
  return [
    called.length > 80 && h("p", null, words(called)),
    terms([
      ["schedule", [name(line.schedule), line.explained && line.explained !== line.schedule && [" · ", name(line.explained)]]],
      ["zone", line.timezone],
      ["next", nextTick(line)],
      ["last", line.last_run_at && [time(line.last_run_at, { scheduled }), line.took_s === null ? null : `, took ${duration(line.took_s)}`]],
      ["result", cronState(line)],
      ["runs", count(line.runs)],
      ["missed", line.missed ? count(line.missed) : null],
      ["held by", [runner(line.runner), ` epoch ${line.epoch}`]],
      ["group", name(line.group)],
      ["last error", line.error && words(line.error.split("\n")[0])],
    ]),
    acts(trigger(line), pauseOrResume(line, "❚❚ Pause …")),
    h("h3", null, "Line of time"),
    lanes([line], range),
    h("div", { class: "columns" },
      h("div", null, h("h3", null, "Next ticks"), table({
        label: "next ticks",
        rows: data.next ?? [],
        key: (row) => row.at,
        columns: [
          { title: "When", class: "nowrap", cell: (row) => absolute(row.at, zone(scheduled)) },
          { title: "In", cell: (row) => time(row.at, { scheduled }) },
          ...((data.next ?? []).some((row) => row.note) ? [{ title: "Note", cell: (row) => words(row.note ?? "") }] : []),
        ],
        empty: h("p", { class: "dim" }, "It has no next tick."),
      })),
      h("div", null, h("h3", null, "History"), table({
        label: "history",
        rows: data.history ?? [],
        key: (row) => row.scheduled_at,
        hold: true,
        columns: [
          { title: "Scheduled", cell: (row) => time(row.scheduled_at, { scheduled }) },
          { title: "Late", class: "number", cell: (row) => (row.late_s === null || row.late_s === undefined ? "" : duration(row.late_s)) },
          { title: "Took", class: "number", cell: (row) => (row.started_at && row.ended_at ? duration((Date.parse(row.ended_at) - Date.parse(row.started_at)) / 1000) : "") },
          { title: "Result", cell: (row) => [state(row.outcome ? (KINDS[row.outcome] ?? "warn") : "busy", row.outcome ?? "running"), row.count > 1 && ` ${count(row.count)}×`, row.reason && h("p", { class: "hint" }, words(row.reason))] },
          { title: "Attempts", class: "number", cell: (row) => (row.attempts ? count(row.attempts) : "") },
          { title: "On", cell: (row) => runner(row.runner) },
          { title: "Error", class: "grow", cell: (row) => row.error && h("details", null, h("summary", { class: "clip" }, words(row.error.trim().split("\n").pop())), block(row.errors?.length ? row.errors.join("\n\n") : row.error, "errors")) },
        ],
        empty: h("p", { class: "dim" }, "It has not run yet."),
      })),
    ),
  ];
}
