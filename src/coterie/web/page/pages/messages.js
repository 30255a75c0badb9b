// Messages: how many wait, run and died; failures grouped; a list by filter; one message, and what can be done about it.

import { actButton } from "../acts.js";
import { address } from "../api.js";
import { app, mayAct, now, page } from "../app.js";
import { h } from "../dom.js";
import { parseFilter } from "../filter.js";
import { count, counted, duration, json } from "../format.js";
import { settled, use } from "../resource.js";
import { go, link } from "../router.js";
import { compare, rows } from "../store.js";
import { acts, asked, block, empty, filterField, loading, name, section, state, table, terms, time, words } from "../ui.js";
import { groupFilter } from "./overview.js";

export default { id: "messages", title: "Messages", pages: ["overview", "messages"], view };

const KINDS = { dead: "bad", done: "good", running: "busy", waiting: "off", scheduled: "off", pending: "off" };
const ERROR_MOST = 400;
const selected = new Set();

function view({ params }) {
  const seen = page("messages");
  if (!seen) return loading("messages");
  const filter = params.filter ?? "";
  return h(
    "div",
    { class: "grid" },
    params.id !== undefined && detail(params),
    tiles(seen),
    seen.failures.length > 0 && section("Dead, by failure", { class: "wide" }, groups(seen)),
    seen.incoming.length > 0 && section("From SQL, not taken in yet", { class: "wide" }, incoming(seen)),
    seen.overdue.size > 0 && section("Overdue", { class: "wide" }, overdue(seen)),
    section("Messages", { class: "wide" },
      filterField("filter", filter, (value) => retype(params, value), { placeholder: "type:Account state:dead error:Timeout key:order-7", help: "qualifiers: type id method state error key tag older" }),
      list(params, filter)),
  );
}

function retype(params, value) {
  selected.clear();
  go("messages", { ...params, filter: value, after: "" }, { replace: true });
}

function tiles(seen) {
  const tile = (title, figure, filter) => h("a", { class: "tile", key: title, href: link("messages", { filter }) }, h("span", { class: "figure" }, count(figure)), h("span", { class: "dim" }, title));
  return h(
    "nav",
    { class: "tiles wide", "aria-label": "messages by state" },
    tile("calls waiting", seen.waiting, "state:waiting"),
    tile("calls running", seen.running, "state:running"),
    tile("dead", seen.dead, "state:dead"),
    tile("shards with overdue ones", seen.overdue.size, "state:waiting"),
  );
}

function groups(seen) {
  return table({
    label: "dead messages by failure",
    rows: seen.failures,
    key: (row) => `${row.what}/${row.error}`,
    columns: [
      { title: "What", cell: (row) => h("a", { class: "primary", href: link("messages", { filter: groupFilter(row) }) }, name(row.what, 60)) },
      { title: "Count", class: "number", cell: (row) => `${count(row.count)}×` },
      { title: "Error", class: "grow", cell: (row) => h("span", { class: "clip" }, words(row.error)) },
      { title: "First", cell: (row) => time(row.first_at) },
      { title: "Last", cell: (row) => time(row.last_at) },
      ...(mayAct() ? [{ title: "Acts", class: "right", cell: (row) => h("div", { class: "acts" },
        actButton(`Retry ${count(row.count)} …`, "Retry dead messages", "retry", { filter: chosen(groupFilter(row)) }, { label: `retry ${row.count} of ${row.what}` }),
        actButton("Purge …", "Purge dead messages", "purge", { filter: chosen(groupFilter(row)) }, { danger: true, label: `purge ${row.count} of ${row.what}` })) }] : []),
    ],
  });
}

function chosen(filter) {
  return parseFilter(filter).given;
}

function overdue(seen) {
  return table({
    label: "the most overdue message of each shard",
    rows: rows(seen.overdue).sort((one, other) => other.late_s - one.late_s),
    key: (row) => row.id,
    columns: [
      { title: "Message", cell: (row) => h("a", { class: "primary", href: link("messages", { id: row.id }) }, name(row.what, 80)) },
      { title: "Shard", cell: (row) => h("a", { href: link("shards", { shard: row.shard }) }, name(row.shard)) },
      { title: "Overdue", class: "number", cell: (row) => state("warn", duration(row.late_s)) },
    ],
  });
}

