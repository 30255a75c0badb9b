// The key-value store: keys by prefix, and their values.

import { address } from "../api.js";
import { now } from "../app.js";
import { h } from "../dom.js";
import { bytes, count, json } from "../format.js";
import { settled, use } from "../resource.js";
import { go, link } from "../router.js";
import { asked, block, empty, filterField, loading, name, section, table, time, words } from "../ui.js";

export default { id: "kv", title: "Keys", pages: ["overview"], view };

function view({ params }) {
  const url = address("kv", { prefix: params.prefix, after: params.after, limit: 50 });
  return h(
    "div",
    { class: "grid" },
    section("Keys", { class: "wide" },
      filterField("prefix", params.prefix ?? "", (value) => go("kv", { prefix: value }, { replace: true }), { placeholder: "orders/" }),
      settled("kv", params.prefix ?? "") ? asked(use(url, String(Math.floor(now() / 5_000))), "keys", (data) => list(params, data)) : loading("keys")),
  );
}

function list(params, data) {
  const found = data.entries ?? [];
  return [
    table({
      label: "keys",
      rows: found,
      key: (row) => row.key,
      selected: params.key,
      columns: [
        { title: "Key", cell: (row) => h("a", { class: "primary", href: link("kv", { ...params, key: params.key === row.key ? "" : row.key }) }, params.key === row.key && row.key.length > 80 ? words(row.key) : name(row.key, 80)) },
        ...(found.some((row) => row.version) ? [{ title: "Version", class: "number", cell: (row) => count(row.version) }] : []),
        { title: "Size", class: "number", cell: (row) => bytes(row.bytes) },
        ...(found.some((row) => row.changed_at) ? [{ title: "Changed", cell: (row) => row.changed_at && time(row.changed_at) }] : []),
        { title: "Value", class: "grow", cell: (row) => value(row, params.key === row.key) },
      ],
      empty: params.prefix ? h("p", { class: "dim" }, "No key begins so.") : empty("No keys yet. Set one:", 'await cluster.kv.set("orders/7", {"state": "paid"})'),
    }),
    data.more && found.length > 0 && h("p", null, h("a", { href: link("kv", { ...params, key: "", after: found.at(-1).key }) }, "more keys")),
    params.after && h("p", null, h("a", { href: link("kv", { prefix: params.prefix }) }, "back to the first")),
  ];
}

function value(row, open) {
  if (row.value === undefined) return h("span", { class: "dim" }, "hidden");
  return open ? block(json(row.value), "value") : h("span", { class: "clip" }, words(JSON.stringify(row.value)?.slice(0, 200) ?? "null"));
}
