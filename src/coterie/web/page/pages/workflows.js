// Workflows: runs, one with its steps on a line of time, and what it waits for.

import { actButton } from "../acts.js";
import { address } from "../api.js";
import { app, mayAct, now, page } from "../app.js";
import { Axis } from "../charts.js";
import { h } from "../dom.js";
import { absolute, count, counted, duration, json } from "../format.js";
import { use } from "../resource.js";
import { go, link } from "../router.js";
import { fields, valueOf } from "../schema.js";
import { compare, rows } from "../store.js";
import { acts, asked, block, copy, empty, filterField, loading, name, runner, section, select, state, table, terms, time, words } from "../ui.js";

export default { id: "workflows", title: "Workflows", pages: ["overview", "workflows"], view };

const KINDS = { running: "busy", suspended: "off", done: "good", failed: "bad", interrupted: "warn" };
const STATUSES = [["", "any"], ["running", "running"], ["suspended", "waiting"], ["done", "done"], ["failed", "failed"], ["interrupted", "interrupted"]];

function statusOf(row) {
  const word = row.stuck ? "stuck" : row.status === "suspended" ? "waiting" : row.status;
  return state(row.stuck ? "warn" : KINDS[row.status] ?? "off", row.interrupting && !row.ended_at ? `${word}, being interrupted` : word, row.status === "suspended" && !row.stuck ? "○" : undefined);
}

function view({ params }) {
  const seen = page("workflows");
  if (!seen) return loading("workflows");
  const all = rows(seen).sort((one, other) => compare(other.changed_at, one.changed_at) || compare(one.id, other.id));
  const text = (params.filter ?? "").toLowerCase();
  const found = all.filter((row) => (!params.status || row.status === params.status) && `${row.name}/${row.id}`.toLowerCase().includes(text));
  const line = all.find((row) => row.name === params.name && row.id === params.id);
  return h(
    "div",
    { class: "grid" },
    params.name !== undefined && params.id !== undefined && detail(params, line),
    section("Runs", { class: "wide" },
      h("div", { class: "tools" },
        filterField("filter", params.filter ?? "", (value) => go("workflows", { ...params, filter: value }, { replace: true }), { placeholder: "checkout/order-7" }),
        select("status", params.status ?? "", STATUSES, (value) => go("workflows", { ...params, status: value }))),
      table({
        label: "runs of workflows",
        rows: found,
        key: (row) => `${row.kind}/${row.name}/${row.id}`,
        selected: line && `${line.kind}/${line.name}/${line.id}`,
        hold: true,
        columns: [
          { title: "Run", cell: (row) => h("a", { class: "primary", href: link("workflows", { ...params, name: row.name, id: row.id }) }, name(row.name, 40), "/", name(row.id, 40)) },
          ...(found.some((row) => row.kind !== "workflow") ? [{ title: "Kind", cell: (row) => row.kind }] : []),
          { title: "State", cell: statusOf },
          { title: "Steps", class: "number", cell: (row) => count(row.steps) },
          { title: "Started", cell: (row) => time(row.started_at) },
          { title: "Changed", class: "extra", cell: (row) => time(row.changed_at) },
          ...(found.some((row) => row.wake_at) ? [{ title: "Wakes", cell: (row) => row.wake_at && time(row.wake_at) }] : []),
          { title: "Error", class: "grow", cell: (row) => (row.error || row.stuck) && h("span", { class: "clip" }, words(row.error || row.stuck)) },
        ],
        empty: all.length ? h("p", { class: "dim" }, "No run matches.") : empty("No workflow has run yet. Add one, and start it:", "@cluster.workflow\nasync def checkout(workflow: Workflow, order: Order) -> str: …\n\nawait cluster.start_workflow(checkout, order, id=\"order-7\")"),
      })),
  );
}

