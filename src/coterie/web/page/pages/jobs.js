// Jobs: queues with what waits and runs, dead jobs by failure, a list by filter; one job, and what can be done about it.

import { actButton, confirm } from "../acts.js";
import { address } from "../api.js";
import { app, mayAct, now, page } from "../app.js";
import { h } from "../dom.js";
import { JOBS, parseFilter, quoted } from "../filter.js";
import { count, counted, duration, json } from "../format.js";
import { settled, use } from "../resource.js";
import { go, link } from "../router.js";
import { rows } from "../store.js";
import { acts, asked, block, empty, filterField, loading, name, runner, section, state, table, terms, time, words } from "../ui.js";

export default { id: "jobs", title: "Jobs", pages: ["overview", "jobs"], view };

const KINDS = { dead: "bad", done: "good", running: "busy", waiting: "off", scheduled: "off", parked: "warn", discarded: "warn", cancelled: "warn" };
const OVER = ["dead", "done", "discarded", "cancelled"];
const ERROR_MOST = 400;
const UNITS = [[1, "s"], [60, "m"], [3600, "h"], [86400, "d"]];
const selected = new Set();

function view({ params }) {
  const seen = page("jobs");
  if (!seen) return loading("jobs");
  const filter = params.filter ?? "";
  return h(
    "div",
    { class: "grid" },
    params.id !== undefined && detail(params),
    params.queue !== undefined && queueDetail(params, seen.queues.get(params.queue)),
    section("Queues", { class: "wide" }, queueTable(rows(seen.queues, (row) => row.name), params)),
    seen.failures.length > 0 && section("Dead, by failure", { class: "wide" }, groups(seen)),
    section("Jobs", { class: "wide" },
      filterField("filter", filter, (value) => retype(params, value), { placeholder: "task:send_email state:dead error:Timeout tag:order=7", help: `qualifiers: ${JOBS.qualifiers.join(" ")}` }),
      list(params, filter)),
  );
}

function retype(params, value) {
  selected.clear();
  go("jobs", { ...params, filter: value, after: "" }, { replace: true });
}

// ── queues ──────────────────────────────────────────────────────────────────────────────────────────────────────────

export function queueTable(all, params = {}) {
  return table({
    label: "queues",
    rows: all,
    key: (row) => row.name,
    selected: params.queue,
    columns: [
      { title: "Queue", cell: (row) => h("a", { class: "primary", href: link("jobs", { ...params, queue: row.name, id: "" }) }, name(row.name, 60)) },
      { title: "Waiting", class: "number", cell: (row) => count(row.waiting) },
      { title: "Oldest", class: "number", cell: (row) => (row.oldest_s === null ? "" : duration(row.oldest_s)) },
      { title: "Running", class: "number", cell: (row) => (row.concurrency === null ? count(row.running) : `${count(row.running)} of ${count(row.concurrency)}`) },
      { title: "Scheduled", class: "number extra", cell: (row) => count(row.scheduled) },
      { title: "Parked", class: "number extra", cell: (row) => count(row.parked) },
      { title: "Dead", class: "number", cell: (row) => count(row.dead) },
      { title: "Limits", class: "extra", cell: limits },
      { title: "State", class: "wraps", cell: queueState },
      ...(mayAct() ? [{ title: "Acts", class: "right", cell: (row) => h("div", { class: "acts" }, pauseOrResume(row, "❚❚")) }] : []),
    ],
    empty: empty("No queues yet. A task has one, or is among those of its group:", 'emails = cluster.queue("emails", concurrency=20, rate="50/s")\n\n@cluster.task(queue=emails)\nasync def send_email(to: str) -> None: …'),
  });
}

function queueState(row) {
  if (row.paused_at) return state("off", "paused", "❚❚");
  if (row.problem) return [state("warn", "attention"), h("p", { class: "hint" }, words(row.problem))];
  if (row.concurrency !== null && row.running >= row.concurrency) return state("busy", "at its limit");
  return row.running ? state("busy", "running") : state("good", "idle");
}

/** `2 a partition, 50/s`: the number that may run at once stands beside the one that does. */
function limits(row) {
  const parts = [row.partition_concurrency !== null && `${count(row.partition_concurrency)} a partition`, row.rate !== null && rateText(row.rate)].filter(Boolean);
  return [parts.join(", "), row.is_set && h("span", { class: "dim" }, " set by hand")];
}

/** `50/s`, `10/d`: whole numbers where there are any. */
function rateText(rate) {
  for (const [size, unit] of UNITS) {
    const found = rate * size;
    if (found >= 1 && Math.abs(found - Math.round(found)) < 1e-6 * found) return `${count(Math.round(found))}/${unit}`;
  }
  return `${rate.toPrecision(3)}/s`;
}

