// Keys: pages, filter, rows, pause, theme, zone. Ignored in fields, and can be switched off.

import { app, nextTheme, nextZone, switchKeys } from "./app.js";
import { h, render } from "./dom.js";
import { go } from "./router.js";

const LIST = [
  ["1 … 9, 0", "the first ten pages"],
  ["/", "filter"],
  ["j k", "next and previous row"],
  ["Enter", "open the row"],
  ["Esc", "back"],
  ["space", "pause, and go on"],
  ["t", "theme: auto, light, dark"],
  ["z", "zone of times: local, UTC, that of the schedule"],
  ["?", "this list"],
];

let last = null; // where the focus was, if it is nowhere now
let lastRow = null; // the row in which it was last
let opened = null; // what is shown in detail
let filterWanted = false; // "/" was pressed on a page whose filter is not drawn yet

/** Listen to keys.
 *  @param pages The pages in the order of their keys.
 *  @param pause Called for the space key. */
export function listen(pages, pause) {
  addEventListener("focusin", (event) => {
    last = event.target;
    lastRow = last.closest("[data-row]:not(.detail *)") ?? lastRow;
  });
  addEventListener("pointerdown", () => { filterWanted = false; });
  addEventListener("keydown", (event) => {
    if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
    const target = event.target;
    filterWanted = false;
    if (target.closest?.("input, textarea, select, [contenteditable]")) {
      if (event.key === "Escape") target.blur();
      return;
    }
    if (event.key === "Escape") back();
    else if (!app.keys) return;
    else if (/^[0-9]$/.test(event.key) && pages[(Number(event.key) + 9) % 10]) go(pages[(Number(event.key) + 9) % 10].id);
    else if (event.key === "/") focusFilter();
    else if (event.key === "j" || event.key === "k") step(event.key === "j" ? 1 : -1);
    else if (event.key === " " && !target.closest?.("button, summary")) pause();
    else if (event.key === "t") nextTheme();
    else if (event.key === "z") nextZone();
    else if (event.key === "?") help();
    else return;
    event.preventDefault();
  });
}

/** From one thing to its list, from a filter to all. */
function back() {
  const { page, params } = app.route;
  const { id, name, key, shard, runner, at, ...rest } = params;
  if (id !== undefined || name !== undefined || key !== undefined || shard !== undefined || runner !== undefined || at !== undefined) go(page, page === "entities" && id === undefined ? {} : rest);
  else go(page);
}

function focusFilter() {
  const field = document.querySelector("#main [data-filter]");
  filterWanted = !field;
  field?.focus();
  field?.select();
}

/** Called after each drawing: a page that was still loading when its filter was asked for has one now, and what was opened
 *  or closed meanwhile takes the focus along. */
export function afterDraw() {
  if (filterWanted) focusFilter();
  const detail = document.querySelector("#main .detail");
  const { page, params } = app.route;
  const shown = detail && [page, params.type, params.name, params.id, params.key].join("\n");
  if (shown === opened) return;
  if (shown && document.activeElement.closest("[data-row]")) {
    detail.querySelector("h2").focus({ preventScroll: true });
    detail.scrollIntoView({ block: "start" }); // the row may be far below it
  } else if (!shown && document.activeElement === document.body && lastRow?.isConnected) lastRow.querySelector(".primary")?.focus();
  opened = shown;
}

function step(by) {
  const links = [...document.querySelectorAll("#main [data-row]:not(.detail *) .primary")].filter((each) => each.offsetParent);
  if (!links.length) return;
  const isAway = last?.isConnected && !last.closest(".detail");
  const row = document.activeElement?.closest("[data-row]:not(.detail *)") ?? (isAway ? null : lastRow);
  const at = links.findIndex((each) => row?.contains(each));
  links[at < 0 ? first(links) : Math.min(links.length - 1, Math.max(0, at + by))].focus();
}

/** The first row below where the focus was last: from a filter to its list. */
function first(links) {
  const found = last?.isConnected ? links.findIndex((each) => last.compareDocumentPosition(each) & Node.DOCUMENT_POSITION_FOLLOWING) : 0;
  return Math.max(0, found);
}

export function help() {
  const dialog = document.getElementById("help");
  const draw = () =>
    render(dialog, [
      h("h2", { id: "help-title" }, "Keys"),
      h("dl", { class: "terms keys" }, LIST.map(([key, what]) => h("div", { key }, h("dt", null, h("kbd", null, key)), h("dd", null, what)))),
      h("label", { class: "switch" }, h("input", { type: "checkbox", checked: app.keys, onchange: (event) => { switchKeys(event.target.checked); draw(); } }), " single keys are on"),
      h("div", { class: "buttons" }, h("button", { type: "button", class: "primary", onclick: () => dialog.close() }, "Close")),
    ]);
  draw();
  if (!dialog.open) dialog.showModal();
}