function detail(params, line) {
  const stamp = `${line?.changed_at}/${line?.status}/${Math.floor(now() / 5_000)}`;
  const resource = use(address("workflow", { name: params.name, id: params.id }), stamp);
  const title = `${params.name}/${params.id}`;
  const back = h("a", { href: link("workflows", { ...params, name: "", id: "" }) }, "close");
  return section(title.length > 80 ? "Run" : `Run ${title}`, { class: "wide detail", id: "detail", aside: back }, asked(resource, "the run", (data) => shown(params, line ?? data.line, data)));
}

function shown(params, line, data) {
  const title = `${params.name}/${params.id}`;
  const open = !line.ended_at && (line.kind ?? "workflow") === "workflow";
  return [
    title.length > 80 && h("p", null, words(title)),
    terms([
      ["state", statusOf(line)],
      ["started", time(line.started_at)],
      ["ended", line.ended_at && [time(line.ended_at), `, took ${duration((Date.parse(line.ended_at) - Date.parse(line.started_at)) / 1000)}`]],
      ["wakes", line.wake_at && !line.ended_at && time(line.wake_at)],
      ["retried", data.retries > 0 && counted(data.retries, "time")],
      ["stuck", line.stuck && words(line.stuck)],
      ["error", (data.error ?? line.error) && words(data.error ?? line.error)],
    ]),
    (data.children ?? []).length > 0 && [h("h3", null, "Children"), h("p", { class: "children" }, data.children.map((child, index) => h("span", { key: `${index}` }, index > 0 && ", ", h("a", { href: link("workflows", { ...params, name: child.name, id: child.id }) }, name(child.name, 40), "/", name(child.id, 40)), ` ${child.status ?? "deleted"}`)))],
    (data.published ?? []).length > 0 && [h("h3", null, "Published"), publishedTable(data.published)],
    (data.messages ?? []).length > 0 && [h("h3", null, "Messages that wait"), terms(data.messages.map((each) => [each.name, [count(each.count), " since ", time(each.since_at)]]))],
    line.status === "failed" && acts(actButton("Retry …", "Retry " + title.slice(0, 60), "retry-workflow", { workflow: params.name, id: params.id }, { primary: true })),
    open && acts(
      actButton("Interrupt …", "Interrupt " + title.slice(0, 60), "interrupt", { workflow: params.name, id: params.id }, { danger: true }),
      actButton("Resume …", "Resume " + title.slice(0, 60), "resume-workflow", { workflow: params.name, id: params.id }),
    ),
    (data.waits ?? []).length > 0 && [h("h3", null, "Waits for"), data.waits.map((wait, index) => waitOf(wait, index))],
    h("h3", null, "Steps"),
    data.steps?.length || !line.ended_at ? steps(data.steps ?? []) : h("p", { class: "dim" }, "This run has made no steps."),
    data.input !== undefined && data.input !== null && [h("h3", null, "Input"), block(json(data.input), "input")],
    (line.kind ?? "workflow") === "workflow" && mayAct() && [open && sendForm(params), forkForm(params, data.steps ?? [])],
    data.result !== undefined && data.result !== null && [h("h3", null, "Result"), block(json(data.result), "result")],
  ];
}

function publishedTable(all) {
  return table({
    label: "published",
    rows: all,
    key: (row) => row.name,
    columns: [
      { title: "Name", cell: (row) => name(row.name, 80) },
      { title: "Number", class: "number", cell: (row) => count(row.number) },
      { title: "Published", cell: (row) => time(row.at) },
      { title: "Value", class: "grow", cell: (row) => (row.value === undefined ? "" : words(JSON.stringify(row.value).slice(0, 200))) },
    ],
  });
}

// ── acts with a form ────────────────────────────────────────────────────────────────────────────────────────────────

let wrong = { form: null, text: "" };

