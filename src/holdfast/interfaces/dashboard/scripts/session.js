/** The token of this browser tab: in memory and in sessionStorage, never anywhere that outlives the tab. */

const KEY = "holdfast.token";

export class Session {
  constructor(storage = safeStorage()) {
    this._storage = storage;
    this._token = storage?.getItem(KEY) ?? null;
  }

  get token() {
    return this._token;
  }

  /** Keep a token, or forget it (null). */
  set token(token) {
    this._token = token || null;
    if (this._token) this._storage?.setItem(KEY, this._token);
    else this._storage?.removeItem(KEY);
  }
}

function safeStorage() {
  try {
    return globalThis.sessionStorage;
  } catch {
    return null; // The browser keeps nothing for us: memory has to do.
  }
}
