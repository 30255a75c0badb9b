// The read model as the server sent it last: a snapshot, then changes by key. Every version is a value of its own, so that a
// paused page keeps the one that it shows.

const COLLATOR = new Intl.Collator("en", { numeric: true });

/** Lists whose rows are sent one by one: what names a row. `web/feed.py` has the same ones. */
const KEYS = {
  "overview.singletons": (row) => row.name,
  "overview.crons": (row) => row.name,
  "overview.queues": (row) => row.name,
  runners: (row) => row.id,
  "shards.shards": (row) => row.shard,
  "shards.groups": (row) => row.group,
  singletons: (row) => row.name,
  cron: (row) => row.name,
  entities: (row) => row.type,
  "messages.overdue": (row) => row.id,
  "jobs.queues": (row) => row.name,
  workflows: (row) => `${row.kind}/${row.name}/${row.id}`,
};

/** A snapshot `{revision, at, runner, data}` with its keyed lists as maps. */
export function fromSnapshot(view) {
  const data = {};
  for (const [page, value] of Object.entries(view.data)) data[page] = keyed(page, value);
  return { revision: view.revision, at: view.at, runner: view.runner, data };
}

function keyed(path, value) {
  if (path in KEYS && Array.isArray(value)) return new Map(value.map((row) => [KEYS[path](row), row]));
  if (path.includes(".") || value === null || typeof value !== "object" || Array.isArray(value)) return value;
  return Object.fromEntries(Object.entries(value).map(([field, each]) => [field, keyed(`${path}.${field}`, each)]));
}

/** The next version: `{revision, at, runner, set: [[path, value]], remove: [path]}` applied to one. */
export function apply(version, changes) {
  const data = { ...version.data };
  const copied = new Set();
  for (const [path, value] of changes.set ?? []) write(data, copied, path, value);
  for (const path of changes.remove ?? []) write(data, copied, path, undefined);
  return { revision: changes.revision, at: changes.at, runner: changes.runner, data };
}

function write(data, copied, path, value) {
  let holder = data;
  let name = "";
  for (const step of path.slice(0, -1)) {
    name = name ? `${name}.${step}` : step;
    const inner = get(holder, step) ?? (name in KEYS ? new Map() : {});
    if (!copied.has(name)) {
      put(holder, step, inner instanceof Map ? new Map(inner) : { ...inner });
      copied.add(name);
    }
    holder = get(holder, step);
  }
  const last = path[path.length - 1];
  if (value === undefined) holder instanceof Map ? holder.delete(last) : delete holder[last];
  else put(holder, last, holder instanceof Map ? value : keyed(path.join("."), value));
}

function get(holder, step) {
  return holder instanceof Map ? holder.get(step) : Object.hasOwn(holder, step) ? holder[step] : undefined;
}

function put(holder, step, value) {
  if (holder instanceof Map) holder.set(step, value);
  else Object.defineProperty(holder, step, { value, writable: true, enumerable: true, configurable: true });
}

/** Rows of a keyed list, in the order of `by`. */
export function rows(list, by) {
  const found = list instanceof Map ? [...list.values()] : [...(list ?? [])];
  return by ? found.sort((one, other) => compare(by(one), by(other))) : found;
}

export function compare(one, other) {
  if (typeof one === "string" && typeof other === "string") return COLLATOR.compare(one, other);
  return one < other ? -1 : one > other ? 1 : 0;
}
