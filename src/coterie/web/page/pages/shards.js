// One cell for each shard, in the colour and pattern of its owner; cells change as shards move, and earlier moves are replayed.

import { address } from "../api.js";
import { app, colour, now, page, zone } from "../app.js";
import { h, memo } from "../dom.js";
import { clock, count, counted } from "../format.js";
import { before, events, owners as formerOwners } from "../moves.js";
import { use } from "../resource.js";
import { go, link } from "../router.js";
import { compare, rows } from "../store.js";
import { empty, loading, name, runner, section, select, state, table, terms, time } from "../ui.js";

export default { id: "shards", title: "Shards", pages: ["overview", "shards"], view };

const BY = [["id", "id"], ["owner", "owner"]];

function view({ params }) {
  const seen = page("shards");
  if (!seen) return loading("shards");
  const groups = rows(seen.groups, (row) => row.group);
  if (!groups.length) return empty("No shards yet: they are made when the first runner starts.", "coterie run app.py");
  const chosen = groups.find((row) => row.group === params.group) ?? groups.find((row) => row.group === seen.shards.get(params.shard)?.group) ?? groups[0];
  const by = params.by === "owner" ? "owner" : "id";
  const current = rows(seen.shards).filter((row) => row.group === chosen.group);
  const resource = use(address("shards/moves"), `${chosen.newest_epoch}/${Math.floor(now() / 15_000)}`);
  const past = { ...resource.data, events: resource.data ? events(resource.data.moves, current) : [] };
  const place = placeOf(past, params);
  const isNow = place === past.events.length;
  const shards = isNow ? current : before(current, past.events, place);
  const group = isNow ? chosen : summed(chosen, shards);
  shards.sort((one, other) => (by === "owner" ? compare(one.owner ?? "\uffff", other.owner ?? "\uffff") : 0) || one.number - other.number);
  const cell = shards.find((row) => row.shard === params.shard);
  return h(
    "div",
    { class: "grid" },
    section(`Group ${chosen.group}`, { class: "wide", id: "group" },
      h(
        "div",
        { class: "tools" },
        groups.length > 1 && select("group", chosen.group, groups.map((row) => [row.group, row.group]), (group) => go("shards", { ...params, group, shard: "" })),
        select("sort by", by, BY, (value) => go("shards", { ...params, by: value })),
        h("p", { class: "dim" }, isNow ? summary(chosen) : state("warn", `as it was at ${clock(Date.parse(past.events[place - 1]?.at ?? past.since), zone())}`, "◀")),
      ),
      legend(group, params),
      map(shards, { ...params, by }),
      replay(past, place, params),
      cell ? details(cell, isNow ? past : null) : h("p", { class: "dim" }, "Choose a cell to see its owner and epoch; arrow keys move between cells."),
    ),
    section("Owners", { class: "half" }, owners(group, shards)),
    section("Moves", { class: "half" }, resource.data ? listed(past, place, params) : seenMoves()),
  );
}

function summary(group) {
  const parts = [counted(group.shards, "shard"), `${count(group.owned)} owned`, `${count(group.moving)} moving`];
  if (group.balance !== null) parts.push(`balance ${group.balance.toFixed(2)}`);
  parts.push(`epochs ${group.oldest_epoch} to ${group.newest_epoch}`);
  return parts.join(" · ");
}

function legend(group, params) {
  return h(
    "ul",
    { class: "legend", "aria-label": "runners: choose one to dim the others" },
    Object.entries(group.runners).sort(([one], [other]) => compare(one, other)).map(([called, held]) =>
      h(
        "li",
        { key: called },
        h(
          "a",
          { href: link("shards", { ...params, runner: params.runner === called ? "" : called }), class: params.runner === called ? "chosen" : null, "aria-current": params.runner === called ? "true" : null },
          h("span", { class: `swatch hue-${colour(called)}`, "aria-hidden": "true" }), name(called, 40), ` ${count(held)}`,
        ),
      ),
    ),
    h("li", { key: " moving" }, h("span", { class: "cell moving sample", "aria-hidden": "true" }), `moving ${count(group.moving)}`),
    h("li", { key: " none" }, h("span", { class: "cell free sample", "aria-hidden": "true" }), `no owner ${count(group.shards - group.owned)}`),
  );
}