function incoming(seen) {
  return table({
    label: "calls from SQL that no runner has taken in, by type",
    rows: seen.incoming,
    key: (row) => row.what,
    columns: [
      { title: "To", cell: (row) => h("a", { class: "primary", href: link("messages", { id: row.id }) }, name(row.what, 80)) },
      { title: "Count", class: "number", cell: (row) => `${count(row.rows)}×` },
      { title: "Oldest waits for", class: "number", cell: (row) => state("warn", duration(row.waited_s)) },
    ],
  });
}

function list(params, filter) {
  const { given, problem } = parseFilter(filter);
  if (problem) return h("p", { class: "failed" }, state("warn", problem));
  if (!settled("messages", filter)) return loading("messages");
  const { id, ...rest } = given;
  const query = { ...rest, entity: id, after: params.after, limit: 50 };
  const stamp = String(Math.floor(now() / 5_000));
  return asked(use(address("messages", query), stamp), "messages", (data) => {
    const found = data.messages ?? [];
    const ids = found.filter((row) => selected.has(row.id)).map((row) => row.id);
    const ended = given.state === "dead" || given.state === "done";
    return [
      mayAct() && found.length > 0 && (ended || ids.length > 0) && h("div", { class: "acts bulk" },
        ids.length > 0 && [
          actButton(`Retry ${ids.length} selected …`, "Retry messages", "retry", () => ({ ids }), { after: () => selected.clear() }),
          actButton(`Purge ${ids.length} selected …`, "Purge messages", "purge", () => ({ ids }), { danger: true, after: () => selected.clear() }),
        ],
        given.state === "dead" && actButton("Retry all that match …", "Retry messages", "retry", { filter: given }),
        ended && actButton("Purge all that match …", "Purge messages", "purge", { filter: given }, { danger: true })),
      table({
        label: "messages",
        rows: found,
        key: (row) => row.id,
        selected: params.id,
        hold: true,
        columns: [
          { title: "Message", cell: (row) => [mayAct() && h("input", { type: "checkbox", key: "box", checked: selected.has(row.id), "aria-label": `select ${row.id}`, onchange: (event) => { event.target.checked ? selected.add(row.id) : selected.delete(row.id); app.invalidate(); } }), " ", h("a", { class: "primary", href: link("messages", { ...params, id: row.id }) }, name(`${row.entity}.${row.method}`, 80))] },
          { title: "State", cell: (row) => state(KINDS[stateOf(row)] ?? "off", stateOf(row)) },
          { title: "Key", cell: (row) => row.key && name(row.key, 40) },
          { title: "Sent", cell: (row) => time(row.sent_at) },
          { title: "Failed", class: "number", cell: (row) => (row.attempts ? `${row.attempts}×` : "") },
          { title: "Last error", class: "grow", cell: (row) => row.errors?.length > 0 && h("span", { class: "clip" }, words(row.errors.at(-1).error)) },
        ],
        empty: filter ? h("p", { class: "dim" }, "No message matches this filter.") : empty("No messages are stored. Persisted calls are:", "@rpc(persisted=True)\nasync def charge(self, order_id: str) -> int: …"),
      }),
      Boolean(data.silent?.length) && h("p", { class: "dim" }, state("warn", "no answer from "), name(data.silent.join(", ")), ": whether a message runs there is unknown."),
      data.more && found.length > 0 && h("p", null, h("a", { href: link("messages", { ...params, after: found.at(-1).id }) }, "older ones")),
      params.after && h("p", null, h("a", { href: link("messages", { ...params, after: "" }) }, "back to the newest")),
    ];
  });
}

function stateOf(row) {
  if (row.state) return row.state;
  if (row.status !== "pending") return row.status;
  return row.due_at && Date.parse(row.due_at) > now() && compare(row.due_at, row.sent_at) > 0 ? "scheduled" : "waiting";
}

// ── one message ─────────────────────────────────────────────────────────────────────────────────────────────────────

let edited = { id: null, problem: "" };

function detail(params) {
  const resource = use(address("message", { id: params.id }), String(Math.floor(now() / 3_000)));
  const back = h("a", { href: link("messages", { ...params, id: "" }) }, "close");
  return section(`Message ${params.id.slice(0, 40)}`, { class: "wide detail", id: "detail", aside: back }, asked(resource, "the message", ({ message, incoming }) => (incoming ? coming(incoming) : shown(params, message))));
}

