/** The steps of an epoch as a small Gantt chart. `spansOf` is pure. */

import { h } from "./dom.js";
import { durationText } from "./formatting.js";

const ORDER = ["begin", "compute", "prepare", "seal", "commit"];
const BESIDE = { prepare: ["capture"] };
const WORDS = {
  begin: "Clean up dead attempts",
  compute: "Compute",
  prepare: "Prepare",
  capture: "Capture state",
  seal: "Seal: sidecar and manifest",
  commit: "Commit",
  sync: "Copy to the bucket",
};

/**
 * From durations to bars: `[{name, sink, from, seconds}]`. Steps follow each other; the sinks of a step work side by
 * side, and state is captured beside preparing.
 */
export function spansOf(steps, pushSeconds = null) {
  const spans = [];
  let at = 0;
  for (const name of ORDER) {
    if (!(name in steps)) continue;
    const beside = (BESIDE[name] ?? []).filter((each) => each in steps);
    const sinks = Object.keys(steps)
      .filter((step) => step.startsWith(`${name}:`))
      .sort();
    if (sinks.length === 0) spans.push({ name, sink: null, from: at, seconds: steps[name] });
    for (const step of sinks) spans.push({ name, sink: step.slice(name.length + 1), from: at, seconds: steps[step] });
    for (const step of beside) spans.push({ name: step, sink: null, from: at, seconds: steps[step] });
    at += steps[name];
  }
  if (pushSeconds !== null) spans.push({ name: "sync", sink: null, from: at, seconds: pushSeconds });
  return spans;
}

/** Seconds of an epoch that are the checkpoint's: capturing state and sealing. */
export function checkpointSeconds(steps) {
  return (steps.capture ?? 0) + (steps.seal ?? 0);
}

export function gantt(epoch, pushSeconds) {
  const spans = spansOf(epoch.steps, pushSeconds);
  if (spans.length === 0) return h("p", { class: "note" }, "History has no steps of this epoch.");
  const end = Math.max(...spans.map((span) => span.from + span.seconds), 1e-9);
  return h(
    "table",
    { class: "gantt" },
    h("caption", { class: "visually-hidden" }, "Steps of the epoch and how long each took"),
    h(
      "thead",
      { class: "visually-hidden" },
      h(
        "tr",
        {},
        ["Step", "Begin", "Took"].map((title) => h("th", { scope: "col" }, title)),
      ),
    ),
    h(
      "tbody",
      {},
      spans.map((span) => row(span, end)),
    ),
  );
}

function row(span, end) {
  const bar = h("span", { class: `bar step-${span.name}` });
  bar.style.marginInlineStart = `${(span.from / end) * 100}%`;
  bar.style.width = `${Math.max(0.4, (span.seconds / end) * 100)}%`;
  return h(
    "tr",
    {},
    h(
      "th",
      { scope: "row" },
      span.sink === null ? (WORDS[span.name] ?? span.name) : `${WORDS[span.name]} ${span.sink}`,
    ),
    h("td", { class: "track" }, h("span", { class: "visually-hidden" }, `after ${durationText(span.from)}`), bar),
    h("td", { class: "number" }, durationText(span.seconds)),
  );
}
