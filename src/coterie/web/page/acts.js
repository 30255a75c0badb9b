// Acts: what will happen to how many is said first, then it is confirmed, then it is done.

import { act } from "./api.js";
import { h, render } from "./dom.js";
import { refresh } from "./resource.js";
import { mayAct } from "./app.js";
import { state, words } from "./ui.js";

/** A button that asks for an act; nothing where this reader may not act.
 *  @param danger It cannot be taken back: the dialog begins on Cancel. */
export function actButton(text, title, name, body, { danger = false, primary = false, label, after } = {}) {
  if (!mayAct()) return null;
  const open = () => confirm({ title, name, body: typeof body === "function" ? body() : body, danger, after });
  return h("button", { type: "button", class: danger ? "danger" : primary ? "primary" : "", "aria-label": label, title: label, onclick: open }, text);
}

/** Ask what an act would do, show that, and do it when confirmed. */
export async function confirm({ title, name, body, danger = false, after }) {
  if (body === null || body === undefined) return;
  const dialog = document.getElementById("dialog");
  if (dialog.open) return;
  const from = document.activeElement;
  dialog.addEventListener("close", () => from?.isConnected && from.focus(), { once: true });
  const close = () => dialog.close();
  const show = (content, { sure = null, busy = false } = {}) =>
    render(dialog, [
      h("h2", { id: "dialog-title" }, title),
      h("div", { class: "dialog-text", role: "status" }, content),
      h(
        "div",
        { class: "buttons" },
        h("button", { type: "button", key: "cancel", "data-cancel": "", onclick: close }, sure || busy ? "Cancel" : "Close"),
        (sure || busy) && h("button", { type: "button", key: "sure", class: danger ? "danger primary" : "primary", "data-sure": "", disabled: busy, onclick: sure }, title.split(" ")[0]),
      ),
    ]);
  show(h("p", { class: "loading" }, "Asking what this will do …"), { busy: true });
  dialog.showModal();
  const refused = (error) => show([h("p", null, state("bad", "refused: "), words(error.message)), error.hint && h("p", { class: "dim" }, words(error.hint))]);
  let preview;
  try {
    preview = await act(name, body, { preview: true });
  } catch (error) {
    return refused(error);
  }
  if (!dialog.open) return undefined;
  const sure = async () => {
    show(h("p", null, words(preview.will), " …"), { busy: true });
    try {
      const result = await act(name, body);
      close();
      tell(result.done ?? preview.will);
      after?.(result);
      refresh();
    } catch (error) {
      refused(error);
    }
    return undefined;
  };
  show(
    [h("p", { class: "will" }, words(preview.will)), danger && h("p", { class: "dim" }, "This cannot be taken back.")],
    { sure: preview.count === 0 ? null : sure },
  );
  dialog.querySelector(danger || preview.count === 0 ? "[data-cancel]" : "[data-sure]")?.focus();
  return undefined;
}

let telling = 0;

/** Say what was done, for a while. */
export function tell(text) {
  const place = document.getElementById("told");
  render(place, h("p", null, state("good", ""), words(text)));
  clearTimeout(telling);
  telling = setTimeout(() => render(place, []), 10_000);
}