function map(shards, params) {
  const first = shards.some((row) => row.shard === params.shard) ? params.shard : shards[0]?.shard;
  return h(
    "div",
    { class: `map ${shards.length <= 150 ? "few" : shards.length > 1200 ? "many" : ""}`, role: "group", "aria-label": "shards", onkeydown: arrows },
    shards.map((row, index) => {
      const chosen = row.shard === params.shard;
      const begins = params.by === "owner" && index > 0 && shards[index - 1].owner !== row.owner;
      const dimmed = Boolean(params.runner) && params.runner !== row.owner;
      return memo(row.shard, [row, chosen, dimmed, first === row.shard, begins], () => cellOf(row, { chosen, dimmed, reachable: first === row.shard, begins }));
    }),
  );
}

function cellOf(row, { chosen, dimmed, reachable, begins }) {
  const kind = row.state === "moving" ? "moving" : row.owner ? "owned" : "free";
  const text = `${row.shard}, ${row.owner ? `${row.owner}, epoch ${row.epoch}` : "no owner"}${row.state === "moving" ? `, moving to ${row.target ?? "nobody"}` : ""}`;
  return h("button", {
    type: "button", key: `${row.shard}`, title: text, "aria-label": text, "aria-pressed": chosen ? "true" : "false",
    class: `cell ${kind} ${row.owner ? `hue-${colour(row.owner)}` : ""} ${dimmed ? "dimmed" : ""} ${chosen ? "chosen" : ""} ${begins ? "first" : ""}`,
    tabindex: reachable ? "0" : "-1", "data-epoch": row.epoch,
    onclick: () => go("shards", { ...app.route.params, shard: chosen ? "" : row.shard }, { replace: true }),
    onpatch: flash,
    onmount: (node) => { node.epoch = String(row.epoch); },
  });
}

/** A cell that has changed hands is lit for a moment. */
function flash(node) {
  if (node.epoch === node.dataset.epoch) return;
  node.epoch = node.dataset.epoch;
  node.classList.add("changed");
  setTimeout(() => node.classList.remove("changed"), 1500);
}

function arrows(event) {
  const cells = [...event.currentTarget.children];
  const at = cells.indexOf(document.activeElement);
  if (at < 0) return;
  const across = cells.filter((cell) => cell.offsetTop === cells[0].offsetTop).length;
  const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: across, ArrowUp: -across, Home: -at, End: cells.length - 1 - at }[event.key];
  if (step === undefined) return;
  event.preventDefault();
  cells[Math.min(cells.length - 1, Math.max(0, at + step))].focus();
}

function details(row, past) {
  const former = formerOwners(past?.moves ?? [], row.shard);
  return h(
    "div",
    { class: "detail", "aria-live": "off" },
    h("h3", null, name(row.shard)),
    terms([
      ["owner", runner(row.owner)],
      ["epoch", count(row.epoch)],
      ["state", row.state === "owned" ? state("good", "owned") : row.state === "moving" ? state("busy", "moving") : state("bad", "no owner")],
      ["since", former[0] && time(former[0].at)],
      ["was on", former.length > 1 && former.slice(1, 4).map((each) => h("span", { key: each.epoch, class: "spot" }, each.owner ? runner(each.owner) : "nobody", ` epoch ${count(each.epoch)}`))],
      ["should be on", row.target && row.target !== row.owner ? runner(row.target) : null],
      ["no runner", row.target ? null : "no runner serves its group"],
    ]),
  );
}

function owners(group, shards) {
  const held = new Map(Object.keys(group.runners).map((called) => [called, []]));
  for (const row of shards) if (row.owner) held.set(row.owner, [...(held.get(row.owner) ?? []), row.number]);
  return table({
    label: "shards by owner",
    rows: [...held].sort(([one], [other]) => compare(one, other)),
    key: ([called]) => called,
    columns: [
      { title: "Runner", cell: ([called]) => runner(called) },
      { title: "Shards", class: "number", cell: ([, numbers]) => count(numbers.length) },
      { title: "Which", class: "grow", cell: ([, numbers]) => h("span", { class: "clip" }, ranges(numbers)) },
    ],
  });
}