/** What SQL has sent, while no runner has taken it in. */
function coming(call) {
  const workflow = call.kind === "workflow";
  return [
    h("p", null, workflow ? "workflow " : "", name(`${call.type}/${call.entity}`), call.method && `.${call.method}`, " ", state("warn", "waits to be taken in")),
    terms([["key", call.key && name(call.key)], ["sent", time(call.sent_at)]]),
    h("p", { class: "dim" }, `It was sent from SQL. A runner whose program has ${workflow ? "workflow" : "entity"} `, name(call.type), " takes it in within a second."),
  ];
}

/** `order=7, tenant=acme`; null without tags. */
function tagged(tags) {
  const all = Object.entries(tags);
  return all.length ? all.map(([tag, value], at) => [at ? ", " : "", name(`${tag}=${value}`, 60)]) : null;
}

function shown(params, message) {
  const [type, id] = parts(message.entity);
  const dead = message.status === "dead";
  const values = message.arguments ?? message.payload;
  return [
    h("p", null, h("a", { href: link("entities", { type, id }) }, name(message.entity)), ".", name(message.method), " ", state(KINDS[stateOf(message)] ?? "off", dead ? `dead after ${counted(message.attempts, "failed attempt")}` : stateOf(message))),
    terms([
      ["key", message.key && name(message.key)],
      ["tags", tagged(message.tags ?? {})],
      ["shard", message.shard && h("a", { href: link("shards", { shard: message.shard }) }, name(message.shard))],
      ["sent", time(message.sent_at)],
      ["due", message.due_at && message.status === "pending" && time(message.due_at)],
      ["ended", message.completed_at && time(message.completed_at)],
      ["trace", message.trace_id && name(message.trace_id)],
      ["runners lost with it", message.losses ? count(message.losses) : null],
      ["failure", message.failure && words(message.failure)],
    ]),
    acts(
      dead && actButton("Retry …", "Retry the message", "retry", { ids: [message.id] }),
      (dead || message.status === "done") && actButton("Purge …", "Purge the message", "purge", { ids: [message.id] }, { danger: true, after: () => go("messages", { ...params, id: "" }, { replace: true }) }), // before it is read again
    ),
    h("h3", null, "Arguments"),
    values === undefined ? h("p", { class: "dim" }, "The arguments are hidden by a setting.") : dead && mayAct() ? editor(message, values) : block(json(values), "arguments"),
    message.reply !== null && message.reply !== undefined && [h("h3", null, "Result"), block(json(message.reply), "result")],
    h("h3", null, "Failed attempts"),
    table({
      label: "failed attempts",
      rows: (message.errors ?? []).map((row, index) => ({ ...row, index })),
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

/** The first lines of the error of an attempt, which opens to all there is. */
function attempt({ error, traceback }) {
  if (!traceback && error.length <= ERROR_MOST) return words(error);
  return h("details", null, h("summary", null, h("span", { class: "few" }, words(error))), block(traceback || error, "traceback"));
}

function parts(entity) {
  const slash = entity.indexOf("/");
  return slash < 0 ? [entity, ""] : [entity.slice(0, slash), entity.slice(slash + 1)];
}

/** The arguments of a dead letter, to be sent again as a new message. */
function editor(message, values) {
  const read = () => {
    const text = document.getElementById("arguments").value;
    try {
      edited = { id: message.id, problem: "" };
      return { id: message.id, arguments: JSON.parse(text) };
    } catch (error) {
      edited = { id: message.id, problem: `this is no JSON: ${error.message}` };
      app.invalidate();
      return null;
    }
  };
  return h(
    "div",
    { class: "editor", key: `editor-${message.id}` },
    h("label", { for: "arguments", class: "dim" }, "Change them and send the message again, as a new one; this one stays as it is."),
    h("textarea", { id: "arguments", rows: String(Math.min(16, json(values).split("\n").length + 1)), spellcheck: "false", value: JSON.stringify(values, null, 2) }),
    edited.id === message.id && edited.problem && h("p", { class: "failed", role: "alert" }, state("bad", edited.problem)),
    actButton("Send as a new message …", "Send the changed message", "edit", read),
  );
}
