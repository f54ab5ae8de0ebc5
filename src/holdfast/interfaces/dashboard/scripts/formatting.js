/** Numbers, sizes and times as people read them. Pure: no document, no clock. */

const NUMBER = new Intl.NumberFormat("en");
const DECIMAL = new Intl.NumberFormat("en", { maximumSignificantDigits: 3 });
const BYTE_UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];
const DURATION_UNITS = [
  ["d", 86_400],
  ["h", 3_600],
  ["min", 60],
  ["s", 1],
];
export const NOTHING = "–";

/** A whole number with separators; a dash for none. */
export function countText(value) {
  return value === null || value === undefined ? NOTHING : NUMBER.format(value);
}

/** A number and its noun: "1 checkpoint", "3 checkpoints". */
export function countedText(value, noun) {
  return `${countText(value)} ${noun}${value === 1 ? "" : "s"}`;
}

/** A size in binary units. */
export function bytesText(bytes) {
  if (bytes === null || bytes === undefined) return NOTHING;
  let value = Math.abs(bytes);
  let unit = 0;
  while (value >= 1024 && unit < BYTE_UNITS.length - 1) {
    value /= 1024;
    unit += 1;
  }
  const shown = unit === 0 ? NUMBER.format(value) : DECIMAL.format(value);
  return `${bytes < 0 ? "−" : ""}${shown} ${BYTE_UNITS[unit]}`;
}

/** A signed change: "+1,200", "−3", "0". */
export function changeText(value, format = countText) {
  if (value === null || value === undefined) return NOTHING;
  if (value === 0) return format(0);
  return `${value > 0 ? "+" : "−"}${format(Math.abs(value))}`;
}

/** A duration in its two largest units; below a minute with three digits. */
export function durationText(seconds) {
  if (seconds === null || seconds === undefined) return NOTHING;
  if (seconds < 0.9995) return `${DECIMAL.format(Math.max(0, seconds) * 1000)} ms`;
  if (seconds < 59.95) return `${DECIMAL.format(seconds)} s`;
  let left = Math.round(seconds);
  const parts = [];
  for (const [unit, size] of DURATION_UNITS) {
    const amount = Math.floor(left / size);
    left -= amount * size;
    if (amount > 0) parts.push(`${amount} ${unit}`);
    else if (parts.length > 0) break;
    if (parts.length === 2) break;
  }
  return parts.join(" ");
}

/** How old something is, in one calm unit that does not change with every blink. */
export function ageText(seconds) {
  if (seconds === null || seconds === undefined) return NOTHING;
  const whole = Math.max(0, Math.floor(seconds));
  return whole < 1 ? "less than 1 s" : durationText(whole);
}

/** Milliseconds since 1970 of an RFC 3339 time; null for none. */
export function timeOf(text) {
  const found = text ? Date.parse(text) : NaN;
  return Number.isNaN(found) ? null : found;
}

/** A moment in the reader's time zone, with the date unless it is the same day as `now`. */
export function momentText(ms, now) {
  if (ms === null || ms === undefined) return NOTHING;
  const moment = new Date(ms);
  const clock = moment.toLocaleTimeString("en-GB");
  const sameDay = now !== undefined && moment.toDateString() === new Date(now).toDateString();
  return sameDay ? clock : `${moment.toLocaleDateString("en-GB", { day: "numeric", month: "short" })} ${clock}`;
}

/** A share as a percentage. */
export function percentText(share) {
  return share === null || share === undefined ? NOTHING : `${DECIMAL.format(share * 100)} %`;
}

/** Rows per second. */
export function rateText(rate) {
  return rate === null || rate === undefined ? NOTHING : `${DECIMAL.format(rate)} rows/s`;
}

/** The value in the middle; null of nothing. */
export function median(values) {
  if (values.length === 0) return null;
  const sorted = [...values].sort((a, b) => a - b);
  const middle = sorted.length >> 1;
  return sorted.length % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}

/** Ids as a short text: "3, 5–9, 12". */
export function idsText(ids) {
  const sorted = [...ids].sort((a, b) => a - b);
  const runs = [];
  for (const id of sorted) {
    const last = runs.at(-1);
    if (last && id === last[1] + 1) last[1] = id;
    else runs.push([id, id]);
  }
  return runs
    .map(([from, to]) => (from === to ? `${from}` : to === from + 1 ? `${from}, ${to}` : `${from}–${to}`))
    .join(", ");
}

const MOMENT = /\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z/g;
const DIGEST = /\b([0-9a-f]{8})[0-9a-f]{56}\b/g;

/** Words of the server for people: its times become the reader's, and digests are cut short. */
export function readable(text, now) {
  return text.replace(MOMENT, (moment) => momentText(timeOf(moment), now)).replace(DIGEST, "$1…");
}
