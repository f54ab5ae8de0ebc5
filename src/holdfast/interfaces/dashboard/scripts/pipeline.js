/** The running pipeline: how fast, how long, what it waits for. */

import { age, byId, facts, h, renderInto, svg, table } from "./dom.js";
import { checkpointSeconds } from "./epoch_steps.js";
import {
  bytesText,
  countText,
  durationText,
  median,
  momentText,
  percentText,
  rateText,
  timeOf,
} from "./formatting.js";

const RECENT = 40;
const RUNS = new Set([
  "Running",
  "Paused",
  "Replaying",
  "Initializing",
  "Standby",
  "Bootstrapping",
  "Suspended",
  "Synchronizing",
]);
const TONES = {
  Running: "good",
  Paused: "warn",
  Standby: "plain",
  Stopped: "plain",
  Stopping: "warn",
  Initializing: "plain",
  Provisioning: "plain",
  Replaying: "warn",
  AwaitingApproval: "warn",
  Unavailable: "bad",
};
const REASONS = {
  Coordination: "recovery: the store is being taken over and the sinks are being asked",
  Replaying: "recovery computes epochs again that were decided before",
  TransactionInProgress: "the running epoch: it is committed in all sinks first, or in none",
  Bootstrapping: "changed parts are being filled from existing data",
};

/** Whether the newest run goes on: true, false, or null when nobody here can tell. */
export function isAlive(pipeline) {
  if (pipeline === null) return null;
  return RUNS.has(pipeline.deployment_status);
}

/** Medians over the newest epochs: `{epoch, checkpoint, share}` in seconds; null of no epochs. */
export function tempoOf(epochs) {
  const recent = epochs.slice(-RECENT);
  const epoch = median(recent.map((each) => each.seconds));
  const checkpoint = median(recent.map((each) => checkpointSeconds(each.steps)));
  const spent = recent.reduce((sum, each) => sum + each.seconds, 0);
  const share = spent > 0 ? recent.reduce((sum, each) => sum + checkpointSeconds(each.steps), 0) / spent : null;
  return { epoch, checkpoint, share, count: recent.length };
}

/** What checkpointing is doing: `[value, note]`. */
export function activityWords(activity) {
  if (!activity || activity.status === "idle") return ["idle", "no checkpoint is asked for"];
  if (activity.status === "in_progress") return ["writing", "a checkpoint is being written"];
  return ["waiting", `a checkpoint waits: ${activity.reasons.map(reasonText).join("; ")}`];
}

function reasonText(reason) {
  if (typeof reason === "string") return REASONS[reason] ?? reason;
  const [kind, name] = Object.entries(reason)[0];
  return kind === "InputEndpointBarrier"
    ? `input '${name}', which is at a point it could not resume from`
    : `${kind} ${name}`;
}

/** The status for the header: `{text, tone}`. */
export function statusOf(model) {
  if (!model.isPipeline) return { text: "store only", tone: "plain" };
  if (model.pipeline === null) return { text: "unknown", tone: "plain" };
  const status = model.pipeline.deployment_status;
  if (status === "Stopped" && model.pipeline.deployment_error) return { text: "Failed", tone: "bad" };
  return { text: status === "AwaitingApproval" ? "Awaits approval" : status, tone: TONES[status] ?? "plain" };
}

export function showPipeline(model, { stale }) {
  const running = model.stats !== null && isAlive(model.pipeline);
  const tempo = tempoOf(model.epochs);
  const last = model.epochs.at(-1) ?? null;
  const stats = running ? model.stats : null;
  const signature = [
    model.name,
    stale,
    tempo,
    last?.checkpoint_id,
    model.pipeline?.deployment_status,
    model.pipeline?.deployment_error,
    shortened(stats),
  ];
  renderInto(byId("pipeline-body"), signature, () => [
    notice(model, last),
    facts(
      [
        stats && ["Throughput", rateText(stats.global_metrics.rows_per_second), "over the last 30 s"],
        ["Epoch takes", durationText(tempo.epoch), tempo.count > 0 ? `median of the last ${tempo.count}` : null],
        [
          "Checkpoint takes",
          durationText(tempo.checkpoint),
          tempo.share === null ? null : `${percentText(tempo.share)} of the epochs' time`,
        ],
        stats && [
          "Epoch",
          countText(stats.global_metrics.epoch),
          stats.global_metrics.epoch_step ? `now: ${stats.global_metrics.epoch_step}` : "waits for data",
        ],
        stats &&
          stats.global_metrics.watermark_lag_seconds !== null && [
            "Watermark behind",
            durationText(stats.global_metrics.watermark_lag_seconds),
          ],
        last && ["State", bytesText(last.total_bytes), `${bytesText(last.new_bytes)} new in the last epoch`],
        stats && ["Activity", ...activityFact(stats.checkpoint_activity)],
      ].filter(Boolean),
    ),
    model.epochs.length > 1 && sparkline(model.epochs.slice(-RECENT)),
    permanent(stats),
    stats && stats.inputs.length > 0 && inputs(stats.inputs),
    stats && stats.outputs.length > 0 && outputs(stats.outputs),
  ]);
}

