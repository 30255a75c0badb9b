// Schedules made at run time: what became of their last instants and what comes, on one line of time; below it the table.

import { actButton } from "../acts.js";
import { address } from "../api.js";
import { now, zone } from "../app.js";
import { Axis, DASH, RING } from "../charts.js";
import { h, memo } from "../dom.js";
import { absolute, count, counted, json } from "../format.js";
import { settled, use } from "../resource.js";
import { go, link } from "../router.js";
import { acts, asked, block, empty, filterField, loading, name, section, select, state, table, terms, time, words } from "../ui.js";

export default { id: "schedules", title: "Schedules", pages: ["overview"], view };

const RANGES = [["5m", "5 minutes"], ["1h", "1 hour"], ["6h", "6 hours"], ["24h", "1 day"], ["7d", "1 week"], ["28d", "4 weeks"]];
const RANGE_S = { "5m": 300, "1h": 3600, "6h": 21600, "24h": 86400, "7d": 604800, "28d": 2419200 };
const LISTED = 50;
const LANES_MOST = 24;
const NEXT_MOST = 34; // rings in the width of a lane: more would touch each other

function view({ params }) {
  const range = RANGE_S[params.range] ? params.range : "6h";
  const prefix = params.prefix ?? "";
  return h(
    "div",
    { class: "grid" },
    params.name !== undefined && detail(params),
    section("Schedules", { class: "wide", aside: h("div", { class: "tools" }, select("range", range, RANGES, (value) => go("schedules", { ...params, range: value }))) },
      filterField("names that begin with", prefix, (value) => go("schedules", { ...params, prefix: value, after: "" }, { replace: true }), { placeholder: "report/" }),
      list(params, prefix, range)),
  );
}

function list(params, prefix, range) {
  if (!settled("schedules", prefix)) return loading("schedules");
  const span = RANGE_S[range] * 1000;
  const step = Math.max(1000, span / 300); // the axis moves on by a few pixels
  const middle = Math.floor(now() / step) * step;
  const bucket = Math.max(10_000, span / 20);
  const until = new Date(Math.ceil((middle + span / 2) / bucket) * bucket).toISOString();
  const resource = use(address("schedules", { prefix, after: params.after, limit: LISTED, until }), String(Math.floor(now() / 5_000)));
  return asked(resource, "schedules", (data) => {
    const found = data.schedules ?? [];
    if (!found.length) return prefix || params.after ? h("p", { class: "dim" }, "No schedule has a name like this.") : empty("No schedules yet. Programs make them at run time:", 'await cluster.schedules.put("report/acme", "0 7 * * MON", send_report.job("acme"))');
    return [
      lanes(found, new Axis(middle - span, middle + span / 2), middle, range),
      table({
        label: "schedules",
        rows: found,
        key: (row) => row.name,
        selected: params.name,
        columns: [
          { title: "Schedule", cell: (row) => h("a", { class: "primary", href: link("schedules", { ...params, name: row.name }) }, name(row.name, 60)) },
          { title: "When", class: "wraps", cell: (row) => name(row.explained || row.schedule, 80) },
          { title: "Next", cell: next },
          { title: "Last", cell: (row) => time(row.last_at, { scheduled: row.timezone }) },
          { title: "Calls", class: "extra", cell: (row) => name(row.calls, 60) },
          { title: "Acts", class: "right", cell: (row) => h("div", { class: "acts" }, pauseOrResume(row, "❚❚")) },
        ],
      }),
      data.more && h("p", null, h("a", { href: link("schedules", { ...params, after: found.at(-1).name }) }, "more")),
      params.after && h("p", null, h("a", { href: link("schedules", { ...params, after: "" }) }, "back to the first")),
    ];
  });
}

function next(row) {
  if (row.paused_at) return state("off", "paused", "❚❚");
  if (row.problem) return [state("warn", "attention"), h("p", { class: "hint" }, words(row.problem))];
  if (row.is_over) return h("span", { class: "dim" }, "over");
  return Date.parse(row.next_at) <= now() ? h("span", null, "now") : time(row.next_at, { scheduled: row.timezone });
}

function pauseOrResume(row, text = "❚❚ Pause …") {
  const called = row.name.slice(0, 60);
  if (row.paused_at) return actButton("Resume …", `Resume ${called}`, "resume-schedule", { schedule: row.name }, { label: `resume ${called}` });
  return actButton(text, `Pause ${called}`, "pause-schedule", { schedule: row.name }, { label: `pause ${called}` });
}

// ── the line of time ────────────────────────────────────────────────────────────────────────────────────────────────

function lanes(found, axis, middle, range) {
  const shown = found.slice(0, LANES_MOST);
  return h(
    "div",
    { class: "lanes" },
    h("div", { class: "lane-row", key: " scale" }, h("span", null), axis.scale(shown[0].timezone)),
    shown.map((row) => memo(row.name, [row, middle, range, zone(row.timezone)], () => laneOf(axis, row))),
    h("p", { class: "dim key-line", key: " key" }, state("good", "sent", "▮"), " ", state("off", "skipped", "+"), " ", state("off", "to come", "○"), ". The last 20 verdicts of each are kept."),
    shown.length < found.length && h("p", { class: "dim", key: " rest" }, `The first ${count(shown.length)} are drawn: names that begin with something choose others.`),
  );
}