function pauseOrResume(row, text = "❚❚ Pause …") {
  const called = row.name.slice(0, 60);
  if (row.paused_at) return actButton("Resume …", `Resume ${called}`, "resume-queue", { queue: row.name }, { label: `resume ${called}` });
  return actButton(text, `Pause ${called}`, "pause-queue", { queue: row.name }, { label: `pause ${called}` });
}

function queueDetail(params, row) {
  const back = h("a", { href: link("jobs", { ...params, queue: "" }) }, "close");
  const title = params.queue.length > 80 ? "Queue" : `Queue ${params.queue}`;
  if (!row) return section(title, { class: "wide detail", id: "detail", aside: back }, h("p", { class: "dim" }, "There is no queue of this name: the first runner that has it makes it."));
  const isNamed = !row.name.endsWith(":*");
  return section(title, { class: "wide detail", id: "detail", aside: back },
    terms([
      ["state", queueState(row)],
      ["waiting", [count(row.waiting), row.oldest_s !== null && `, the oldest for ${duration(row.oldest_s)}`]],
      ["expected", row.expected_wait_s !== null && `none waits longer than ${duration(row.expected_wait_s)}`],
      ["running", row.concurrency === null ? count(row.running) : `${count(row.running)} of ${count(row.concurrency)}`],
      ["limits", limits(row)],
      ["scheduled", row.scheduled > 0 && count(row.scheduled)],
      ["parked", row.parked > 0 && count(row.parked)],
      ["dead", row.dead > 0 && count(row.dead)],
      ["group", name(row.group)],
      ["jobs", isNamed && [h("a", { href: link("jobs", { filter: `queue:${quoted(row.name)}`, queue: row.name }) }, "all that are not over"), row.dead > 0 && [", ", h("a", { href: link("jobs", { filter: `queue:${quoted(row.name)} state:dead`, queue: row.name }) }, "dead ones")]]],
      ["held by", row.runners.length ? row.runners.map((each, at) => [at ? ", " : "", runner(each)]) : "nobody"],
    ]),
    acts(pauseOrResume(row), isNamed && row.is_set && actButton("Reset the limits …", `Reset the limits of ${row.name.slice(0, 60)}`, "limits", { queue: row.name, reset: true })),
    isNamed && mayAct() && limitForm(row));
}

let limitProblem = { queue: null, text: "" };

/** Limits, to be set until they are reset. */
function limitForm(row) {
  const field = (id, label, value) => h("p", { class: "field", key: id }, h("label", { for: id }, label), h("input", { id, name: id, value: value ?? "", placeholder: "no limit", autocomplete: "off", size: "12" }));
  const read = (form) => {
    const given = new FormData(form);
    const whole = (called) => {
      const text = given.get(called).trim();
      if (text === "") return null;
      if (!/^[0-9]{1,9}$/.test(text)) throw new Error(`${called.replace("_", " ")} is no whole number`);
      return Number(text);
    };
    return { queue: row.name, concurrency: whole("concurrency"), partition_concurrency: whole("partition_concurrency"), rate: given.get("rate").trim() || null };
  };
  const submit = (event) => {
    event.preventDefault();
    try {
      const body = read(event.target);
      limitProblem = { queue: null, text: "" };
      confirm({ title: `Limit ${row.name.slice(0, 60)}`, name: "limits", body });
    } catch (error) {
      limitProblem = { queue: row.name, text: error.message };
      app.invalidate();
    }
  };
  return h("details", { class: "more", key: `limits-${row.name}` },
    h("summary", null, "Change the limits"),
    h("form", { onsubmit: submit },
      field("concurrency", "at once", row.concurrency),
      field("partition_concurrency", "at once of a partition", row.partition_concurrency),
      field("rate", "starts, as in 50/s", row.rate === null ? null : rateText(row.rate).replaceAll(",", "")),
      limitProblem.queue === row.name && h("p", { class: "failed", role: "alert" }, state("bad", limitProblem.text)),
      h("button", { type: "submit" }, "Limit …")));
}

// ── jobs ────────────────────────────────────────────────────────────────────────────────────────────────────────────

/** The filter of the jobs that died for one reason. */
export function jobGroupFilter(row) {
  return [`state:dead task:${quoted(row.what)}`, row.error && `error:${quoted(row.error.split("\n")[0].slice(0, 80))}`].filter(Boolean).join(" ");
}

