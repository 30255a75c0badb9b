// The moves of shards as history: what happened when, and who held which shard after it.

import { compare } from "./store.js";

const TOGETHER_MS = 5_000; // moves with less than this between them are one event

/** Events, oldest first: `{at, untilAt, moves, text}`, of one group.
 *  @param moves `[{at, shard, epoch, from, to}]` in any order; `from` and `to` are names, or null for nobody.
 *  @param shards The shards of the group as they are now. */
export function events(moves, shards) {
  const known = new Set(shards.map((row) => row.shard));
  const sorted = moves.filter((move) => known.has(move.shard)).sort((one, other) => Date.parse(one.at) - Date.parse(other.at) || one.epoch - other.epoch);
  const found = [];
  for (const move of sorted) {
    const last = found.at(-1);
    if (last && Date.parse(move.at) - Date.parse(last.untilAt) < TOGETHER_MS) {
      last.moves.push(move);
      last.untilAt = move.at;
    } else found.push({ at: move.at, untilAt: move.at, moves: [move] });
  }
  found.forEach((event, index) => { event.text = described(event, counts(before(shards, found, index)), counts(before(shards, found, index + 1))); });
  return found;
}

/** The shards as they were before an event: as the last move before it left them, else as the first one after it found them. */
export function before(shards, all, index) {
  const held = new Map();
  const put = (shard, owner, epoch) => held.set(shard, { owner, epoch, state: owner ? "owned" : "free", target: owner });
  for (const event of all.slice(index).reverse()) for (const move of [...event.moves].reverse()) put(move.shard, move.from, Math.max(0, move.epoch - 1));
  for (const event of all.slice(0, index)) for (const move of event.moves) put(move.shard, move.to, move.epoch);
  return shards.map((row) => ({ ...row, ...held.get(row.shard) }));
}

function counts(rows) {
  const held = new Map();
  for (const row of rows) if (row.owner) held.set(row.owner, (held.get(row.owner) ?? 0) + 1);
  return held;
}

function absent(from, there) {
  return [...from.keys()].filter((name) => !there.has(name)).sort(compare);
}

/** `web-3 joined: 33 shards moved in 1.8s`. */
function described(event, held, after) {
  const moved = new Set(event.moves.map((move) => move.shard)).size;
  const seconds = (Date.parse(event.untilAt) - Date.parse(event.at)) / 1000;
  const who = [
    ...absent(after, held).map((name) => `${name} joined`),
    ...absent(held, after).map((name) => `${name} left`),
  ];
  const what = `${moved === 1 ? `${event.moves[0].shard} moved` : `${moved} shards moved`}${seconds >= 0.1 ? ` in ${seconds.toFixed(1)}s` : ""}`;
  return who.length ? `${who.slice(0, 3).join(", ")}: ${what}` : what;
}

/** Who held a shard, the newest first: `[{owner, epoch, at}]`. */
export function owners(moves, shard) {
  return moves.filter((move) => move.shard === shard).sort((one, other) => other.epoch - one.epoch).map((move) => ({ owner: move.to, epoch: move.epoch, at: move.at }));
}
