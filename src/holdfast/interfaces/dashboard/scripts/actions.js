/** What an operator can do. Each action says how it ended; where a token is needed, the page asks for one. */

import { ApiError } from "./api.js";
import { ask } from "./accessibility.js";
import { h } from "./dom.js";

const LOOK_MS = 250;
const CHECKPOINT_PATIENCE_MS = 120_000;

/** Which actions make sense in a status: names of `Actions`, the first is the main one. */
export function actionsFor(model) {
  if (!model.isPipeline || model.pipeline === null) return [];
  switch (model.pipeline.deployment_status) {
    case "Running":
      return ["checkpoint", "pause", "stop"];
    case "Paused":
      return ["resume", "checkpoint", "stop"];
    case "Standby":
      return ["activate", "stop"];
    case "AwaitingApproval":
      return ["approve", "stop"];
    case "Stopped":
      return ["start"];
    case "Stopping":
      return ["kill"];
    case "Initializing":
    case "Replaying":
    case "Provisioning":
      return ["stop"];
    default:
      return [];
  }
}

export const LABELS = {
  checkpoint: "Take a checkpoint",
  pause: "Pause",
  resume: "Resume",
  stop: "Stop…",
  start: "Start",
  activate: "Take over…",
  approve: "Approve the change…",
  kill: "Stop at once…",
};

export class Actions {
  /** `tell` shows and says how things went. */
  constructor(api, session, { tell, onDone }) {
    Object.assign(this, { _api: api, _session: session, _tell: tell, _onDone: onDone });
  }

  /** Run one of the actions by name. */
  async run(name, paths) {
    try {
      await this[`_${name}`](paths);
    } catch (error) {
      if (error !== CANCELLED) this._tell(error.message, "bad");
    }
    this._onDone();
  }

  /** Post, and ask for a token when that is what is missing; then once more. */
  async post(path, body) {
    try {
      return await this._api.post(path, body);
    } catch (error) {
      if (!(error instanceof ApiError) || !error.needsToken) throw error;
      await this.askForToken(
        error.code === "ReadOnlyToken"
          ? "This token is for looking only. What you asked for needs the operator's token."
          : "What you asked for needs the operator's token.",
      );
      return this._api.post(path, body);
    }
  }

  /** Ask for a token and keep it for this tab. */
  async askForToken(text) {
    const field = h("input", {
      type: "password",
      id: "token-field",
      autocomplete: "off",
      required: true,
      minlength: 16,
      maxlength: 512,
      spellcheck: "false",
    });
    const token = await ask({
      title: "Token",
      text: `${text} It stays in this tab and is forgotten with it.`,
      fields: [h("label", { for: "token-field" }, "Token"), field],
      agree: "Use it",
      answer: () => field.value.trim(),
    });
    if (token === null) throw CANCELLED;
    this._session.token = token;
  }

  async _checkpoint({ control }) {
    const asked = await this.post(`${control}/checkpoint`);
    this._tell("A checkpoint is asked for", "plain");
    const number = asked.checkpoint_sequence_number;
    const deadline = Date.now() + CHECKPOINT_PATIENCE_MS;
    while (Date.now() < deadline) {
      const status = await this._api.get(`${control}/checkpoint_status?incarnation_uuid=${asked.incarnation_uuid}`);
      if (status.success !== null && status.success >= number) return this._tell("The checkpoint is taken", "good");
      if (status.failure !== null && status.failure.sequence_number >= number)
        return this._tell(`No checkpoint: ${status.failure.error}`, "bad");
      await new Promise((resolve) => setTimeout(resolve, LOOK_MS));
    }
    return this._tell("The checkpoint is not taken yet; the activity says what it waits for", "warn");
  }

  async _pause({ control }) {
    await this.post(`${control}/pause`);
    this._tell("The pipeline holds before its next epoch", "good");
  }

  async _resume({ control }) {
    await this.post(`${control}/resume`);
    this._tell("The pipeline goes on", "good");
  }

  async _start({ control }) {
    await this.post(`${control}/start`);
    this._tell("The pipeline is starting", "good");
  }

  async _stop({ control }) {
    const force = h("input", { type: "checkbox", id: "stop-force" });
    const agreed = await ask({
      title: "Stop the pipeline?",
      text: "It finishes the running epoch, then ends. The next start goes on from the newest checkpoint.",
      fields: [
        h(
          "p",
          { class: "choice" },
          force,
          h("label", { for: "stop-force" }, "End at once, in the middle of the epoch; recovery makes up for it"),
        ),
      ],
      agree: "Stop",
      danger: true,
      answer: () => ({ force: force.checked }),
    });
    if (agreed === null) throw CANCELLED;
    await this.post(`${control}/stop?force=${agreed.force}`);
    this._tell("The pipeline is stopping", "warn");
  }

  async _kill({ control }) {
    if (
      !(await ask({
        title: "Stop at once?",
        text: "The process is ended in the middle of its epoch. Recovery makes up for it at the next start.",
        agree: "Stop at once",
        danger: true,
      }))
    )
      throw CANCELLED;
    await this.post(`${control}/stop?force=true`);
    this._tell("The pipeline is being ended", "warn");
  }

  async _activate({ control }) {
    if (
      !(await ask({
        title: "Take over?",
        text: "This standby becomes the writer. Whoever writes now is fenced off.",
        agree: "Take over",
        danger: true,
      }))
    )
      throw CANCELLED;
    await this.post(`${control}/activate`);
    this._tell("The standby takes over", "good");
  }

  async _approve({ control }) {
    if (
      !(await ask({
        title: "Approve the change?",
        text: "It goes on with its state although it was changed. Approve only if the state still means the same.",
        agree: "Approve",
        danger: true,
      }))
    )
      throw CANCELLED;
    await this.post(`${control}/approve`);
    this._tell("The change is approved", "good");
  }

  /** Have checkpoints read in full: all, or some. `onProgress` hears of the job until it has ended; returns it. */
  async verify({ store }, references, onProgress) {
    let job = await this.post(`${store}/verifications`, { checkpoints: references });
    while (job.status === "waiting" || job.status === "running") {
      onProgress(job);
      await new Promise((resolve) => setTimeout(resolve, LOOK_MS));
      job = await this._api.get(`${store}/verifications/${job.id}`);
    }
    onProgress(job);
    return job;
  }
}

/** Somebody thought better of it: not worth a word. */
export const CANCELLED = new Error("cancelled");