function laneOf(axis, row) {
  const past = row.outcomes.filter((each) => axis.has(Date.parse(each.at)) || axis.has(Date.parse(each.until)));
  const coming = thinned(axis, row.coming.filter((at) => axis.has(Date.parse(at))));
  const sent = past.filter((each) => each.message).length;
  const skipped = past.filter((each) => !each.message).reduce((sum, each) => sum + each.count, 0);
  const text = [`${count(sent)} sent`, skipped && `${count(skipped)} skipped`].filter(Boolean).join(", ");
  return h(
    "div",
    { class: "lane-row", key: row.name },
    h("a", { class: "lane-name", href: link("schedules", { name: row.name }) }, name(row.name, 40)),
    axis.lane(`${row.name.slice(0, 60)}: ${text}, ${counted(coming.length, "instant")} to come in this span`, past.map((each) => drawn(axis, row, each)), coming.map((at) => axis.mark(Date.parse(at), "tick next", RING, `to come: ${absolute(at, zone(row.timezone))}`))),
    h("span", { class: "lane-text dim" }, text),
  );
}

function drawn(axis, row, outcome) {
  const at = Date.parse(outcome.at);
  const title = `${absolute(outcome.at, zone(row.timezone))}: ${outcome.message ? "sent" : `skipped, ${outcome.reason}`}${outcome.count > 1 ? `, ${counted(outcome.count, "instant")}` : ""}`;
  if (outcome.message) return h("g", { key: outcome.at }, axis.bar(at, at, "tick ran", title));
  return h("g", { key: outcome.at }, outcome.count > 1 && axis.bar(at, Date.parse(outcome.until), "tick waited"), axis.mark(at, "tick skipped", DASH, title));
}

function thinned(axis, instants) {
  const kept = instants.slice(0, 1);
  for (const at of instants) if (axis.at(Date.parse(at)) - axis.at(Date.parse(kept.at(-1))) >= 100 / NEXT_MOST) kept.push(at);
  return kept;
}

// ── one schedule ────────────────────────────────────────────────────────────────────────────────────────────────────

function detail(params) {
  const resource = use(address("schedule", { name: params.name }), String(Math.floor(now() / 3_000)));
  const back = h("a", { href: link("schedules", { ...params, name: "" }) }, "close");
  const title = params.name.length > 80 ? "Schedule" : `Schedule ${params.name}`;
  return section(title, { class: "wide detail", id: "detail", aside: back }, asked(resource, "the schedule", ({ schedule }) => shown(params, schedule)));
}

/** The message or job that was sent; ids of jobs begin with another letter. */
function sentAs(id, most) {
  return h("a", { href: link(id.startsWith("j") ? "jobs" : "messages", { id }) }, name(id, most));
}

function shown(params, row) {
  const scheduled = row.timezone;
  const called = row.name.slice(0, 60);
  const away = () => go("schedules", { ...params, name: "" }, { replace: true }); // before it is read again
  return [
    row.name.length > 80 && h("p", null, words(row.name)),
    terms([
      ["schedule", [name(row.schedule), row.explained !== row.schedule && [" · ", name(row.explained)]]],
      ["zone", row.timezone],
      ["calls", name(row.calls)],
      ["next", next(row)],
      ["last", row.last_at && time(row.last_at, { scheduled })],
      ["last sent", row.last_message && sentAs(row.last_message, 40)],
      ["put", time(row.since)],
      ["paused", row.paused_at && time(row.paused_at)],
      ["start", row.start && time(row.start, { scheduled })],
      ["end", row.end && time(row.end, { scheduled })],
      ["missed", row.catch_up && `${row.catch_up} is caught up`],
      ["overlap", row.overlap],
      ["shard", h("a", { href: link("shards", { shard: row.shard }) }, name(row.shard))],
    ]),
    acts(pauseOrResume(row), actButton("Remove …", `Remove ${called}`, "remove-schedule", { schedule: row.name }, { danger: true, after: away })),
    h("h3", null, "Arguments"),
    row.arguments === null || row.arguments === undefined ? h("p", { class: "dim" }, "The arguments are hidden by a setting.") : block(json(row.arguments), "arguments"),
    h("div", { class: "columns" },
      h("div", null, h("h3", null, "Next instants"), table({
        label: "next instants",
        rows: row.coming.map((at) => ({ at })),
        key: (each) => each.at,
        columns: [
          { title: "When", class: "nowrap", cell: (each) => absolute(each.at, zone(scheduled)) },
          { title: "In", cell: (each) => time(each.at, { scheduled }) },
        ],
        empty: h("p", { class: "dim" }, row.paused_at ? "It is paused." : "It is never due again."),
      })),
      h("div", null, h("h3", null, "Last verdicts"), table({
        label: "last verdicts",
        rows: [...row.outcomes].reverse(),
        key: (each) => each.at,
        columns: [
          { title: "Due", cell: (each) => [time(each.at, { scheduled }), each.count > 1 && ` ${count(each.count)}×`] },
          { title: "Result", cell: (each) => (each.message ? state("good", "sent") : state("off", `skipped: ${each.reason}`)) },
          { title: "Sent as", cell: (each) => each.message && sentAs(each.message, 16) },
        ],
        empty: h("p", { class: "dim" }, "It was not due yet."),
      }))),
  ];
}
