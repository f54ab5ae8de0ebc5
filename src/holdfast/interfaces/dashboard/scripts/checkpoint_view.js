/** The panel of the chosen checkpoint: fetches its report, verifies, compares, shows its manifest. */

import { ApiError } from "./api.js";
import { CANCELLED } from "./actions.js";
import { checkpointPanel } from "./checkpoint.js";
import { differencesView } from "./differences.js";
import { byId, h, renderInto } from "./dom.js";
import { bytesText, durationText, percentText, readable } from "./formatting.js";

const NOTHING = { report: null, problem: null };

export class CheckpointView {
  /** `onCompare` hears which two to compare; `tell` shows and says how things went. */
  constructor({ actions, onCompare, onVerified, tell }) {
    Object.assign(this, { _actions: actions, _onCompare: onCompare, _onVerified: onVerified, _tell: tell });
    this._body = byId("checkpoint-body");
    this.reset();
  }

  reset() {
    this._id = this._asked = this._compared = this._difference = this._reports = this._manifest = null;
    this._found = NOTHING;
    this._job = this._typed = null;
  }

  /** Show a checkpoint, compared with another one or with none. */
  show(model, loader, paths, id, compared) {
    Object.assign(this, { _model: model, _loader: loader, _paths: paths });
    if (id === null) {
      renderInto(this._body, ["nothing", model.total], () =>
        h(
          "p",
          { class: "note" },
          model.total === 0 ? "There are no checkpoints yet." : "Choose a checkpoint on the timeline.",
        ),
      );
      return;
    }
    if (id !== this._id) {
      this.reset();
      this._id = id;
    }
    if (compared !== this._compared) {
      this._compared = compared;
      this._difference = null;
      if (compared !== null) this._compare();
    }
    this._fetchIfChanged();
    this._render();
  }

  /** The report changes when sinks, names or damage do; only then it is asked for again. */
  async _fetchIfChanged() {
    const id = this._id;
    const summary = this._model.summary(id);
    const wanted = JSON.stringify([
      id,
      summary?.sinks,
      summary?.condition,
      summary?.name,
      summary?.abandoned_by,
      summary === null,
    ]);
    if (this._asked === wanted) return;
    this._asked = wanted;
    try {
      this._keep(id, { report: await this._loader.report(id), problem: null });
    } catch (error) {
      if (!(error instanceof ApiError))
        this._asked = null; // Nobody answered: ask again with the next news.
      else if (error.status === 404) this._keep(id, NOTHING);
      else this._keep(id, { report: null, problem: error.message });
    }
  }

  _keep(id, found) {
    if (id !== this._id) return;
    this._found = found;
    this._render();
  }

  _render() {
    const model = this._model;
    const { timestamp_ms: _, age_seconds: __, ...report } = this._found.report ?? {};
    const signature = [
      this._id,
      this._id === model.ids.at(-1),
      model.item(this._id),
      model.epoch(this._id),
      report,
      this._found.problem,
      this._compared,
      this._difference,
      this._manifest,
      this._job,
      model.pushes.get(report.uuid),
    ];
    renderInto(this._body, signature, () =>
      checkpointPanel(model, this._id, this._found, {
        actions: this._tools(),
        progress: this._progress(),
        differences: this._compared === null ? null : this._differences(),
        manifest: this._manifestDetails(),
      }),
    );
  }

  _tools() {
    const previous = this._model.ids.filter((id) => id < this._id).at(-1) ?? null;
    const field = h("input", {
      type: "text", // A field for numbers does not tell what is selected in it: `renderInto` could not keep it.
      inputmode: "numeric",
      pattern: "[1-9][0-9]*",
      title: "the number of a checkpoint",
      id: "compare-with",
      required: true,
      value: this._typed ?? this._compared ?? previous ?? "",
      "data-key": "compare-with",
      oninput: () => {
        this._typed = field.value; // What somebody types outlives news that have the panel built anew.
      },
    });
    const busy = this._job?.status === "waiting" || this._job?.status === "running";
    const readable = this._found.report !== null;
    return h(
      "div",
      { class: "tools" },
      this._model.summary(this._id) &&
        h(
          "button",
          {
            type: "button",
            class: "primary",
            "data-key": "verify",
            "aria-disabled": String(busy),
            onclick: () => !busy && this._verify(),
          },
          "Verify",
        ),
      readable &&
        h(
          "form",
          {
            class: "compare",
            onsubmit: (event) => {
              event.preventDefault();
              this._onCompare(Number(field.value), this._id);
            },
          },
          h("label", { for: "compare-with" }, "Compare with"),
          field,
          h("button", { type: "submit", "data-key": "compare" }, "Show differences"),
        ),
    );
  }

