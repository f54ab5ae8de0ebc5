/** What a screen reader hears, and dialogs that keep the focus. */

import { byId, h } from "./dom.js";

const QUIET_MS = 1_000;

/** Says the last of several things once it is quiet: news that come in a row are not read out one by one. */
export class Announcer {
  constructor(region = byId("announcements")) {
    this._region = region;
    this._timer = null;
  }

  say(text) {
    clearTimeout(this._timer);
    this._region.textContent = ""; // So that the same words are heard again.
    this._timer = setTimeout(() => {
      this._region.textContent = text;
    }, QUIET_MS);
  }
}

/** Ages on the page grow by themselves; `now` is the server's time. */
export function tickAges(now, ageText, root = document) {
  for (const element of root.querySelectorAll("time[data-since]")) {
    const { since, prefix, suffix } = element.dataset;
    const text = `${prefix}${ageText((now - Number(since)) / 1000)}${suffix}`;
    if (element.textContent !== text) element.textContent = text;
  }
}

/**
 * Ask in a modal dialog. `fields` are elements shown above the buttons; `answer` reads them when the person agrees.
 * Resolves to what `answer` returns, or to null.
 */
export function ask({ title, text, fields = [], agree, danger = false, answer = () => true }) {
  return new Promise((resolve) => {
    let result = null;
    const form = h(
      "form",
      {
        onsubmit: (event) => {
          event.preventDefault();
          result = answer();
          dialog.close();
        },
      },
      h("h2", { id: "dialog-title" }, title),
      text && h("p", { id: "dialog-text" }, text),
      fields,
      h(
        "div",
        { class: "buttons" },
        h("button", { type: "button", class: "quiet", onclick: () => dialog.close() }, "Cancel"),
        h("button", { type: "submit", class: danger ? "danger" : "primary" }, agree),
      ),
    );
    const dialog = h(
      "dialog",
      {
        "aria-labelledby": "dialog-title",
        "aria-describedby": text && "dialog-text",
        onclose: () => {
          dialog.remove();
          resolve(result);
        },
      },
      form,
    );
    document.body.append(dialog);
    dialog.showModal();
  });
}
