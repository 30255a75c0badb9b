// What the whole page knows: the session, the version that is shown, the reader's choices, and what was seen since it opened.

import { compare, rows } from "./store.js";

const SAMPLES_MOST = 900; // 15 minutes, one a second
const EVENTS_MOST = 200;
const THEMES = ["auto", "light", "dark"];
const ZONES = ["local", "UTC", "schedule"];

export const app = {
  session: null,
  sessionError: null,
  feed: null,
  shown: null, // the version on the screen; an older one while paused
  paused: false,
  missed: 0, // updates since the pause
  offsetMs: 0, // the database's clock minus the browser's
  route: { page: "overview", params: {} },
  theme: choice("theme", THEMES),
  zone: choice("zone", ZONES),
  keys: localStorage.getItem("coterie.keys") !== "off",
  events: [], // {at, text, page, params}, newest first
  samples: { at: [], calls: [], p50: [], p99: [], waiting: [] },
  runnerSamples: new Map(), // id: {calls, lag}
  invalidate: () => {},
};

function choice(name, all) {
  const kept = localStorage.getItem(`coterie.${name}`);
  return all.includes(kept) ? kept : all[0];
}

function cycle(name, all) {
  app[name] = all[(all.indexOf(app[name]) + 1) % all.length];
  localStorage.setItem(`coterie.${name}`, app[name]);
  app.invalidate();
}

export function nextTheme() {
  cycle("theme", THEMES);
  document.documentElement.dataset.theme = app.theme;
}

export function nextZone() {
  cycle("zone", ZONES);
}

export function switchKeys(on) {
  app.keys = on;
  localStorage.setItem("coterie.keys", on ? "on" : "off");
  app.invalidate();
}

/** The time of the cluster now, in milliseconds. */
export function now() {
  return Date.now() + app.offsetMs;
}

/** The zone for `Intl`; `schedule` is that of the cron, elsewhere the browser's. */
export function zone(scheduled) {
  if (app.zone === "UTC") return "UTC";
  return app.zone === "schedule" ? (scheduled ?? undefined) : undefined;
}

export function mayAct() {
  return app.session?.access === "act";
}

/** A page of the version that is shown; undefined until it has come. */
export function page(name) {
  return app.shown?.data[name];
}

// ── runners' colours ────────────────────────────────────────────────────────────────────────────────────────────────

const slots = new Map(Object.entries(JSON.parse(sessionStorage.getItem("coterie.colours") ?? "{}")));

/** The colour and pattern of a runner, 0 to 7: the same as long as the tab lives, also after it is gone. */
export function colour(name) {
  if (!slots.has(name)) {
    const taken = new Set([...slots.values()].slice(-7));
    let slot = preferred(name) % 8;
    while (taken.has(slot)) slot = (slot + 1) % 8;
    slots.set(name, slot);
    sessionStorage.setItem("coterie.colours", JSON.stringify(Object.fromEntries([...slots].slice(-200))));
  }
  return slots.get(name);
}

/** By the number at its end, else by its letters: the same in most browsers. */
function preferred(name) {
  const number = /(\d{1,6})$/.exec(name);
  return number ? Number(number[1]) + 7 : [...name].reduce((sum, char) => (sum * 31 + char.codePointAt(0)) >>> 0, 7);
}

// ── what was seen ───────────────────────────────────────────────────────────────────────────────────────────────────

/** Take a new version: samples for the charts, and what happened since the one before. Returns the new events. */
export function observe(before, after) {
  app.offsetMs = Math.abs(Date.parse(after.at) - now()) > 1000 ? Date.parse(after.at) - Date.now() : app.offsetMs;
  for (const row of rows(after.data.runners, (each) => each.name)) colour(row.name);
  const found = before ? differences(before, after) : [];
  app.events.unshift(...found);
  app.events.length = Math.min(app.events.length, EVENTS_MOST);
  return found;
}

/** One sample of the figures that are drawn; called once a second while live. */
export function sample() {
  const overview = app.feed.version?.data.overview;
  if (!overview) return;
  const { at, calls, p50, p99, waiting } = app.samples;
  at.push(now() / 1000);
  calls.push(overview.calls_s);
  p50.push(overview.p50_s === null ? null : overview.p50_s * 1000);
  p99.push(overview.p99_s === null ? null : overview.p99_s * 1000);
  waiting.push(overview.waiting);
  for (const list of Object.values(app.samples)) if (list.length > SAMPLES_MOST) list.shift();
  for (const row of rows(app.feed.version.data.runners)) {
    if (!app.runnerSamples.has(row.id)) app.runnerSamples.set(row.id, { calls: [], lag: [] });
    const kept = app.runnerSamples.get(row.id);
    kept.calls.push(row.calls_s ?? null);
    kept.lag.push(row.loop_lag_s ?? null);
    for (const list of Object.values(kept)) if (list.length > 60) list.shift();
  }
}

function differences(before, after) {
  const at = after.at;
  const found = [];
  const one = before.data.overview;
  const other = after.data.overview;
  if (one && other) {
    for (const [called, row] of other.singletons) {
      const old = one.singletons.get(called);
      if (!old || old.leader === row.leader) continue;
      const text = row.leader ? `${row.name} moved to ${row.leader}` : `${row.name} has no leader`;
      found.push({ at, text, page: "singletons", params: { name: row.name } });
    }
    if (one.status !== other.status) {
      const why = other.reasons[0];
      found.push({ at, text: `the cluster is ${other.status}${why ? `: ${why.what}, ${why.problem}` : ""}`, page: "overview", params: {} });
    }
    if (one.dead < other.dead) {
      found.push({ at, text: `${other.dead - one.dead} more dead messages`, page: "messages", params: { filter: "state:dead" } });
    }
  }
  if (before.data.runners && after.data.runners) {
    for (const [id, row] of after.data.runners) {
      if (!before.data.runners.has(id)) found.push({ at, text: `${row.name} joined`, page: "runners", params: { id } });
    }
    for (const [id, row] of before.data.runners) {
      if (!after.data.runners.has(id)) found.push({ at, text: `${row.name} is gone`, page: "runners", params: {} });
    }
  }
  found.push(...moves(before.data.shards?.shards, after.data.shards?.shards, at));
  return found;
}

function moves(before, after, at) {
  if (!before || !after) return [];
  const ways = new Map();
  for (const [shard, row] of after) {
    const old = before.get(shard);
    if (!old || old.owner === row.owner || !row.owner) continue;
    const way = row.owner;
    ways.set(way, [...(ways.get(way) ?? []), shard]);
  }
  return [...ways].sort(([a], [b]) => compare(a, b)).map(([to, shards]) => ({
    at,
    text: shards.length === 1 ? `${shards[0]} moved to ${to}` : `${shards.length} shards moved to ${to}`,
    page: "shards",
    params: { runner: to },
  }));
}
