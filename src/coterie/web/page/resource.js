// Details that are read when a page shows them, and again when what they belong to has changed.

import { Refused, get } from "./api.js";

const AGAIN_MS = 1_000;
const FAILED_AGAIN_MS = 5_000;
const TYPING_MS = 300;
const known = new Map();
let used = new Set();
let invalidate = () => {};

export function onResource(changed) {
  invalidate = changed;
}

/** What a route says: `{phase: "loading" | "ready" | "failed", data, error}`.
 *  @param stamp Read again when it changes; what was read before is shown meanwhile. */
export function use(url, stamp = "") {
  used.add(url);
  let entry = known.get(url);
  if (!entry) {
    entry = { phase: "loading", data: null, error: null, stamp: null, asked: -Infinity, busy: null };
    known.set(url, entry);
  }
  const wait = entry.error ? FAILED_AGAIN_MS : AGAIN_MS;
  const due = performance.now() - entry.asked >= wait;
  if (!entry.busy && due && (entry.stamp !== stamp || entry.error)) read(url, entry, stamp);
  return entry;
}

/** Read everything again that is shown: something was done. */
export function refresh() {
  for (const entry of known.values()) {
    entry.stamp = null;
    entry.asked = -Infinity;
  }
  invalidate();
}

/** Forget what the last rendering did not use. */
export function sweep() {
  for (const [url, entry] of known) {
    if (used.has(url)) continue;
    entry.busy?.abort();
    known.delete(url);
  }
  used = new Set();
}

async function read(url, entry, stamp) {
  entry.busy = new AbortController();
  entry.asked = performance.now();
  entry.stamp = stamp;
  try {
    entry.data = await get(url, { signal: entry.busy.signal });
    entry.phase = "ready";
    entry.error = null;
  } catch (error) {
    if (error.name === "AbortError") return;
    if (!(error instanceof Refused)) throw error;
    entry.error = error;
    if (!entry.data || error.status === 404) entry.phase = "failed";
  } finally {
    entry.busy = null;
  }
  invalidate();
}

const typed = new Map(); // by field: its text, and since when

/** Whether the reader has stopped typing: a field that changes with each letter asks the server only then. */
export function settled(field, text) {
  const last = typed.get(field);
  if (last?.text !== text) {
    typed.set(field, { text, at: last ? performance.now() : -Infinity });
    if (last) setTimeout(() => invalidate(), TYPING_MS);
  }
  return performance.now() - typed.get(field).at >= TYPING_MS - 10;
}
