/** One checkpoint: what it is, what it holds, what recovery would do with it. */

import { again, facts, h, link, table } from "./dom.js";
import { badge } from "./checkpoint_table.js";
import { gantt } from "./epoch_steps.js";
import { bytesText, countText, durationText, momentText, readable } from "./formatting.js";

const MOST_OFFSETS = 50;

/** What a recovery would do about a sink, if it went on from this checkpoint. */
export function sinkPlan(sink, report, newestId) {
  if (report.checkpoint_id !== newestId) return "Is further by now: later epochs are replayed, or it is rewound";
  if (sink.status === "Committed") return "Nothing: it shows this epoch";
  if (!sink.has_token) return "Ask it where it stands; this epoch has no rows for it";
  if (sink.status === "Failed") return "Commit the prepared rows again";
  return "Ask it where it stands, and commit the prepared rows if it does not show them";
}

/** The panel of a checkpoint. `found`: `{report}`, or `{problem}` when its manifest cannot be read, or neither. */
export function checkpointPanel(model, id, found, tools) {
  const item = model.item(id);
  const epoch = model.epoch(id);
  const { report, problem } = found;
  const kind = (report?.kind ?? item?.kind) === "fence" ? "Fence" : "Checkpoint";
  return h(
    "div",
    { class: "checkpoint" },
    h(
      "div",
      { class: "title-row" },
      h("h2", { id: "checkpoint-title", tabindex: "-1" }, `${kind} ${id}`),
      item && badge(item.state),
      item?.synced && h("span", { class: "badge synced" }, "in the bucket"),
      report?.name && h("span", { class: "badge name" }, `savepoint ${report.name}`),
    ),
    problemLine(item, report, problem),
    report && summaryFacts(model, report, epoch),
    tools.actions,
    tools.progress,
    epoch &&
      h(
        "section",
        {},
        h("h3", {}, `Steps of epoch ${epoch.epoch}`, h("span", { class: "note" }, ` ${durationText(epoch.seconds)}`)),
        gantt(epoch, report ? (model.pushes.get(report.uuid) ?? null) : null),
        retries(epoch),
      ),
    report && positions("Sources", report.sources, model),
    report && report.tables.length > 0 && positions("Reference tables", report.tables, model),
    report && sinks(report, model, epoch),
    report && operators(report),
    report && dependencies(report),
    !report &&
      !problem &&
      item?.state === "pruned" &&
      h("p", { class: "note" }, "Its files were removed by retention. This is what history kept."),
    report &&
      report.recovery &&
      h(
        "details",
        { "data-key": "plan" },
        h("summary", {}, "Plan of the recovery that sealed it"),
        h("pre", {}, JSON.stringify(report.recovery, null, 2)),
      ),
    tools.differences,
    (report || problem) && tools.manifest,
  );
}

function problemLine(item, report, problem) {
  const text =
    problem ??
    (item?.state === "damaged" ? item.problem : null) ??
    (report?.condition === "start" ? null : report?.problem);
  const given = report?.abandoned_by
    ? `Given up by checkpoint ${report.abandoned_by}: recovery will not choose it.`
    : null;
  return (
    (text || given) && h("p", { class: "problem", role: "note" }, readable([given, text].filter(Boolean).join(" ")))
  );
}

function summaryFacts(model, report, epoch) {
  const watermark = report.watermark === null ? "none" : momentText(report.watermark, model.now());
  return facts([
    ["Epoch", countText(report.epoch), epoch && `${countText(epoch.rows_in)} rows in`],
    ["Sealed", momentText(report.timestamp_ms, model.now()), `by generation ${report.generation ?? "unknown"}`],
    ["Watermark", watermark, report.watermark === null ? null : "of the next epoch"],
    [
      "Rows so far",
      countText(report.processed_records),
      report.steps === null ? null : `in ${countText(report.steps)} epochs`,
    ],
    [
      "Follows",
      report.parent === null
        ? "nothing"
        : link(`#/${encodeURIComponent(model.name)}/checkpoint/${report.parent}`, `checkpoint ${report.parent}`, {
            "data-key": "parent",
          }),
    ],
  ]);
}