/** A form for a schema, whose button asks for an act with what it holds. */
function formOf(params, label, schema, button, act, bodyOf) {
  const path = act;
  const read = () => {
    try {
      const body = { workflow: params.name, id: params.id, ...bodyOf(valueOf(schema, { path })) };
      wrong = { form: null, text: "" };
      return body;
    } catch (error) {
      wrong = { form: act, text: error.message };
      app.invalidate();
      return null;
    }
  };
  return h("details", { key: act }, h("summary", null, label), h("form", { onsubmit: (event) => event.preventDefault() },
    fields(schema, { path, label }),
    wrong.form === act && h("p", { class: "failed", role: "alert" }, state("bad", wrong.text)),
    actButton(button, label, act, read)));
}

const MESSAGE = { type: "object", properties: { name: { type: "string", minLength: 1 }, message: {} }, required: ["name", "message"] };

function sendForm(params) {
  return formOf(params, "Send a message", MESSAGE, "Send …", "send-to-workflow", (given) => ({ name: given.name, value: given.message }));
}

function forkForm(params, all) {
  const names = [...new Set(all.filter((step) => step.branch === "" && step.kind !== "compensation").map((step) => step.name))];
  if (!names.length) return null;
  const schema = { type: "object", properties: { before: { enum: names }, id: { type: "string", minLength: 1, description: "the id of the new run" } }, required: ["before", "id"] };
  return formOf(params, "Fork this run", schema, "Fork …", "fork-workflow", (given) => ({ before: given.before, new_id: given.id }));
}

function steps(all) {
  if (!all.length) return h("p", { class: "dim" }, "No step is stored yet.");
  return [all.some((step) => step.began_at) ? line(all) : inOrder(all), stepTable(all)];
}

function kindOf(step) {
  if (step.error || step.status === "failed") return "failed";
  if (step.status === "done") return "ran";
  return step.status === "running" ? "running" : "waits";
}

function isWait(step) {
  return step.kind !== "step" && step.kind !== "compensation";
}

const GLYPHS = { failed: "✗", ran: "✓", running: "◐", waits: "○" };

/** `1.1s ✓ 2 attempts`: the row of text beside the bar. */
function said(step) {
  const began = step.began_at && Date.parse(step.began_at);
  const took = began ? duration(((step.ended_at ? Date.parse(step.ended_at) : now()) - began) / 1000) : null;
  return [took && `${took} `, `${GLYPHS[kindOf(step)]} ${step.status}`, step.attempts > 1 && ` · ${counted(step.attempts, "attempt")}`];
}

/** Steps on a line of time: the length is time, what only waits is hollow. */
function line(all) {
  const known = all.filter((step) => step.began_at);
  const ends = known.map((step) => (step.ended_at ? Date.parse(step.ended_at) : now()));
  const axis = new Axis(Math.min(...known.map((step) => Date.parse(step.began_at))), Math.max(...ends));
  return h("div", { class: "lanes" },
    h("div", { class: "lane-row", key: " scale" }, h("span", null), axis.scale(undefined, 4)),
    all.map((step, index) =>
      h("div", { class: "lane-row", key: `${index}` },
        h("span", { class: "lane-name" }, name(step.name, 60)),
        axis.lane(`${step.name.slice(0, 60)}: ${said(step).filter(Boolean).join("")}`, step.began_at && bar(axis, step)),
        h("span", { class: "lane-text dim" }, step.began_at ? said(step) : `${step.status}, when is not stored`))),
    h("p", { class: "dim key-line", key: " key" }, state("good", "ran", "▮"), " ", state("bad", "failed", "▮"), " ", state("busy", "running", "▮"), " ", state("off", "waits", "▯"), ". Each bar is as long as the step took, its attempts and their pauses included."));
}

function bar(axis, step) {
  const kind = isWait(step) && kindOf(step) === "ran" ? "waited" : kindOf(step);
  const until = step.ended_at ? Date.parse(step.ended_at) : now();
  return axis.bar(Date.parse(step.began_at), until, `tick ${kind}`, `${step.name.slice(0, 100)}: ${said(step).filter(Boolean).join("")}, began ${absolute(step.began_at)}${step.runner ? ` on ${step.runner}` : ""}`);
}

