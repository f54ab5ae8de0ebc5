/** Where things stand on the timeline. Pure arithmetic; the drawing is in `timeline_painting.js`. */

import { median, timeOf } from "./formatting.js";
import { worse } from "./standing.js";

export const RANGES = {
  "1 h": 3_600_000,
  "6 h": 6 * 3_600_000,
  "24 h": 24 * 3_600_000,
  "7 d": 7 * 24 * 3_600_000,
  all: null,
};
const SHORTEST_WINDOW_MS = 10_000;
const SHORTEST_GAP_MS = 30_000;
const GAP_FACTOR = 12;
/** So many of the newest tell what is usual. */
const ENOUGH_TO_TELL = 500;

/**
 * The stretch of time to show: the last `length` milliseconds, or everything (null). When all there is took much less
 * than that, only that much is shown, so that a young pipeline is not a thin line at the edge.
 */
export function windowOf(items, length, now) {
  const first = items[0]?.at ?? now - SHORTEST_WINDOW_MS;
  const end = Math.max(now, items.at(-1)?.at ?? now);
  const whole = Math.max(SHORTEST_WINDOW_MS, (end - first) * 1.04);
  const span = length === null ? whole : Math.min(length, whole);
  return { from: end - span, to: end + span * 0.015 };
}

/** A window around a point, `factor` times as long. */
export function zoomed(window, factor, around) {
  const span = Math.max(SHORTEST_WINDOW_MS, (window.to - window.from) * factor);
  const share = (around - window.from) / (window.to - window.from);
  return { from: around - span * share, to: around + span * (1 - share) };
}

export function xOf(at, window, width) {
  return ((at - window.from) / (window.to - window.from)) * width;
}

export function timeAt(x, window, width) {
  return window.from + (x / width) * (window.to - window.from);
}

/** The index of the first item that is not before `at`. */
export function firstFrom(items, at) {
  let low = 0;
  let high = items.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (items[middle].at < at) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** The index of the item nearest to a time; -1 of none. */
export function nearest(items, at) {
  const after = firstFrom(items, at);
  if (after === 0) return items.length > 0 ? 0 : -1;
  if (after === items.length) return items.length - 1;
  return items[after].at - at < at - items[after - 1].at ? after : after - 1;
}

/**
 * Columns at least `pitch` pixels apart. Items that share one show the worst state, the largest sizes and how many
 * they are, so that thousands take no longer to draw than the screen is wide.
 */
export function columnsOf(items, window, width, pitch) {
  const columns = [];
  const end = firstFrom(items, window.to);
  for (let index = firstFrom(items, window.from); index < end; index += 1) {
    const x = xOf(items[index].at, window, width);
    const last = columns.at(-1);
    if (last && x - last.x < pitch) add(last, items[index], index);
    else columns.push(begin(items[index], index, x));
  }
  return columns;
}

function begin(item, index, x) {
  return {
    x,
    first: index,
    last: index,
    state: item.state,
    newBytes: item.newBytes ?? 0,
    fullBytes: item.fullBytes ?? 0,
    synced: item.synced,
    name: item.name,
    fence: item.kind === "fence",
  };
}

function add(column, item, index) {
  column.last = index;
  column.state = worse(column.state, item.state);
  column.newBytes = Math.max(column.newBytes, item.newBytes ?? 0);
  column.fullBytes = Math.max(column.fullBytes, item.fullBytes ?? 0);
  column.synced ||= item.synced;
  column.name ??= item.name;
  column.fence &&= item.kind === "fence";
}

/** How wide a column is: as far as one checkpoint usually is from the next, between 2 and 14 pixels. */
export function pitchFor(items, window, width) {
  const [first, end] = [firstFrom(items, window.from), firstFrom(items, window.to)];
  const steps = [];
  const from = Math.max(first, end - ENOUGH_TO_TELL);
  for (let index = from + 1; index < end; index += 1) steps.push(items[index].at - items[index - 1].at);
  const usual = xOf(window.from + (median(steps) ?? Infinity), window, width);
  return Math.min(14, Math.max(2, Math.floor(usual)));
}

/** Stretches without a checkpoint that are much longer than usual; the last one may still go on. */
export function gapsOf(items, now) {
  const steps = [];
  for (let index = Math.max(1, items.length - ENOUGH_TO_TELL); index < items.length; index += 1)
    steps.push(items[index].at - items[index - 1].at);
  const usual = median(steps);
  if (usual === null) return [];
  const least = Math.max(SHORTEST_GAP_MS, usual * GAP_FACTOR);
  const gaps = [];
  for (let index = 1; index < items.length; index += 1) {
    if (items[index].at - items[index - 1].at >= least)
      gaps.push({ from: items[index - 1].at, to: items[index].at, open: false });
  }
  if (now - items.at(-1).at >= least) gaps.push({ from: items.at(-1).at, to: now, open: true });
  return gaps;
}

/**
 * Starts and ends of runs. An end that nobody wrote down is a kill, dated by the last sign of life; of the newest run
 * it is one only if `alive` is false.
 */
export function marksOf(recoveries, items, alive) {
  const marks = [];
  recoveries.forEach((run, index) => {
    const at = timeOf(run.at);
    if (at === null) return;
    marks.push({ at, kind: run.outcome === "refuse" ? "refused" : "start", run });
    const newest = index === recoveries.length - 1;
    if (run.ended_at !== null) {
      if (run.outcome !== "refuse")
        marks.push({ at: timeOf(run.ended_at), kind: run.error === null ? "stop" : "failure", run });
    } else if (!newest || alive === false) {
      const limit = newest ? Infinity : timeOf(recoveries[index + 1].at);
      marks.push({ at: lastSign(items, at, limit), kind: "kill", run });
    }
  });
  return marks;
}

function lastSign(items, from, limit) {
  const index = firstFrom(items, limit) - 1;
  return index >= 0 && items[index].at > from ? items[index].at : from;
}

const TICK_STEPS = [
  1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1_800, 3_600, 7_200, 10_800, 21_600, 43_200, 86_400, 172_800, 604_800,
  2_592_000,
];

/** Times for the axis, about `spacing` pixels apart, at full minutes, hours or days of the reader. */
export function ticksOf(window, width, spacing, zoneOffsetMs) {
  const wanted = (window.to - window.from) / Math.max(1, width / spacing) / 1000;
  const step = (TICK_STEPS.find((each) => each >= wanted) ?? TICK_STEPS.at(-1)) * 1000;
  const ticks = [];
  for (let at = Math.ceil((window.from + zoneOffsetMs) / step) * step - zoneOffsetMs; at < window.to; at += step)
    ticks.push({ at, step });
  return ticks;
}
