/** What stands around the drawing: the words for a checkpoint, the legend, and the buttons for how much to show. */

import { byId, h } from "./dom.js";
import { bytesText, countText, durationText, momentText, readable } from "./formatting.js";
import { STATES } from "./standing.js";
import { RANGES } from "./timeline_layout.js";
import { shape } from "./timeline_painting.js";

const LEGEND = ["verified", "unverified", "doubtful", "damaged", "abandoned", "pruned"];

/** A checkpoint in a few short lines; the first is its title. */
export function describe(item, now) {
  const { epoch, seconds, rowsIn } = item;
  const full = item.fullBytes ? ` of ${bytesText(item.fullBytes)}` : "";
  const rows = rowsIn === null ? "" : `, ${countText(rowsIn)} rows in`;
  return [
    epoch === null ? titleOf(item) : `${titleOf(item)}, epoch ${countText(epoch)}`,
    `${STATES[item.state].label}${item.synced ? ", copied to the bucket" : ""}`,
    momentText(item.at, now),
    `${bytesText(item.newBytes)} new${full}`,
    seconds === null ? null : `epoch took ${durationText(seconds)}${rows}`,
    item.problem && readable(item.problem, now),
  ].filter(Boolean);
}

function titleOf({ id, name, kind }) {
  if (name) return `Savepoint ${name} (checkpoint ${id})`;
  return kind === "fence" ? `Fence ${id}` : `Checkpoint ${id}`;
}

/** Draw the legend in the colours of the theme. */
export function showLegend(palette) {
  byId("timeline-legend").replaceChildren(
    ...LEGEND.map((state) => h("li", { title: STATES[state].meaning }, sign(state, palette), STATES[state].label)),
    h("li", {}, h("span", { class: "sign synced", "aria-hidden": "true" }), "copied to the bucket"),
    h("li", {}, h("span", { class: "sign sizes", "aria-hidden": "true" }), "solid: new bytes, pale: whole state"),
    h("li", {}, h("span", { class: "sign", "aria-hidden": "true" }, "▶"), "start"),
    h("li", {}, h("span", { class: "sign bad", "aria-hidden": "true" }, "✕"), "kill"),
  );
}

function sign(state, palette) {
  const canvas = h("canvas", { width: 32, height: 32, class: "sign", "aria-hidden": "true" });
  const context = canvas.getContext("2d");
  context.scale(2, 2);
  shape(context, state, 8, 8, 5, palette[state]);
  return canvas;
}

/** Build the buttons; `choose` hears of a range, `zoom` of a factor. */
export function buildRanges({ choose, zoom }) {
  const button = (label, text, onclick, range = null) =>
    h("button", { type: "button", "aria-label": label, "data-range": range, onclick }, text);
  byId("timeline-ranges").replaceChildren(
    ...Object.keys(RANGES).map((range) =>
      button(range === "all" ? "Show all" : `Show the last ${range}`, range, () => choose(range), range),
    ),
    button("Zoom in", "+", () => zoom(0.5)),
    button("Zoom out", "−", () => zoom(2)),
  );
}

/** Mark which range is shown; null: none of them. */
export function showRange(shown) {
  for (const button of byId("timeline-ranges").querySelectorAll("[data-range]")) {
    button.setAttribute("aria-pressed", String(button.dataset.range === shown));
  }
}
