/** Asks the documented HTTP API. An answer that says no becomes an `ApiError`; no answer at all an `Unreachable`. */

const PATIENCE_MS = 20_000;

/** The server said no, in the one form that all its errors have. */
export class ApiError extends Error {
  constructor(status, body) {
    super(body?.message ?? `the server answered with ${status}`);
    this.status = status;
    this.code = body?.error_code ?? "Unknown";
    this.details = body?.details ?? null;
  }

  /** Whether a token would help: there is none, it is wrong, or it is for looking only. */
  get needsToken() {
    return this.status === 401 || this.code === "ReadOnlyToken";
  }
}

/** Nobody answered. */
export class Unreachable extends Error {}

/** The API with the token of this session. */
export class Api {
  constructor(session, { fetch = (...given) => globalThis.fetch(...given), onContact = () => {} } = {}) {
    this._session = session;
    this._fetch = fetch;
    this._onContact = onContact;
  }

  get(path, options = {}) {
    return this._json("GET", path, options);
  }

  post(path, body, options = {}) {
    return this._json("POST", path, { ...options, body });
  }

  delete(path, options = {}) {
    return this._json("DELETE", path, options);
  }

  /** Open a stream; the caller reads its body for as long as it lasts. */
  async stream(path, signal) {
    const answer = await this._answer("GET", path, { signal, headers: { Accept: "text/event-stream" } });
    return answer.body;
  }

  async _json(method, path, { body, signal, patience = PATIENCE_MS } = {}) {
    const limit = AbortSignal.timeout(patience);
    const both = signal ? AbortSignal.any([signal, limit]) : limit;
    const answer = await this._answer(method, path, { body, signal: both });
    try {
      return await answer.json();
    } catch (error) {
      if (signal?.aborted) throw signal.reason;
      throw new Unreachable(`the answer to ${method} ${path} broke off`);
    }
  }

  async _answer(method, path, { body, signal, headers = {} }) {
    const token = this._session.token;
    let answer;
    try {
      answer = await this._fetch(path, {
        method,
        signal,
        cache: "no-store",
        headers: {
          ...headers,
          ...(token && { Authorization: `Bearer ${token}` }),
          ...(body !== undefined && { "Content-Type": "application/json" }),
        },
        body: body === undefined ? undefined : JSON.stringify(body),
      });
    } catch (error) {
      if (signal?.aborted && signal.reason?.name === "AbortError") throw error;
      this._onContact(false);
      throw new Unreachable(`nobody answers at ${globalThis.location?.host ?? "the server"}`);
    }
    this._onContact(true);
    if (!answer.ok) throw new ApiError(answer.status, await answer.json().catch(() => null));
    return answer;
  }
}

/** The paths of one pipeline or store. */
export function pathsOf(name) {
  const encoded = encodeURIComponent(name);
  return { control: `/v0/pipelines/${encoded}`, store: `/api/v1/pipelines/${encoded}` };
}
