/** What the page knows of one pipeline or store, merged from many answers. No document, no requests. */

import { timeOf } from "./formatting.js";
import { readingsOf, standingOf } from "./standing.js";

export class Model {
  constructor(name, isPipeline) {
    this.name = name;
    this.isPipeline = isPipeline;
    this.health = null;
    /** Why nobody can tell whether we could recover: the storage does not answer, for example. */
    this.healthProblem = null;
    this.pipeline = null;
    this.stats = null;
    this.recoveries = null;
    this.total = null;
    this.notes = new Set();
    this.pushes = new Map();
    this._summaries = new Map();
    this._epochs = new Map();
    this._verifications = [];
    this._synced = new Set();
    this._clockOffset = 0;
    this._changed();
  }

  /** The server's time. */
  now() {
    return Date.now() + this._clockOffset;
  }

  takeHealth(health) {
    this.health = health;
    this.healthProblem = null;
    this._clockOffset = (timeOf(health.at) ?? Date.now()) - Date.now();
  }

  /** Merge a part of the list. What should be in that part and is not, was pruned; `before` null: the newest part. */
  takeListing(listing, before = null) {
    const shown = listing.checkpoints;
    const complete = before === null && shown.length === listing.total;
    const from = complete ? 0 : (shown[0]?.checkpoint_id ?? Infinity);
    const present = new Set(shown.map((each) => each.checkpoint_id));
    for (const id of this._summaries.keys()) {
      const covered = id >= from && (before === null || id < before);
      if (covered && !present.has(id)) this._summaries.delete(id);
    }
    for (const summary of shown)
      this._summaries.set(summary.checkpoint_id, { ...summary, at: timeOf(summary.created_at) });
    this.total = listing.total;
    this._changed();
    this._forgetOldest();
  }

  /** Retention takes the oldest that have no name: when we know more than there are, those are gone. */
  _forgetOldest() {
    const excess = this._summaries.size - this.total;
    const nameless = excess > 0 ? this.ids.filter((id) => this._summaries.get(id).name === null) : [];
    for (const id of nameless.slice(0, excess)) this._summaries.delete(id);
    if (excess > 0) this._changed();
  }

  takeEpochs(history) {
    for (const epoch of history.epochs) this._epochs.set(epoch.checkpoint_id, { ...epoch, at: timeOf(epoch.at) });
    this._take(history.notes);
  }

  /** An epoch as the event stream tells it, before history has it. */
  takeCommitted(event) {
    const { event: _, watermark_ms: watermark, ...rest } = event;
    this._epochs.set(event.checkpoint_id, {
      retries: [],
      ...rest,
      watermark,
      at: this.now(),
      generation: this.generation,
    });
    this._changed();
  }

  takeRecoveries(history) {
    this.recoveries = history.recoveries;
    this._take(history.notes);
  }

  takeVerifications(history) {
    this._verifications = history.verifications;
    this._take(history.notes);
  }

  takeRemote(remote) {
    this._synced = new Set(remote.map((each) => each.uuid));
    this._changed();
  }

  takePipeline(pipeline) {
    this.pipeline = pipeline;
  }

  takeStats(stats) {
    this.stats = stats;
  }

  _take(notes) {
    for (const note of notes) this.notes.add(note);
    this._changed();
  }

  _changed() {
    this._items = this._ids = this._sortedEpochs = null;
  }

  /** The starts that history knows, oldest first; none before history was asked. */
  get starts() {
    return this.recoveries ?? [];
  }

  get generation() {
    return this.health?.holder?.generation ?? null;
  }

  /** The ids of the list, oldest first. */
  get ids() {
    this._ids ??= [...this._summaries.keys()].sort((a, b) => a - b);
    return this._ids;
  }

  /** How many of the store's checkpoints the page has not asked for. */
  get unknownOlder() {
    return this.total === null ? 0 : Math.max(0, this.total - this._summaries.size);
  }

  summary(id) {
    return this._summaries.get(id) ?? null;
  }

  epoch(id) {
    return this._epochs.get(id) ?? null;
  }

  /** Epochs that history knows, oldest first. */
  get epochs() {
    this._sortedEpochs ??= [...this._epochs.values()].sort((a, b) => a.checkpoint_id - b.checkpoint_id);
    return this._sortedEpochs;
  }

  /** Everything that stands on the timeline, by time: checkpoints, and what history knows of those that are gone. */
  get items() {
    this._items ??= this._build();
    return this._items;
  }

  item(id) {
    return this.items.find((each) => each.id === id) ?? null;
  }

  _build() {
    const readings = readingsOf(this._verifications, this.starts);
    const newest = this.ids.at(-1) ?? 0;
    const items = [];
    for (const summary of this._summaries.values()) items.push(this._living(summary, readings, newest));
    for (const epoch of this._epochs.values())
      if (!this._summaries.has(epoch.checkpoint_id)) items.push(gone(epoch, newest));
    items.sort((a, b) => a.id - b.id);
    fillTimes(items);
    return items;
  }

  _living(summary, readings, newest) {
    const epoch = this._epochs.get(summary.checkpoint_id);
    return {
      id: summary.checkpoint_id,
      epoch: summary.epoch,
      at: summary.at,
      state: standingOf(summary, readings, newest),
      kind: summary.kind,
      name: summary.name,
      newBytes: epoch?.new_bytes ?? summary.size,
      fullBytes: epoch?.total_bytes ?? null,
      seconds: epoch?.seconds ?? null,
      rowsIn: epoch?.rows_in ?? null,
      synced: summary.uuid !== null && this._synced.has(summary.uuid),
      problem: readings.get(summary.checkpoint_id)?.[0] ?? (summary.condition === "start" ? null : summary.problem),
      sinks: summary.sinks,
    };
  }
}

function gone(epoch, newest) {
  return {
    id: epoch.checkpoint_id,
    epoch: epoch.epoch,
    at: epoch.at,
    // Newer than the list: it was sealed a moment ago, and the list has not been asked since.
    state: epoch.checkpoint_id > newest ? "unverified" : "pruned",
    kind: "checkpoint",
    name: null,
    newBytes: epoch.new_bytes,
    fullBytes: epoch.total_bytes,
    seconds: epoch.seconds,
    rowsIn: epoch.rows_in,
    synced: false,
    problem: null,
    sinks: {},
  };
}

/** A damaged manifest has no time, and clocks step: ids order the list, so times never go back along it. */
function fillTimes(items) {
  let last = items.find((each) => each.at !== null)?.at ?? 0;
  let full = null;
  for (const item of items) {
    item.at = last = Math.max(item.at ?? last, last);
    // A fence and a checkpoint on request share the state of the one before.
    full = item.fullBytes ?? full;
    item.fullBytes = item.state === "start" ? 0 : full;
  }
}
