/** Fetches what the model needs, and again when events say so: each kind at most so often, and one at a time. */

import { ApiError } from "./api.js";
import { EventStream } from "./event_stream.js";

const FIRST_LIST = 300;
const NEWS_LIST = 40;
const NEWS_HISTORY = 200;
const OLDER_LIST = 500;
const MOST_LISTED = 10_000;
const OLDER_HISTORY_MS = 800;

/** Least milliseconds between two fetches of a kind, and how often it is fetched without any event. */
const PACE = {
  health: { least: 3_000, every: 10_000 },
  checkpoints: { least: 1_000, every: 10_000 },
  status: { least: 500, every: 5_000 },
  stats: { least: 1_500, every: 3_000 },
  // Epochs come as events; a pipeline of another process writes them down every ten seconds.
  history: { least: 5_000, every: 12_000 },
  recoveries: { least: 2_000, every: 30_000 },
  verifications: { least: 1_000, every: 30_000 },
  remote: { least: 5_000, every: 60_000 },
};
const WAKES = {
  EpochCommitted: ["checkpoints", "health", "stats"],
  CheckpointTaken: ["checkpoints", "health"],
  CheckpointFailed: ["health", "status"],
  CheckpointVerified: ["verifications", "health"],
  Recovered: ["recoveries", "checkpoints", "health", "status"],
  EpochReplayed: ["recoveries"],
  SyncPushed: ["remote"],
  SinkRetry: ["stats"],
  Stopped: ["status", "recoveries", "history", "health"],
  Lost: ["checkpoints", "health", "recoveries"],
};

export class Loader {
  /** `onChange` hears of changes of the model, `onStream` how the event stream is, `onDenied` of a missing token. */
  constructor(api, model, paths, { onChange, onStream, onDenied }) {
    Object.assign(this, { _api: api, _model: model, _paths: paths, _onChange: onChange, _onDenied: onDenied });
    this._abort = new AbortController();
    this._due = new Map();
    this._busy = new Set();
    this._last = new Map();
    this._refusedUntil = new Map();
    this._timer = setInterval(() => this._everyNowAndThen(), 500);
    this._first();
    if (model.isPipeline) {
      this._stream = new EventStream(api, `${paths.store}/events`, {
        onEvent: (event) => this._onEvent(event),
        onState: onStream,
      });
    } else onStream("absent");
  }

  close() {
    this._abort.abort();
    clearInterval(this._timer);
    clearTimeout(this._historyTimer);
    this._stream?.close();
  }

  /** Ask for kinds of news now, or all. */
  refresh(...kinds) {
    for (const kind of kinds.length > 0 ? kinds : Object.keys(PACE)) this._wake(kind, 0);
    this._stream?.hurry();
  }

  async _first() {
    this._wake("status", 0);
    this._wake("health", 0);
    await this._fetch("checkpoints", () => this._list(FIRST_LIST));
    for (const kind of ["recoveries", "verifications", "stats", "remote"]) this._wake(kind, 0);
    await this._fetch("history", () => this._history(FIRST_LIST * 2));
  }

  _onEvent(event) {
    if (event.event === "EpochCommitted") this._model.takeCommitted(event);
    if (event.event === "SyncPushed") this._model.pushes.set(event.checkpoint, event.seconds);
    for (const kind of WAKES[event.event] ?? []) this._wake(kind, PACE[kind].least);
    this._onChange(event);
  }

  /** Have a kind fetched, but not sooner than its pace allows. */
  _wake(kind, least) {
    const soonest = (this._last.get(kind) ?? -Infinity) + least;
    this._due.set(kind, Math.min(this._due.get(kind) ?? Infinity, soonest));
    this._everyNowAndThen();
  }

  _everyNowAndThen() {
    const now = performance.now();
    const slower = document.hidden ? 6 : 1;
    for (const [kind, pace] of Object.entries(PACE)) {
      const regular = (this._last.get(kind) ?? Infinity) + pace.every * slower;
      const due = Math.max(Math.min(this._due.get(kind) ?? Infinity, regular), this._refusedUntil.get(kind) ?? 0);
      if (due <= now && !this._busy.has(kind)) this._fetch(kind, FETCHES[kind].bind(this));
    }
  }

  async _fetch(kind, work) {
    this._busy.add(kind);
    this._due.delete(kind);
    this._last.set(kind, performance.now());
    try {
      await work();
      this._onChange();
    } catch (error) {
      this._failed(kind, error);
    } finally {
      this._busy.delete(kind);
    }
  }

  _failed(kind, error) {
    if (!(error instanceof ApiError)) return; // Nobody answered: the page says so, and asks again.
    if (error.status === 401) this._onDenied(error);
    // A store without a pipeline has no status, a pipeline without a bucket no copies: not worth asking often.
    if (error.status === 400 || error.status === 404) this._refusedUntil.set(kind, performance.now() + 60_000);
    if (kind === "stats") this._model.takeStats(null);
    if (kind === "health") this._model.healthProblem = error.message;
    this._onChange();
  }

  _get(path) {
    return this._api.get(`${this._paths.store}${path}`, { signal: this._abort.signal });
  }

  async _list(last) {
    this._model.takeListing(await this._get(`/checkpoints?last=${last}`));
  }

  async _history(last) {
    this._model.takeEpochs(await this._get(`/history?last=${last}`));
  }

  /** Fetch older checkpoints, a part at a time, as long as somebody wants to see them; then their history at once. */
  async older() {
    if (this._busy.has("older") || this._model.unknownOlder === 0 || this._model.ids.length >= MOST_LISTED) return;
    clearTimeout(this._historyTimer);
    await this._fetch("older", async () => {
      const before = this._model.ids[0];
      const listing = await this._get(`/checkpoints?last=${OLDER_LIST}&before=${before}`);
      this._model.takeListing(listing, before);
      if (listing.checkpoints.length === 0) this._model.total = this._model.ids.length;
    });
    const last = Math.min(MOST_LISTED, this._model.ids.length + FIRST_LIST);
    this._historyTimer = setTimeout(() => this._fetch("history", () => this._history(last)), OLDER_HISTORY_MS);
  }

  async reports(before, after) {
    const [a, b] = await Promise.all([before, after].map((id) => this._get(`/checkpoints/${id}`)));
    return { before: a, after: b };
  }

  report(id) {
    return this._get(`/checkpoints/${id}`);
  }

  manifest(id) {
    return this._get(`/checkpoints/${id}/manifest`);
  }

  differences(before, after) {
    return this._get(`/differences?before=${before}&after=${after}`);
  }
}

const FETCHES = {
  async health() {
    this._model.takeHealth(await this._get("/health"));
  },
  async checkpoints() {
    await this._list(NEWS_LIST);
  },
  async history() {
    await this._history(NEWS_HISTORY);
  },
  async status() {
    if (!this._model.isPipeline) return;
    this._model.takePipeline(
      await this._api.get(`${this._paths.control}?selector=status`, { signal: this._abort.signal }),
    );
  },
  async stats() {
    if (!this._model.isPipeline) return;
    this._model.takeStats(await this._api.get(`${this._paths.control}/stats`, { signal: this._abort.signal }));
  },
  async recoveries() {
    this._model.takeRecoveries(await this._get("/recoveries?last=500"));
  },
  async verifications() {
    this._model.takeVerifications(await this._get("/verification_history"));
  },
  async remote() {
    if (!this._model.isPipeline) return;
    this._model.takeRemote(
      await this._api.get(`${this._paths.control}/checkpoints/remote`, { signal: this._abort.signal }),
    );
  },
};