/** `0–3, 7, 9–12`. */
export function ranges(numbers) {
  const sorted = [...numbers].sort((one, other) => one - other);
  const parts = [];
  for (let index = 0; index < sorted.length; index += 1) {
    const from = sorted[index];
    while (sorted[index + 1] === sorted[index] + 1) index += 1;
    parts.push(from === sorted[index] ? `${from}` : `${from}–${sorted[index]}`);
  }
  return parts.join(", ") || "none";
}

// ── earlier moves ───────────────────────────────────────────────────────────────────────────────────────────────────

const STEP_MS = 900;
const CALM = matchMedia("(prefers-reduced-motion: reduce)");
let playing = 0;

/** How many events have happened at the place that the address names; all of them: now. */
function placeOf(past, params) {
  const found = params.at === "start" ? 0 : past.events.findIndex((event) => event.at === params.at) + 1;
  return params.at !== undefined && (found || params.at === "start") ? found : past.events.length;
}

function goTo(past, place) {
  const at = place >= past.events.length ? "" : place === 0 ? "start" : past.events[place - 1].at;
  go("shards", { ...app.route.params, at }, { replace: true });
}

function said(past, place) {
  const event = past.events[place - 1];
  return event ? `at ${clock(Date.parse(event.at), zone())}, ${event.text}` : `at ${clock(Date.parse(past.since), zone())}, before all moves that are known`;
}

/** The group with the figures of another instant. */
function summed(group, shards) {
  const held = Object.fromEntries(Object.keys(group.runners).map((called) => [called, 0]));
  for (const row of shards) if (row.owner) held[row.owner] = (held[row.owner] ?? 0) + 1;
  return { ...group, runners: held, owned: shards.filter((row) => row.owner).length, moving: 0 };
}

/** Goes from event to event: by keys, by buttons, and by itself for those who like motion. */
function replay(past, place, params) {
  const most = past.events.length;
  if (!most) return null;
  const stop = () => { clearInterval(playing); playing = 0; };
  const step = (to) => { stop(); goTo(past, to); };
  const play = () => {
    if (playing) { stop(); app.invalidate(); return; }
    let next = place >= most ? 0 : place + 1;
    const turn = () => {
      if (app.route.page !== "shards" || next > most) stop();
      else goTo(past, next);
      next += 1;
      app.invalidate();
    };
    playing = setInterval(turn, STEP_MS);
    turn();
  };
  const text = place === most ? `now; last ${said(past, place)}` : said(past, place);
  return h(
    "div",
    { class: "replay", role: "group", "aria-label": "earlier moves" },
    h("button", { type: "button", "aria-label": "the event before", title: "the event before", disabled: place === 0, onclick: () => step(place - 1) }, "◀"),
    h("input", { type: "range", "aria-label": "moves of shards", "aria-valuetext": text, min: "0", max: String(most), step: "1", value: String(place), oninput: (event) => step(Number(event.target.value)) }),
    h("button", { type: "button", "aria-label": "the event after", title: "the event after", disabled: place === most, onclick: () => step(place + 1) }, "▶"),
    !CALM.matches && h("button", { type: "button", onclick: play }, playing ? "Stop" : "Play"),
    place < most && h("button", { type: "button", class: "primary", onclick: () => step(most) }, "Now"),
    h("p", { class: "replay-text", "aria-hidden": "true" }, text),
  );
}

function listed(past, place, params) {
  const from = h("p", { class: "dim" }, "Known since ", time(past.since), ".");
  if (!past.events.length) return [h("p", { class: "dim" }, "No shard has moved. Start or stop a runner to see some move."), from];
  const newest = past.events.map((event, index) => ({ ...event, index })).reverse().slice(0, 20);
  return [
    h("ol", { class: "events" }, newest.map((event) => h("li", { key: event.at }, time(event.at), " ", h("a", { href: link("shards", { ...params, at: event.index + 1 === past.events.length ? "" : event.at }), "aria-current": event.index + 1 === place ? "true" : null }, name(event.text))))),
    from,
  ];
}

function seenMoves() {
  const moves = app.events.filter((event) => event.page === "shards").slice(0, 20);
  if (!moves.length) return h("p", { class: "dim" }, "No shard moved since this page was opened. Start or stop a runner to see some move.");
  return h("ol", { class: "events" }, moves.map((event, index) => h("li", { key: `${event.at}${index}` }, time(event.at), " ", name(event.text))));
}
