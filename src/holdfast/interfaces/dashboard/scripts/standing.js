/** How a checkpoint stands, in one word each: what its manifest, history and the bucket say of it together. Pure. */

/** Worst last: where several share a place, the last one wins. */
export const STATES = {
  pruned: { label: "pruned", meaning: "removed by retention; history still knows it" },
  start: { label: "first start", meaning: "the pipeline was started here; nothing to restore" },
  verified: { label: "verified", meaning: "every byte was read and is sound" },
  unverified: { label: "not read yet", meaning: "manifest true and sidecars there; nobody has read every byte" },
  abandoned: { label: "given up", meaning: "a recovery passed it over; none will choose it" },
  foreign: { label: "foreign", meaning: "written by another system or a newer version" },
  doubtful: { label: "in doubt", meaning: "a sink is not known to show it" },
  damaged: { label: "damaged", meaning: "it cannot be restored" },
};
export const SEVERITY = Object.keys(STATES);

const DAMAGED = new Set(["broken", "corrupt", "orphan"]);
const FOREIGN = new Set(["foreign", "unsupported"]);
const IN_DOUBT = new Set(["Pending", "Failed"]);

/** The state of a listed checkpoint. `readings`: id -> problems found by reading in full; none means sound. */
export function standingOf(summary, readings, newestId) {
  if (summary.abandoned_by !== null) return "abandoned";
  if (DAMAGED.has(summary.condition) || readings.get(summary.checkpoint_id)?.length > 0) return "damaged";
  if (FOREIGN.has(summary.condition)) return "foreign";
  if (summary.condition === "start") return "start";
  // Only the newest can be in doubt: an epoch is sealed when all sinks show the one before it.
  const doubtful =
    summary.checkpoint_id === newestId && Object.values(summary.sinks).some((status) => IN_DOUBT.has(status));
  if (doubtful) return "doubtful";
  return readings.has(summary.checkpoint_id) ? "verified" : "unverified";
}

/** What reading found, by id: the last reading counts. A start read what it went on from, too. */
export function readingsOf(verifications, recoveries) {
  const readings = new Map();
  for (const start of recoveries) if (start.chosen_id !== null) readings.set(start.chosen_id, []);
  for (const record of verifications) readings.set(record.checkpoint_id, record.problems);
  return readings;
}

/** The worse of two states. */
export function worse(a, b) {
  return SEVERITY.indexOf(a) >= SEVERITY.indexOf(b) ? a : b;
}