function activityFact(activity) {
  const [value, note] = activityWords(activity);
  if (!activity?.delayed_since) return [value, note];
  return [value, h("span", {}, note, ", since ", age(timeOf(activity.delayed_since)))];
}

/** What of the statistics is shown: the rest changes all the time, and would have everything built anew. */
function shortened(stats) {
  if (stats === null) return null;
  const { rows_per_second, epoch, epoch_step, watermark_lag_seconds } = stats.global_metrics;
  return [
    Math.round(rows_per_second * 10),
    epoch,
    epoch_step,
    Math.round(watermark_lag_seconds ?? 0),
    stats.inputs,
    stats.outputs,
    stats.checkpoint_activity,
    stats.permanent_checkpoint_errors,
  ];
}

function notice(model, last) {
  if (!model.isPipeline)
    return h("p", { class: "note" }, "This is a store that is only looked at: no pipeline runs here.");
  const status = model.pipeline?.deployment_status;
  const error = model.pipeline?.deployment_error;
  if (status !== "Stopped" && status !== "AwaitingApproval" && !error) return null;
  const since = timeOf(model.pipeline.deployment_status_since);
  return h(
    "div",
    { class: error ? "problem" : "notice" },
    h(
      "p",
      {},
      h(
        "strong",
        {},
        status === "AwaitingApproval"
          ? "The pipeline changed and waits for approval."
          : error
            ? "The pipeline failed."
            : "The pipeline is stopped.",
      ),
      ` Since ${momentText(since, model.now())}.`,
      last && ` The figures are of its last run, which ended at epoch ${last.epoch}.`,
    ),
    error && h("p", {}, error.message),
    model.pipeline.deployment_runtime_status_details?.approval_diff &&
      h("pre", {}, JSON.stringify(model.pipeline.deployment_runtime_status_details.approval_diff, null, 2)),
  );
}

function permanent(stats) {
  const errors = stats?.permanent_checkpoint_errors ?? [];
  if (errors.length === 0) return null;
  const words = errors.map((each) => (typeof each === "string" ? each : Object.entries(each)[0].join(" ")));
  return h("p", { class: "problem" }, `No checkpoint can be taken: ${words.join(", ")}`);
}

function inputs(entries) {
  const columns = [{ title: "Source" }, { title: "Lag", numeric: true }, { title: "Kept back", numeric: true }];
  const rows = entries.map(({ endpoint_name: name, metrics }) => [
    name,
    metrics.lag === null ? "not asked" : `${countText(metrics.lag)} ${metrics.lag_unit}`,
    countText(metrics.held_back),
  ]);
  return h("section", {}, h("h3", {}, "Sources"), table("Sources of the pipeline", columns, rows));
}

function outputs(entries) {
  const columns = [
    { title: "Sink" },
    { title: "Rows", numeric: true },
    { title: "Prepare", numeric: true },
    { title: "Commit", numeric: true },
    { title: "Health" },
  ];
  const rows = entries.map(({ endpoint_name: name, metrics, health }) => [
    name,
    countText(metrics.transmitted_records),
    durationText(metrics.prepare_seconds),
    durationText(metrics.commit_seconds),
    h(
      "span",
      { class: `status ${health.status === "Healthy" ? "committed" : "failed"}` },
      health.status,
      health.description && h("span", { class: "note" }, health.description),
    ),
  ]);
  return h("section", {}, h("h3", {}, "Sinks"), table("Sinks of the pipeline", columns, rows));
}

/** The time of the last epochs, and the checkpoint's part of it. */
function sparkline(epochs) {
  const [width, height] = [320, 56];
  const largest = Math.max(1e-6, ...epochs.map((each) => each.seconds));
  const pitch = width / epochs.length;
  const bars = epochs.flatMap((each, index) =>
    [
      ["whole", each.seconds],
      ["part", checkpointSeconds(each.steps)],
    ].map(([kind, seconds]) => {
      const tall = Math.max(1, (seconds / largest) * height);
      return svg("rect", {
        class: kind,
        x: index * pitch,
        y: height - tall,
        width: Math.max(1, pitch - 1),
        height: tall,
      });
    }),
  );
  const middle = durationText(median(epochs.map((each) => each.seconds)));
  const longest = durationText(largest);
  const label = `Time of the last ${epochs.length} epochs: median ${middle}, longest ${longest}`;
  return h(
    "figure",
    { class: "sparkline" },
    svg(
      "svg",
      { viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", role: "img", "aria-label": label },
      bars,
    ),
    h(
      "figcaption",
      { class: "note" },
      `Time of the last ${epochs.length} epochs, longest ${longest}; dark: the checkpoint`,
    ),
  );
}
