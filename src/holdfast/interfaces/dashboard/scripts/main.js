/** Puts the page together: which pipeline, what is fetched, what is drawn. */

import { Announcer, tickAges } from "./accessibility.js";
import { Actions, CANCELLED, LABELS, actionsFor } from "./actions.js";
import { Api, ApiError, pathsOf } from "./api.js";
import { CheckpointTable } from "./checkpoint_table.js";
import { CheckpointView, outcomeText } from "./checkpoint_view.js";
import { Connection, showConnection } from "./connection.js";
import { byId, h, renderInto } from "./dom.js";
import { ageText, bytesText } from "./formatting.js";
import { Loader } from "./loader.js";
import { Model } from "./model.js";
import { isAlive, showPipeline, statusOf } from "./pipeline.js";
import { parseRoute, routeText } from "./routing.js";
import { showRecoveries } from "./recoveries.js";
import { Session } from "./session.js";
import { installTheme } from "./theme.js";
import { Timeline } from "./timeline.js";
import { showVerdict } from "./verdict.js";

const RETRY_MS = 3_000;
const NAMES_EVERY_MS = 30_000;

class Page {
  constructor() {
    this._session = new Session();
    this._connection = new Connection();
    this._announcer = new Announcer();
    this._api = new Api(this._session, {
      onContact: (reached) => this._contact(() => this._connection.contact(reached, Date.now())),
    });
    this._actions = new Actions(this._api, this._session, {
      tell: (text, tone) => this._tell(text, tone),
      onDone: () => this._loader?.refresh("status", "stats", "checkpoints", "health"),
    });
    this._timeline = new Timeline({
      onOpen: (id) => this._go({ checkpoint: id }),
      onCompare: (id) => this._go({ checkpoint: this._selected(), compared: id }),
      onOlder: () => this._loader?.older(),
    });
    this._table = new CheckpointTable({ onOlder: () => this._loader?.older() });
    this._panel = new CheckpointView({
      actions: this._actions,
      onCompare: (compared, checkpoint) => this._go({ checkpoint, compared }),
      onVerified: () => this._loader?.refresh("verifications", "health", "checkpoints"),
      tell: (text, tone) => this._tell(text, tone),
    });
    this._names = [];
    this._default = null;
    this._said = {};
    installTheme(() => this._timeline.readTheme());
    this._listen();
    this._findNames();
  }

  _listen() {
    addEventListener("hashchange", () => this._follow());
    addEventListener("online", () => this._loader?.refresh());
    document.addEventListener("visibilitychange", () => !document.hidden && this._loader?.refresh());
    byId("switcher").addEventListener("change", (event) => {
      location.hash = routeText({ name: event.target.value });
    });
    byId("token").addEventListener("click", () => this._changeToken());
    byId("verify-all").addEventListener("click", () => this._verifyAll());
    setInterval(() => this._model && tickAges(this._model.now(), ageText), 1_000);
  }

  // which pipeline

  async _findNames() {
    try {
      this._names = await this._api.get("/api/v1/pipelines");
      setTimeout(() => this._findNames(), NAMES_EVERY_MS);
    } catch (error) {
      if (error instanceof ApiError && error.status === 401) return this._denied();
      setTimeout(() => this._findNames(), RETRY_MS);
    }
    this._showSwitcher();
    this._follow();
  }

  _showSwitcher() {
    const current = this._model?.name;
    renderInto(byId("switcher"), [this._names], () =>
      this._names.map(({ name, pipeline }) => h("option", { value: name }, pipeline ? name : `${name} (store)`)),
    );
    if (current) byId("switcher").value = current;
    byId("switcher").hidden = this._names.length < 2;
    byId("name").hidden = this._names.length > 1;
  }

  /** Show what the address names. */
  _follow() {
    const elsewhere = location.hash !== "" && !location.hash.startsWith("#/"); // A place on the page, not a pipeline.
    if (this._names.length === 0 || (elsewhere && this._model)) return this._render();
    const route = parseRoute(location.hash);
    const entry = this._names.find((each) => each.name === route.name) ?? this._names[0];
    if (entry.name !== this._model?.name) this._open(entry);
    this._route = { ...route, name: entry.name };
    this._render();
  }

  _open({ name, pipeline }) {
    this._loader?.close();
    this._timeline.reset();
    this._table.reset();
    this._panel.reset();
    this._default = null;
    this._said = {};
    this._paths = pathsOf(name);
    this._model = new Model(name, pipeline);
    this._route = { name, checkpoint: null, compared: null };
    byId("name").textContent = name;
    byId("switcher").value = name;
    document.title = `${name} · Holdfast`;
    this._loader = new Loader(this._api, this._model, this._paths, {
      onChange: () => this._render(),
      onStream: (state) => this._contact(() => this._connection.stream(state, Date.now())),
      onDenied: () => this._denied(),
    });
  }