/** Steps of an older version one after another: it is not stored when they ran, so their order is drawn. */
function inOrder(all) {
  const axis = new Axis(0, all.length);
  return h("div", { class: "lanes" },
    all.map((step, index) =>
      h("div", { class: "lane-row", key: `${index}` },
        h("span", { class: "lane-name" }, name(step.name, 60)),
        axis.lane(`${step.name.slice(0, 60)}: ${step.status}`, axis.bar(index, kindOf(step) === "waits" ? all.length : index + 1, `tick ${kindOf(step)}`, `${step.name.slice(0, 100)}: ${step.status}`)),
        h("span", { class: "lane-text dim" }, step.status))),
    h("p", { class: "dim key-line", key: " key" }, "In the order of the steps; when each of them ran is not stored."));
}

function stepTable(all) {
  const column = (field, made) => (all.some((step) => step[field] !== null && step[field] !== undefined) ? [made] : []);
  return table({
    label: "steps",
    rows: all.map((step, index) => ({ ...step, index })),
    key: (row) => row.index,
    columns: [
      { title: "Step", cell: (row) => name(row.name, 80) },
      { title: "State", cell: (row) => [state({ failed: "bad", ran: "good", running: "busy", waits: "off" }[kindOf(row)], row.status, GLYPHS[kindOf(row)]), row.due_at && kindOf(row) === "waits" && [" until ", time(row.due_at)]] },
      { title: "Kind", class: "extra", cell: (row) => row.kind },
      ...column("began_at", { title: "Began", cell: (row) => row.began_at && time(row.began_at) }),
      ...column("began_at", { title: "Took", class: "number", cell: (row) => row.began_at && row.ended_at && duration((Date.parse(row.ended_at) - Date.parse(row.began_at)) / 1000) }),
      ...column("attempts", { title: "Attempts", class: "number", cell: (row) => row.attempts && count(row.attempts) }),
      ...column("runner", { title: "On", cell: (row) => row.runner && runner(row.runner) }),
      { title: "Result", class: "grow", cell: (row) => (row.error ? words(row.error) : row.result === undefined || row.result === null ? "" : h("details", null, h("summary", { class: "clip" }, words(JSON.stringify(row.result).slice(0, 80))), block(json(row.result), `result of ${row.name.slice(0, 60)}`))) },
    ],
  });
}

// ── what it waits for ───────────────────────────────────────────────────────────────────────────────────────────────

let problem = { token: null, text: "" };

function waitOf(wait, index) {
  const path = `wait-${index}`;
  const schema = wait.schema ?? {};
  const read = () => {
    try {
      const value = valueOf(schema, { path });
      problem = { token: null, text: "" };
      return { token: wait.token, value };
    } catch (error) {
      problem = { token: wait.token, text: error.message };
      app.invalidate();
      return null;
    }
  };
  return h(
    "div",
    { class: "wait", key: `${wait.kind}/${wait.name}` },
    h("p", null, state("off", `${wait.kind ?? "deferred"} `, "○"), name(wait.name), wait.until_at && [" until ", time(wait.until_at)]),
    !mayAct() && wait.kind === "deferred" && h("p", { class: "dim" }, "Read-only access: this page may look, not resolve."),
    mayAct() && wait.token && [
      h("p", { class: "dim token" }, "token ", h("code", { class: "clip" }, wait.token), " ", copy(wait.token, "Copy")),
      h("form", { class: "resolve", onsubmit: (event) => event.preventDefault() },
        fields(schema, { path, label: "value" }),
        problem.token === wait.token && h("p", { class: "failed", role: "alert" }, state("bad", problem.text)),
        actButton("Resolve …", `Resolve ${wait.name.slice(0, 60)}`, "resolve", read, { primary: true })),
    ],
  );
}
