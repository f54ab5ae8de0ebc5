/** What changed from one checkpoint to another. */

import { again, facts, h, table } from "./dom.js";
import { bytesText, changeText, countText, durationText, momentText } from "./formatting.js";

/** Rows read after checkpoint `before` up to `after`, from history; null when history does not know every epoch. */
export function rowsBetween(epochs, before, after) {
  const between = new Map();
  for (const epoch of epochs)
    if (epoch.epoch > before && epoch.epoch <= after) between.set(epoch.epoch, epoch.rows_in);
  if (between.size < after - before) return null;
  return [...between.values()].reduce((sum, rows) => sum + rows, 0);
}

/** The bytes of all operators before and after, as far as they changed. */
export function stateGrowth(difference) {
  const known = difference.operators.filter((each) => each.moved !== null);
  return known.length === difference.operators.length ? known.reduce((sum, each) => sum + each.moved, 0) : null;
}

export function differencesView(model, difference, reports) {
  const rows = reports ? rowsBetween(model.epochs, reports.before.epoch, reports.after.epoch) : null;
  return h(
    "div",
    { class: "differences" },
    h(
      "h4",
      { id: "differences-title", tabindex: "-1", "data-key": "differences" },
      `From checkpoint ${difference.before} to ${difference.after}`,
    ),
    facts([
      ["Epochs", changeText(difference.epochs), `in ${durationText(Math.abs(difference.elapsed_ms) / 1000)}`],
      [
        "Rows in between",
        rows === null ? "unknown" : countText(rows),
        rows === null ? "history does not know every epoch" : null,
      ],
      [
        "State",
        changeText(stateGrowth(difference), bytesText),
        difference.shared_bytes === null ? null : `${bytesText(difference.shared_bytes)} in common`,
      ],
      ["Watermark", difference.watermark ? watermarkText(difference.watermark, model.now()) : "the same"],
    ]),
    pipelineChanges(difference),
    positions("Offsets", [...difference.sources, ...difference.tables]),
    changes(
      "State",
      difference.operators,
      (value) => bytesText(value),
      (value) => changeText(value, bytesText),
    ),
    changes("Sinks", difference.sinks, sinkText, () => ""),
  );
}

function watermarkText(change, now) {
  const side = (value) => (value === null ? "none" : momentText(value, now));
  return change.moved === null
    ? `${side(change.before)} → ${side(change.after)}`
    : `${change.moved >= 0 ? "+" : "−"}${durationText(Math.abs(change.moved) / 1000)}`;
}

function pipelineChanges(difference) {
  const identity = difference.identity.filter((each) => !["kind", "name"].includes(each.name));
  if (difference.definition.length === 0 && identity.length === 0)
    return h("p", { class: "note" }, "The pipeline is the same in both.");
  return h(
    "section",
    {},
    h("h5", {}, "What changed in the pipeline"),
    h(
      "ul",
      {},
      difference.definition.map((line) => h("li", {}, line)),
      identity.map((each) =>
        h("li", {}, `${each.name.replaceAll("_", " ")}: ${each.before ?? "none"} → ${each.after ?? "none"}`),
      ),
    ),
  );
}

function positions(title, sources) {
  const rows = sources.flatMap((source) =>
    source.offsets.map((each, index) => [
      index === 0 ? source.name : again(source.name),
      each.name,
      each.before ?? "–",
      each.after ?? "–",
      changeText(each.moved),
    ]),
  );
  if (rows.length === 0) return h("p", { class: "note" }, "No source moved.");
  const columns = [
    { title: "Source" },
    { title: "Offset" },
    { title: "Before" },
    { title: "After" },
    { title: "Moved", numeric: true },
  ];
  return h("section", {}, h("h5", {}, title), table(`${title} that moved`, columns, rows));
}

function changes(title, entries, format, move) {
  if (entries.length === 0) return null;
  const columns = [
    { title: "Name" },
    { title: "Before", numeric: true },
    { title: "After", numeric: true },
    { title: "Change", numeric: true },
  ];
  const rows = entries.map((each) => [each.name, format(each.before), format(each.after), move(each.moved)]);
  return h("section", {}, h("h5", {}, title), table(`${title}: what changed`, columns, rows));
}

function sinkText(side) {
  if (side === null) return "–";
  return `epoch ${side.epoch ?? "–"}, ${(side.status ?? "unknown").toLowerCase()}`;
}
