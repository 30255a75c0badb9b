// The parts that all pages are made of.

import { app, colour, mayAct, now, zone } from "./app.js";
import { h, memo } from "./dom.js";
import { absolute, relative, short, visible } from "./format.js";
import { link } from "./router.js";

const GLYPHS = { good: "✓", warn: "!", bad: "✗", busy: "◐", off: "·", star: "★" };

/** A state: shape, word and colour. */
export function state(kind, word, glyph = GLYPHS[kind]) {
  return h("span", { class: `state ${kind}` }, h("span", { class: "glyph", "aria-hidden": "true" }, glyph), " ", word);
}

export function health(status) {
  return state({ healthy: "good", degraded: "warn", unhealthy: "bad" }[status] ?? "off", status);
}

/** A name as the user wrote it: isolated, so that its direction stays its own. */
export function name(text, most) {
  return h("bdi", { class: "name" }, short(text, most));
}

/** A whole text that may be long: an error, a value. */
export function words(text) {
  return text && h("bdi", { class: "words" }, visible(text));
}

/** An instant: relative, with the absolute one on hover and focus. */
export function time(at, { scheduled } = {}) {
  if (!at) return h("span", { class: "dim" }, "never");
  const said = relative(at, now());
  return memo(undefined, [at, zone(scheduled), said], () => {
    const here = absolute(at, zone(scheduled));
    const utc = absolute(at, "UTC");
    const both = here === utc ? utc : `${here} · ${utc}`;
    return h("time", { datetime: at, title: both, "data-tip": both, tabindex: "0" }, said);
  });
}

/** A runner: colour, pattern and name, with a link. */
export function runner(called, { star = false, plain = false } = {}) {
  if (!called) return h("span", { class: "dim" }, "none");
  const inside = [h("span", { class: `swatch hue-${colour(called)}`, "aria-hidden": "true" }), star && "★ ", name(called, 60)];
  return plain ? h("span", { class: "runner" }, inside) : h("a", { class: "runner", href: link("runners", { name: called }) }, inside);
}

export function section(title, props, ...children) {
  const { id = `h-${slug(title)}`, class: cls, aside, ...rest } = props ?? {};
  return h(
    "section",
    { key: id, class: `card ${cls ?? ""}`, "aria-labelledby": id, ...rest }, // none becomes another one: the focus stays in it
    h("div", { class: "head" }, h("h2", { id, tabindex: id === "detail" ? "-1" : null }, title), aside && h("div", { class: "aside" }, aside)),
    children,
  );
}

function slug(text) {
  return text.toLowerCase().replace(/[^a-z0-9]+/g, "-");
}

/** Nothing is there: what would be, and how to add it. */
export function empty(text, code) {
  return h("div", { class: "empty" }, h("p", null, text), code && h("pre", null, h("code", null, code)));
}

export function loading(what) {
  return h("p", { class: "loading", role: "status" }, `Reading ${what} …`);
}

export function failed(what, error) {
  return h(
    "div",
    { class: "failed", role: "alert" },
    h("p", null, state("bad", `${what} could not be read: `), words(error.message)),
    error.hint && h("p", { class: "dim" }, words(error.hint)),
  );
}

/** Loading, failed, or what `show` makes of it. */
export function asked(resource, what, show) {
  if (resource.phase === "loading") return loading(what);
  if (resource.phase === "failed") return failed(what, resource.error);
  return show(resource.data);
}

/** A list of terms; those without a value are left out. */
export function terms(pairs) {
  const known = pairs.filter(([, value]) => value !== null && value !== undefined && value !== "" && value !== false);
  return h("dl", { class: "terms" }, known.map(([term, value]) => h("div", { key: term }, h("dt", null, term), h("dd", null, value))));
}

/** A block of text to look at and copy: JSON, a traceback. */
export function block(text, label) {
  return h("pre", { class: "block", tabindex: "0", role: "region", "aria-label": label }, h("code", null, visible(text)));
}

