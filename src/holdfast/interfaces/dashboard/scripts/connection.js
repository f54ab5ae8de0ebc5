/** Whether what the page shows is true now: put together from requests that were answered or not, and the stream. */

import { byId, h } from "./dom.js";
import { momentText } from "./formatting.js";

const WORDS = { live: "Live", polling: "Connected", lost: "No connection", connecting: "Connecting…" };

export class Connection {
  constructor() {
    this.state = "connecting";
    this.lostSince = null;
    this._stream = "absent";
  }

  /** A request was answered, or nobody was there. */
  contact(reached, now) {
    if (reached) this.lostSince = null;
    else this.lostSince ??= now;
    this._settle(reached);
  }

  /** The stream is `live`, `absent` or `lost`. */
  stream(state, now) {
    this._stream = state;
    if (state === "live") this.lostSince = null;
    if (state === "lost") this.lostSince ??= now;
    this._settle(state !== "lost");
  }

  _settle() {
    if (this.lostSince !== null) this.state = "lost";
    else this.state = this._stream === "live" ? "live" : "polling";
  }

  get stale() {
    return this.state === "lost";
  }
}

export function showConnection(connection, retry) {
  const pill = byId("connection");
  pill.dataset.state = connection.state;
  pill.textContent = WORDS[connection.state];
  pill.title =
    connection.state === "polling" ? "Nothing runs that could send events: the page asks every few seconds" : "";
  document.body.classList.toggle("stale", connection.stale);
  const banner = byId("connection-banner");
  if (!connection.stale) banner.hidden = true;
  else if (banner.hidden) {
    banner.replaceChildren(
      h(
        "span",
        {},
        h("strong", {}, "No connection"),
        ` since ${momentText(connection.lostSince, connection.lostSince)}. What you see is what was true then.`,
      ),
      h("button", { type: "button", onclick: retry }, "Try now"),
    );
    banner.hidden = false;
  }
}