  _go(route) {
    const hash = routeText({ name: this._model.name, ...route });
    if (location.hash === hash) this._follow();
    else location.hash = hash;
  }

  /** The chosen checkpoint; before anybody chooses, the one that a start would go back to when we first looked. */
  _selected() {
    if (this._route?.checkpoint) return this._route.checkpoint;
    this._default ??= this._model?.health?.checkpoint?.checkpoint_id ?? null;
    return this._default;
  }

  // what is seen

  /** Draw once per frame, however many news came. */
  _render() {
    if (this._frame) return;
    this._frame = requestAnimationFrame(() => {
      this._frame = null;
      if (this._model) this._draw();
    });
  }

  _draw() {
    const model = this._model;
    const { stale } = this._connection;
    const alive = isAlive(model.pipeline);
    const selected = this._selected();
    const headline = showVerdict(model, { stale });
    this._timeline.show(model, { selected, compared: this._route.compared, alive });
    this._table.show(model);
    this._panel.show(model, this._loader, this._paths, selected, this._route.compared);
    showRecoveries(model, { alive });
    showPipeline(model, { stale });
    this._showActions();
    const status = statusOf(model);
    byId("status").textContent = status.text;
    byId("status").dataset.tone = status.tone;
    byId("history-notes").textContent = [...model.notes].join(" ");
    tickAges(model.now(), ageText);
    this._announce("verdict", model.health && headline);
    this._announce("status", model.pipeline && `Pipeline ${model.name}: ${status.text}`);
  }

  /** Say what changed, and nothing when the page was only just opened. */
  _announce(topic, text) {
    if (!text || this._said[topic] === text) return;
    if (this._said[topic] !== undefined) this._announcer.say(text);
    this._said[topic] = text;
  }

  _contact(change) {
    const before = this._connection.state;
    change();
    if (this._connection.state === before) return;
    showConnection(this._connection, () => this._loader?.refresh());
    if (this._connection.stale) this._announcer.say("The connection is lost");
    else if (before === "lost") {
      this._announcer.say("The connection is back");
      this._loader?.refresh();
    }
    this._render();
  }

  _showActions() {
    const names = this._connection.stale ? [] : actionsFor(this._model);
    renderInto(byId("actions"), [this._model.name, names], () =>
      names.map((name, index) =>
        h(
          "button",
          {
            type: "button",
            class: name === "stop" || name === "kill" ? "danger-quiet" : index === 0 ? "primary" : "",
            "data-key": `action-${name}`,
            onclick: () => this._actions.run(name, this._paths),
          },
          LABELS[name],
        ),
      ),
    );
    byId("verify-all").hidden = !this._model.total;
  }

  _tell(text, tone) {
    const message = h("p", { class: `toast ${tone}` }, text);
    byId("toasts").replaceChildren(message);
    this._announcer.say(text);
    setTimeout(() => message.remove(), 12_000);
  }

  async _verifyAll() {
    try {
      const job = await this._actions.verify(this._paths, [], (state) => {
        const running = state.status === "waiting" || state.status === "running";
        byId("verify-all").setAttribute("aria-disabled", String(running));
        byId("verify-progress").hidden = !running;
        byId("verify-bar").value = state.bytes_total > 0 ? Math.min(1, state.bytes_read / state.bytes_total) : 0;
        byId("verify-text").textContent = `${bytesText(state.bytes_read)} of ${bytesText(state.bytes_total)}`;
      });
      this._tell(outcomeText(job, null), job.result?.sound ? "good" : "bad");
    } catch (error) {
      if (error !== CANCELLED) this._tell(error.message, "bad");
    }
    this._loader.refresh("verifications", "health", "checkpoints");
  }

  // tokens

  async _denied() {
    if (this._asking || this._declined) return;
    this._asking = true;
    const had = this._session.token;
    try {
      await this._actions.askForToken(
        had ? "The server does not take this token." : "This server shows nothing without a token.",
      );
    } catch {
      this._declined = true;
      this._tell("Without a token there is nothing to see: “Token” in the header asks for one", "warn");
      return;
    } finally {
      this._asking = false;
    }
    this._restart();
  }

  async _changeToken() {
    try {
      await this._actions.askForToken("Give the operator's token to act, or the reader's to look.");
      this._restart();
    } catch {
      // They thought better of it.
    }
  }

  _restart() {
    this._declined = false;
    if (this._model) {
      this._loader.close();
      this._model = null;
    }
    this._findNames();
  }
}

new Page();