  async _verify() {
    const id = this._id;
    try {
      const job = await this._actions.verify(this._paths, [String(id)], (state) => {
        if (id !== this._id) return;
        this._job = state;
        this._render();
      });
      this._tell(outcomeText(job, id), job.result?.sound ? "good" : "bad");
    } catch (error) {
      if (error !== CANCELLED) this._tell(error.message, "bad");
    }
    this._onVerified();
  }

  _progress() {
    const job = this._job;
    if (job === null) return null;
    if (job.status === "waiting" || job.status === "running") {
      const share = job.bytes_total > 0 ? job.bytes_read / job.bytes_total : 0;
      return h(
        "div",
        { class: "progress" },
        h("progress", { "aria-label": "Verification", value: Math.min(1, share), max: 1 }),
        h(
          "span",
          { class: "note" },
          job.status === "waiting"
            ? "waits for others to end"
            : `${bytesText(job.bytes_read)} of ${bytesText(job.bytes_total)} read, ${percentText(share)}`,
        ),
      );
    }
    const sound = job.result?.sound;
    return h("p", { class: sound ? "outcome good" : "outcome bad" }, outcomeText(job, this._id));
  }

  async _compare() {
    const [id, compared] = [this._id, this._compared];
    try {
      const [difference, reports] = await Promise.all([
        this._loader.differences(compared, id),
        this._loader.reports(compared, id),
      ]);
      if (id !== this._id || compared !== this._compared) return;
      Object.assign(this, { _difference: { difference }, _reports: reports });
    } catch (error) {
      if (compared !== this._compared) return;
      this._difference = { problem: error.message };
    }
    this._render();
    byId("checkpoint-body").querySelector("#differences-title")?.focus();
  }

  _differences() {
    const close = h(
      "button",
      {
        type: "button",
        class: "quiet",
        "data-key": "close-differences",
        onclick: () => this._onCompare(null, this._id),
      },
      "Close",
    );
    if (this._difference === null) return h("section", { class: "inset" }, h("p", { class: "note" }, "Comparing…"));
    if (this._difference.problem)
      return h("section", { class: "inset" }, h("p", { class: "problem" }, this._difference.problem), close);
    return h(
      "section",
      { class: "inset", "aria-label": "Differences" },
      differencesView(this._model, this._difference.difference, this._reports),
      close,
    );
  }

  _manifestDetails() {
    return h(
      "details",
      { "data-key": "manifest", ontoggle: (event) => event.target.open && this._fetchManifest() },
      h("summary", {}, "Raw manifest"),
      h("pre", { tabindex: "0", "aria-label": "Raw manifest" }, this._manifest ?? "Fetching…"),
    );
  }

  async _fetchManifest() {
    if (this._manifest !== null) return;
    const id = this._id;
    try {
      const manifest = await this._loader.manifest(id);
      if (id === this._id) this._manifest = JSON.stringify(manifest, null, 2);
    } catch (error) {
      if (id === this._id) this._manifest = error.message;
    }
    this._render();
  }
}

/** How a verification of one checkpoint ended, in words. */
export function outcomeText(job, id) {
  if (job.status === "cancelled") return "The verification was broken off";
  if (job.status === "failed") return `The verification failed: ${job.error}`;
  const { verdicts, bytes_read: bytes, elapsed_seconds: seconds, damaged } = job.result;
  const read = `${bytesText(bytes)} read in ${durationText(seconds)}`;
  if (damaged.length === 0)
    return verdicts.length === 1
      ? `Checkpoint ${verdicts[0].checkpoint_id} is sound: ${read}`
      : `All ${verdicts.length} checkpoints are sound: ${read}`;
  const problem = verdicts.find((each) => each.outcome === "damaged")?.problems[0] ?? "";
  return verdicts.length === 1
    ? `Checkpoint ${id ?? damaged[0]} is damaged: ${readable(problem)}`
    : `${damaged.length} of ${verdicts.length} checkpoints are damaged: ${damaged.join(", ")}`;
}