export function copy(text, label) {
  return h("button", { type: "button", class: "quiet", onclick: () => navigator.clipboard?.writeText(text) }, label);
}

/** Say where acts are, and why there are none. */
export function acts(...buttons) {
  if (mayAct()) return h("div", { class: "acts" }, buttons);
  return h("p", { class: "dim why" }, "Read-only access: this page may look, not act.");
}

export function select(label, value, options, changed) {
  return h(
    "label",
    { class: "choice" },
    h("span", null, label),
    h(
      "select",
      { onchange: (event) => changed(event.target.value) },
      options.map(([key, text]) => h("option", { key, value: key, selected: key === value }, text)),
    ),
  );
}

export function filterField(label, value, changed, { placeholder = "", help } = {}) {
  return h(
    "label",
    { class: "filter" },
    h("span", null, label),
    h("input", {
      type: "search", value, placeholder, "data-filter": "", autocomplete: "off", spellcheck: "false",
      oninput: (event) => changed(event.target.value),
    }),
    help && h("span", { class: "dim help" }, help),
  );
}

// ── tables ──────────────────────────────────────────────────────────────────────────────────────────────────────────

const ROWS_MOST = 100; // so that an update stays cheap
const limits = new Map(); // by label: rows that the reader has asked for
const held = new Map(); // by label: rows that are shown while pointer or focus is in the list

/** A table; its rows become cards where the screen is narrow.
 *  @param columns `[{title, cell: row => …, class}]`; the first one names the row.
 *  @param hold New rows wait behind a button while the pointer or the focus is in the list. */
export function table({ label, columns, rows, key, empty: nothing, selected, hold = false }) {
  if (!rows.length) return nothing ?? empty("Nothing here.");
  const keys = rows.map(key);
  const { shown: known, waiting } = hold ? withhold(label, rows, keys) : { shown: rows, waiting: 0 };
  const most = limits.get(label) ?? ROWS_MOST;
  const shown = known.slice(0, most);
  return h(
    "div",
    { class: "table", ...(hold ? holders(label) : {}) },
    waiting > 0 &&
      h("button", { type: "button", class: "quiet new", onclick: () => { held.delete(label); app.invalidate(); } }, `+${waiting} new`),
    h(
      "table",
      { role: "table", "aria-label": label },
      h("thead", { role: "rowgroup" }, h("tr", { role: "row" }, columns.map((column) => h("th", { key: column.title, role: "columnheader", scope: "col", class: column.class }, column.title)))),
      h(
        "tbody",
        { role: "rowgroup" },
        shown.map((row) => {
          const id = key(row);
          return h(
            "tr",
            { key: id, role: "row", "data-row": "", class: id === selected ? "selected" : null, "aria-current": id === selected ? "true" : null },
            columns.map((column, index) =>
              h(index ? "td" : "th", { key: column.title, role: index ? "cell" : "rowheader", scope: index ? null : "row", class: column.class, "data-label": column.title }, column.cell(row)),
            ),
          );
        }),
      ),
    ),
    shown.length < known.length &&
      h("button", { type: "button", class: "quiet", onclick: () => { limits.set(label, most + 5 * ROWS_MOST); app.invalidate(); } }, `show more: ${known.length - shown.length} are left out`),
  );
}

function holders(label) {
  const hold = () => { if (!held.has(label)) held.set(label, null); };
  const release = (event) => {
    const box = event.currentTarget;
    if (!box || box.matches(":hover") || box.contains(event.relatedTarget)) return;
    held.delete(label);
    app.invalidate();
  };
  return { onpointerenter: hold, onfocusin: hold, onpointerleave: release, onfocusout: release };
}

function withhold(label, rows, keys) {
  if (!held.has(label)) return { shown: rows, waiting: 0 };
  if (!held.get(label)) held.set(label, new Set(keys));
  const known = held.get(label);
  const shown = rows.filter((_, index) => known.has(keys[index]));
  return shown.length ? { shown, waiting: rows.length - shown.length } : { shown: rows, waiting: 0 };
}