function groups(seen) {
  return table({
    label: "dead jobs by failure",
    rows: seen.failures,
    key: (row) => `${row.what}/${row.error}`,
    columns: [
      { title: "Task", cell: (row) => h("a", { class: "primary", href: link("jobs", { filter: jobGroupFilter(row) }) }, name(row.what, 60)) },
      { title: "Count", class: "number", cell: (row) => `${count(row.count)}×` },
      { title: "Error", class: "grow", cell: (row) => h("span", { class: "clip" }, words(row.error)) },
      { title: "First", cell: (row) => time(row.first_at) },
      { title: "Last", cell: (row) => time(row.last_at) },
      ...(mayAct() ? [{ title: "Acts", class: "right", cell: (row) => h("div", { class: "acts" },
        actButton(`Retry ${count(row.count)} …`, "Retry dead jobs", "retry-jobs", { filter: parseFilter(jobGroupFilter(row), JOBS).given }, { label: `retry ${row.count} of ${row.what}` })) }] : []),
    ],
  });
}

function list(params, filter) {
  const { given, problem } = parseFilter(filter, JOBS);
  if (problem) return h("p", { class: "failed" }, state("warn", problem));
  if (!settled("jobs", filter)) return loading("jobs");
  const stamp = String(Math.floor(now() / 3_000));
  return asked(use(address("jobs", { ...given, after: params.after, limit: 50 }), stamp), "jobs", (data) => {
    const found = data.jobs ?? [];
    const ids = found.filter((row) => selected.has(row.id)).map((row) => row.id);
    const coarse = OVER.includes(given.state) && !given.error && !given.key;
    return [
      mayAct() && found.length > 0 && (coarse || given.state === "dead" || ids.length > 0) && h("div", { class: "acts bulk" },
        ids.length > 0 && actButton(`Retry ${ids.length} selected …`, "Retry jobs", "retry-jobs", () => ({ ids }), { after: () => selected.clear() }),
        given.state === "dead" && actButton("Retry all that match …", "Retry jobs", "retry-jobs", { filter: given }),
        coarse && actButton("Purge all that match …", "Purge jobs", "purge-jobs", { filter: given }, { danger: true })),
      table({
        label: "jobs",
        rows: found,
        key: (row) => row.id,
        selected: params.id,
        hold: true,
        columns: [
          { title: "Job", cell: (row) => [mayAct() && h("input", { type: "checkbox", key: "box", checked: selected.has(row.id), "aria-label": `select ${row.id}`, onchange: (event) => { event.target.checked ? selected.add(row.id) : selected.delete(row.id); app.invalidate(); } }), " ", h("a", { class: "primary", href: link("jobs", { ...params, id: row.id }) }, name(row.task, 60))] },
          { title: "Queue", class: "extra", cell: (row) => name(row.queue, 40) },
          { title: "State", cell: jobState },
          { title: "Tags", class: "extra", cell: (row) => tagged(row.tags ?? {}) },
          { title: "Sent", cell: (row) => time(row.sent_at) },
          { title: "Failed", class: "number", cell: (row) => (row.failures ? `${row.failures}×` : "") },
          { title: "Remark", class: "grow", cell: remark },
        ],
        empty: filter ? h("p", { class: "dim" }, "No job matches this filter.") : empty("No jobs wait or run. A task is sent as one:", 'await cluster.send(send_email.job("ann@example.org"))'),
      }),
      data.more && found.length > 0 && h("p", null, h("a", { href: link("jobs", { ...params, after: found.at(-1).id }) }, "older ones")),
      params.after && h("p", null, h("a", { href: link("jobs", { ...params, after: "" }) }, "back to the newest")),
    ];
  });
}

function jobState(row) {
  return state(KINDS[row.state] ?? "off", row.cancelling && row.state === "running" ? "being cancelled" : row.state);
}

function remark(row) {
  if (row.state === "running") return [runner(row.runner), row.progress && [" ", progress(row.progress)]];
  if (row.state === "scheduled") return [row.failures ? "again " : "due ", time(row.due_at)];
  if (row.state === "parked") return "no runner has its task";
  return row.error && h("span", { class: "clip" }, words(row.error));
}

/** A bar where the total is known, and the figures as text in any case. */
function progress({ done, total, note }) {
  const text = `${note ? `${note} ` : ""}${count(done)}${total === null ? "" : ` of ${count(total)}`}`;
  return h("span", { class: "nowrap" }, total > 0 && [h("meter", { min: "0", max: String(total), value: String(Math.min(done, total)), "aria-label": "progress" }), " "], words(text));
}

