/** The same checkpoints as a table, a page at a time: for screen readers, for the keyboard, and to look things up. */

import { byId, h, link, renderInto, table } from "./dom.js";
import { bytesText, countText, momentText } from "./formatting.js";
import { STATES } from "./standing.js";

const PAGE = 20;
const COLUMNS = [
  { title: "Checkpoint" },
  { title: "Epoch", numeric: true },
  { title: "Sealed" },
  { title: "State" },
  { title: "New", numeric: true },
  { title: "Whole state", numeric: true },
  { title: "Sinks" },
];

export class CheckpointTable {
  constructor({ onOlder }) {
    this._onOlder = onOlder;
    this._page = 0;
    this._details = byId("checkpoint-table");
    this._details.addEventListener("toggle", () => this._model && this.show(this._model));
  }

  reset() {
    this._page = 0;
  }

  show(model) {
    this._model = model;
    byId("checkpoint-count").textContent = countText(model.total);
    if (!this._details.open) return; // Nobody sees it: thousands of rows would be built for nothing.
    const newestFirst = [...model.items].reverse();
    const pages = Math.max(1, Math.ceil(newestFirst.length / PAGE));
    this._page = Math.min(this._page, pages - 1);
    const rows = newestFirst.slice(this._page * PAGE, (this._page + 1) * PAGE);
    const body = byId("checkpoint-table-body");
    renderInto(body, [model.name, this._page, pages, model.unknownOlder, rows], () => [
      table(
        "Checkpoints, newest first",
        COLUMNS,
        rows.map((item) => cells(model, item)),
      ),
      this._pager(pages, model),
    ]);
  }

  _pager(pages, model) {
    const go = (page) => {
      this._page = page;
      if (page >= pages - 1 && model.unknownOlder > 0) this._onOlder();
      this.show(this._model);
    };
    return h(
      "nav",
      { class: "pager", "aria-label": "Pages of the table" },
      h(
        "button",
        {
          type: "button",
          "data-key": "newer",
          "aria-disabled": String(this._page === 0),
          onclick: () => this._page > 0 && go(this._page - 1),
        },
        "Newer",
      ),
      h("span", {}, `Page ${this._page + 1} of ${pages}`),
      h(
        "button",
        {
          type: "button",
          "data-key": "older",
          "aria-disabled": String(this._page >= pages - 1),
          onclick: () => this._page < pages - 1 && go(this._page + 1),
        },
        "Older",
      ),
      model.unknownOlder > 0 &&
        h("span", { class: "note" }, `${countText(model.unknownOlder)} older ones are fetched when you go there`),
    );
  }
}

function cells(model, item) {
  const kind = item.name ?? (item.kind === "fence" ? "fence" : null);
  const title = kind === null ? `${item.id}` : `${item.id} · ${kind}`;
  const sinks = Object.entries(item.sinks)
    .map(([name, status]) => `${name}: ${status.toLowerCase()}`)
    .join(", ");
  return [
    link(`#/${encodeURIComponent(model.name)}/checkpoint/${item.id}`, title, { "data-key": `row-${item.id}` }),
    countText(item.epoch),
    momentText(item.at, model.now()),
    badge(item.state),
    bytesText(item.newBytes),
    bytesText(item.fullBytes),
    sinks || "–",
  ];
}

/** The state as a word with its sign; the colour only supports it. */
export function badge(state) {
  return h("span", { class: `badge ${state}`, title: STATES[state].meaning }, STATES[state].label);
}
