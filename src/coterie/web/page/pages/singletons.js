// Singletons: who leads, since when, and its state; who led before, as a bar with its gaps.

import { actButton } from "../acts.js";
import { address } from "../api.js";
import { colour, now, page } from "../app.js";
import { Axis } from "../charts.js";
import { h } from "../dom.js";
import { absolute, bytes, count, counted, duration, json } from "../format.js";
import { use } from "../resource.js";
import { link } from "../router.js";
import { rows } from "../store.js";
import { acts, asked, block, copy, empty, loading, name, runner, section, state, table, terms, time, words } from "../ui.js";

export default { id: "singletons", title: "Singletons", pages: ["overview", "singletons"], view };

export function singletonState(row) {
  if (row.problem) return [state("warn", "attention"), " ", h("span", { class: "dim" }, words(row.problem))];
  if (!row.leader) return state("off", "no leader");
  return state("good", "running");
}

function progress(row) {
  if (!row.note && row.done === null) return null;
  const done = row.done === null ? "" : ` ${count(row.done)}${row.total === null ? "" : ` of ${count(row.total)}`}`;
  return h("span", null, words(row.note ?? ""), done);
}

function view({ params }) {
  const seen = page("singletons");
  if (!seen) return loading("singletons");
  const all = rows(seen, (row) => row.name);
  const chosen = params.name === undefined ? null : seen.get(params.name);
  return h(
    "div",
    { class: "grid" },
    params.name !== undefined && detail(params.name, chosen),
    section("Singletons", { class: "wide" }, table({
      label: "singletons",
      rows: all,
      key: (row) => row.name,
      selected: params.name,
      columns: [
        { title: "Singleton", cell: (row) => h("a", { class: "primary", href: link("singletons", { name: row.name }) }, name(row.name, 60)) },
        { title: "Leader", cell: (row) => runner(row.leader, { star: true }) },
        { title: "Epoch", class: "number", cell: (row) => count(row.epoch) },
        { title: "Since", cell: (row) => time(row.since_at) },
        { title: "Heartbeat", cell: (row) => time(row.alive_at) },
        { title: "Last run", class: "extra", cell: (row) => time(row.last_run_at) },
        { title: "Progress", cell: (row) => progress(row) ?? h("span", { class: "dim" }, "none") },
        { title: "State", cell: singletonState },
      ],
      empty: empty("No singletons yet. Add one:", '@cluster.singleton("importer", state=Progress)\nasync def importer(leader: Leader[Progress]) -> None: …'),
    })),
  );
}

function detail(called, line) {
  const stamp = `${line?.epoch}/${line?.leader}/${Math.floor(now() / 5_000)}`;
  const resource = use(address("singleton", { name: called }), stamp);
  const back = h("a", { href: link("singletons") }, "close");
  return section(called.length > 80 ? "Singleton" : `Singleton ${called}`, { class: "wide detail", id: "detail", aside: back }, asked(resource, "the singleton", (data) => shown(called, line ?? data.line, data)));
}

function shown(called, line, data) {
  return [
    called.length > 80 && h("p", null, words(called)),
    terms([
      ["leader", runner(line.leader, { star: true })],
      ["epoch", count(line.epoch)],
      ["since", line.since_at && time(line.since_at)],
      ["heartbeat", line.alive_at && time(line.alive_at)],
      ["last run", line.last_run_at && time(line.last_run_at)],
      ["runs", count(line.runs)],
      ["progress", progress(line)],
      ["expected every", line.expected_interval_s === null ? null : duration(line.expected_interval_s)],
      ["group", name(line.group)],
      ["state", singletonState(line)],
      ["last error", line.error && [words(line.error), " ", time(line.error_at)]],
    ]),
    acts(actButton("Resign …", "Resign leadership of " + called.slice(0, 60), "resign", { singleton: called })),
    h("h3", null, "Who led"),
    history(data.history ?? []),
    h("h3", null, "Saved state"),
    data.state
      ? [
          h("p", { class: "dim" }, `${bytes(data.state.bytes)} · version ${data.state.version}`, data.state.saves && ` · ${counted(data.state.saves, "save")}`, data.state.saved_at && [" · saved ", time(data.state.saved_at)], data.state.value !== undefined && [" ", copy(json(data.state.value), "Copy")]),
          data.state.value === undefined ? h("p", { class: "dim" }, "The value is hidden by a setting.") : block(json(data.state.value), "state"),
        ]
      : h("p", { class: "dim" }, "It has saved no state."),
    Boolean(data.saved?.length) && h("details", { class: "more" }, h("summary", null, `Saved before: the last ${counted(data.saved.length, "state")}`), saves(data.saved)),
    Boolean(data.steps?.length || data.deferreds?.length) && h("p", null, `${count(data.steps?.length ?? 0)} stored steps, ${count(data.deferreds?.length ?? 0)} open deferreds`),
  ];
}

function saves(saved) {
  return table({
    label: "saved states",
    rows: [...saved].sort((one, other) => other.number - one.number),
    key: (row) => `${row.epoch}/${row.number}`,
    columns: [
      { title: "Save", class: "number", cell: (row) => count(row.number) },
      { title: "Saved", cell: (row) => time(row.saved_at) },
      { title: "By", cell: (row) => runner(row.runner) },
      { title: "Epoch", class: "number", cell: (row) => count(row.epoch) },
      { title: "Size", class: "number", cell: (row) => bytes(row.bytes) },
      { title: "Value", class: "grow", cell: (row) => [row.set_aside && [state("warn", "set aside: "), words(row.set_aside)], row.value !== undefined && h("details", null, h("summary", { class: "clip" }, words(JSON.stringify(row.value)?.slice(0, 120))), block(json(row.value), "state"))] },
    ],
  });
}

function history(led) {
  if (!led.length) return h("p", { class: "dim" }, "Nothing is known of former leaders.");
  const all = [...led].sort((one, other) => one.epoch - other.epoch).slice(-30);
  const ms = (at) => Date.parse(at);
  const starts = all.map((each) => each.from_at).filter(Boolean);
  const axis = new Axis(starts.length ? Math.min(...starts.map(ms)) : now() - 60_000, now());
  return [
    axis.scale(undefined, 4),
    axis.lane(
      "leaders over time, listed below",
      all.filter((each) => each.from_at).map((each) =>
        axis.bar(ms(each.from_at), each.until_at ? ms(each.until_at) : now(), `bar hue-${colour(each.runner)}`, `${each.runner}, epoch ${each.epoch}, ${absolute(each.from_at)}`),
      ),
    ),
    table({
      label: "leaders",
      rows: all.map((each, index) => ({ ...each, before: all[index - 1] })).reverse(),
      key: (row) => row.epoch,
      columns: [
        { title: "Leader", cell: (row) => runner(row.runner) },
        { title: "Epoch", class: "number", cell: (row) => count(row.epoch) },
        { title: "From", cell: (row) => time(row.from_at) },
        { title: "Until", cell: (row) => (row.until_at ? time(row.until_at) : state("good", "now")) },
        { title: "Gap before", class: "number", cell: (row) => (row.before?.until_at && row.from_at ? duration((ms(row.from_at) - ms(row.before.until_at)) / 1000) : "") },
      ],
    }),
  ];
}