/** `order=7, tenant=acme`; null without tags. */
function tagged(tags) {
  const all = Object.entries(tags);
  return all.length ? all.map(([tag, value], at) => [at ? ", " : "", h("a", { key: tag, href: link("jobs", { filter: `tag:${quoted(`${tag}=${value}`)}` }) }, name(`${tag}=${value}`, 40))]) : null;
}

// ── one job ─────────────────────────────────────────────────────────────────────────────────────────────────────────

function detail(params) {
  const resource = use(address("job", { id: params.id }), String(Math.floor(now() / 2_000)));
  const back = h("a", { href: link("jobs", { ...params, id: "" }) }, "close");
  return section(`Job ${params.id.slice(0, 40)}`, { class: "wide detail", id: "detail", aside: back }, asked(resource, "the job", ({ job }) => shown(job)));
}

function shown(job) {
  const dead = job.state === "dead";
  const ended = job.ended_at && Date.parse(job.ended_at);
  const took = job.claimed_at && (job.state === "running" || ended) ? ((ended || now()) - Date.parse(job.claimed_at)) / 1000 : null;
  return [
    h("p", null, name(job.task), " ", dead ? state("bad", `dead after ${counted(job.failures, "failed attempt")}`) : jobState(job), job.progress && !ended && [" ", progress(job.progress)]),
    terms([
      ["queue", h("a", { href: link("jobs", { queue: job.queue }) }, name(job.queue))],
      ["partition", job.partition && name(job.partition)],
      ["key", job.key && name(job.key)],
      ["tags", tagged(job.tags ?? {})],
      ["priority", job.priority !== 0 && String(job.priority)],
      ["sent", time(job.sent_at)],
      ["due", job.state === "scheduled" && time(job.due_at)],
      ["started", job.claimed_at && [time(job.claimed_at), " on ", runner(job.runner)]],
      [ended ? "took" : "for", took !== null && duration(took)],
      ["ended", job.ended_at && time(job.ended_at)],
      ["runners lost with it", job.lost ? count(job.lost) : null],
      ["trace", job.trace_id && name(job.trace_id)],
      ["failure", job.failure && words(job.failure)],
    ]),
    acts(
      dead && actButton("Retry …", "Retry the job", "retry-jobs", { ids: [job.id] }),
      !ended && actButton("Cancel …", "Cancel the job", "cancel-job", { id: job.id }, { danger: true }),
    ),
    h("h3", null, "Arguments"),
    job.arguments === undefined ? h("p", { class: "dim" }, "The arguments are hidden by a setting.") : dead && mayAct() ? editor(job) : block(json(job.arguments), "arguments"),
    job.reply !== null && job.reply !== undefined && [h("h3", null, "Result"), block(json(job.reply), "result")],
    h("h3", null, "Failed attempts"),
    table({
      label: "failed attempts",
      rows: (job.errors ?? []).map((row, index) => ({ ...row, index })),
      key: (row) => row.index,
      columns: [
        { title: "#", class: "number", cell: (row) => row.number ?? row.index + 1 },
        { title: "When", cell: (row) => time(row.at) },
        { title: "Error", class: "grow", cell: attempt },
      ],
      empty: h("p", { class: "dim" }, "None."),
    }),
  ];
}

let edited = { id: null, problem: "" };

/** The arguments of a dead job, to be sent again as a new one. */
function editor(job) {
  const read = () => {
    const text = document.getElementById("arguments").value;
    try {
      edited = { id: job.id, problem: "" };
      return { id: job.id, arguments: JSON.parse(text) };
    } catch (error) {
      edited = { id: job.id, problem: `this is no JSON: ${error.message}` };
      app.invalidate();
      return null;
    }
  };
  return h(
    "div",
    { class: "editor", key: `editor-${job.id}` },
    h("label", { for: "arguments", class: "dim" }, "Change them and send the job again, as a new one; this one stays as it is."),
    h("textarea", { id: "arguments", rows: String(Math.min(16, json(job.arguments).split("\n").length + 1)), spellcheck: "false", value: JSON.stringify(job.arguments, null, 2) }),
    edited.id === job.id && edited.problem && h("p", { class: "failed", role: "alert" }, state("bad", edited.problem)),
    actButton("Send as a new job …", "Send the changed job", "edit-job", read),
  );
}

/** The first lines of the error of an attempt, which opens to all there is. */
function attempt({ error, traceback }) {
  if (!traceback && error.length <= ERROR_MOST) return words(error);
  return h("details", null, h("summary", null, h("span", { class: "few" }, words(error))), block(traceback || error, "traceback"));
}
