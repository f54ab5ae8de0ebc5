/** Server-Sent Events over `fetch`, because an `EventSource` cannot send a token. Heals by itself. */

import { ApiError } from "./api.js";

const FIRST_PAUSE_MS = 1_000;
const LONGEST_PAUSE_MS = 15_000;
const ABSENT_PAUSE_MS = 5_000;
/** The server writes at least every 15 seconds: what is silent for longer is broken. */
const SILENCE_MS = 40_000;

/** Cuts text into events. Feed it pieces of any length; each `push` returns the events that are complete. */
export class EventParser {
  constructor() {
    this._rest = "";
  }

  push(text) {
    const blocks = (this._rest + text).replaceAll("\r\n", "\n").split("\n\n");
    this._rest = blocks.pop();
    return blocks.map(parseBlock).filter(Boolean);
  }
}

function parseBlock(block) {
  const data = block
    .split("\n")
    .filter((line) => line.startsWith("data:"))
    .map((line) => line.slice(5).trimStart());
  if (data.length === 0) return null;
  try {
    return JSON.parse(data.join("\n"));
  } catch {
    return null;
  }
}

/** How long to wait before attempt number `failures` (from 1): doubles, up to a limit. */
export function pauseAfter(failures) {
  return Math.min(FIRST_PAUSE_MS * 2 ** Math.max(0, failures - 1), LONGEST_PAUSE_MS);
}

/**
 * Listens to one pipeline until `close`. `onState` hears `live`, `absent` (nothing runs that could tell) or
 * `lost` with the pause before the next attempt.
 */
export class EventStream {
  constructor(api, path, { onEvent, onState }) {
    Object.assign(this, { _api: api, _path: path, _onEvent: onEvent, _onState: onState });
    this._closed = false;
    this._failures = 0;
    this._wake = () => {};
    this._run();
  }

  close() {
    this._closed = true;
    this._abort?.abort();
    this._wake();
  }

  /** Try again now. */
  hurry() {
    this._wake();
  }

  async _run() {
    while (!this._closed) {
      try {
        await this._listen();
        this._failures = 1; // It ended in good order: the pipeline stopped, or we were too slow.
        await this._pause(FIRST_PAUSE_MS);
      } catch (error) {
        if (this._closed) return;
        await this._afterFailure(error);
      }
    }
  }

  async _listen() {
    this._abort = new AbortController();
    const body = await this._api.stream(this._path, this._abort.signal);
    this._failures = 0;
    this._onState("live");
    const reader = body.pipeThrough(new TextDecoderStream()).getReader();
    const parser = new EventParser();
    while (!this._closed) {
      const { value, done } = await this._within(SILENCE_MS, reader.read());
      if (done) return;
      for (const event of parser.push(value)) this._onEvent(event);
    }
  }

  async _within(milliseconds, promise) {
    let timer;
    const silence = new Promise((_, reject) => {
      timer = setTimeout(() => reject(new Error("the stream is silent")), milliseconds);
    });
    try {
      return await Promise.race([promise, silence]);
    } catch (error) {
      this._abort.abort();
      throw error;
    } finally {
      clearTimeout(timer);
    }
  }

  async _afterFailure(error) {
    this._failures += 1;
    if (error instanceof ApiError) {
      this._onState("absent");
      await this._pause(ABSENT_PAUSE_MS);
      return;
    }
    const pause = pauseAfter(this._failures);
    this._onState("lost", pause);
    await this._pause(pause);
  }

  _pause(milliseconds) {
    return new Promise((resolve) => {
      const timer = setTimeout(resolve, milliseconds);
      this._wake = () => {
        clearTimeout(timer);
        resolve();
      };
    });
  }
}