function retries(epoch) {
  if (epoch.retries.length === 0) return null;
  const line = (each) =>
    `${each.sink}: ${each.action} was tried again ${each.times}×, for ${durationText(each.seconds)}: ${each.error}`;
  return h(
    "ul",
    { class: "problem-list" },
    epoch.retries.map((each) => h("li", {}, line(each))),
  );
}

function positions(title, sources, model) {
  if (sources.length === 0) return null;
  const rows = [];
  for (const source of sources) {
    const offsets = Object.entries(source.offsets).sort(([a], [b]) => a.localeCompare(b, "en", { numeric: true }));
    offsets.slice(0, MOST_OFFSETS).forEach(([name, next], index) => {
      const head = source.lag?.head?.[name];
      rows.push([
        index === 0 ? source.name : again(source.name),
        name,
        next,
        head ?? "–",
        index === 0 ? lagText(source.lag) : "",
        index === 0 && source.watermark !== null ? momentText(source.watermark, model.now()) : "",
      ]);
    });
    if (offsets.length > MOST_OFFSETS)
      rows.push([again(source.name), `… and ${offsets.length - MOST_OFFSETS} more, in the manifest`, "", "", "", ""]);
    if (offsets.length === 0) rows.push([source.name, "–", "–", "–", lagText(source.lag), ""]);
  }
  const columns = [
    { title: "Source" },
    { title: "Offset" },
    { title: "Next to read" },
    { title: "End then" },
    { title: "Lag then" },
    { title: "Watermark" },
  ];
  return h("section", {}, h("h3", {}, title), table(`${title}: where each goes on`, columns, rows));
}

function lagText(lag) {
  return lag === null ? "not asked" : `${countText(lag.amount)} ${lag.unit}`;
}

function sinks(report, model, epoch) {
  if (report.sinks.length === 0) return null;
  const newest = model.ids.at(-1) ?? report.checkpoint_id;
  const columns = [
    { title: "Sink" },
    { title: "Status" },
    { title: "Epoch", numeric: true },
    { title: "Rows", numeric: true },
    { title: "What recovery would do" },
  ];
  const rows = report.sinks.map((sink) => [
    sink.name,
    h(
      "span",
      { class: `status ${(sink.status ?? "unknown").toLowerCase()}` },
      sink.status ?? "unknown",
      sink.message && h("span", { class: "note" }, sink.message),
    ),
    countText(sink.epoch),
    epoch ? countText(epoch.rows_out[sink.name] ?? 0) : "–",
    sinkPlan(sink, report, newest),
  ]);
  return h("section", {}, h("h3", {}, "Sinks"), table("Sinks of this checkpoint", columns, rows));
}

function operators(report) {
  if (report.operators.length === 0) return null;
  const largest = Math.max(1, ...report.operators.map((each) => each.bytes ?? 0));
  const columns = [
    { title: "Operator" },
    { title: "Files", numeric: true },
    { title: "Size", numeric: true },
    { title: "New here", numeric: true },
    { title: "From earlier", numeric: true },
    { title: "Share" },
  ];
  const rows = report.operators.map((each) => [
    each.name,
    countText(each.files),
    bytesText(each.bytes),
    bytesText(each.new_bytes),
    bytesText(each.referenced_bytes),
    share(each, largest),
  ]);
  return h("section", {}, h("h3", {}, "State"), table("Operators and their state", columns, rows));
}

function share(operator, largest) {
  const whole = h("span", { class: "share", "aria-hidden": "true" });
  for (const [kind, bytes] of [
    ["new", operator.new_bytes],
    ["old", operator.referenced_bytes],
  ]) {
    const part = h("span", { class: kind });
    part.style.width = `${((bytes ?? 0) / largest) * 100}%`;
    whole.append(part);
  }
  return whole;
}

function dependencies(report) {
  const rows = report.depends_on.map((each) => [
    each.name,
    each.own ? "its own" : "an earlier one's",
    bytesText(each.size),
    bytesText(each.used_bytes),
  ]);
  const columns = [
    { title: "Sidecar" },
    { title: "Whose" },
    { title: "Size", numeric: true },
    { title: "Used", numeric: true },
  ];
  return h(
    "section",
    {},
    h("h3", {}, "Depends on"),
    rows.length === 0
      ? h("p", { class: "note" }, "Nothing but its manifest.")
      : table("Sidecars that it needs", columns, rows),
  );
}
