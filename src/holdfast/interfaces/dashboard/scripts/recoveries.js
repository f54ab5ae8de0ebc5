/** Every start: which candidates were tried, why each was skipped, what became of the sinks, how it ended. */

import { byId, facts, h, link, renderInto } from "./dom.js";
import { bytesText, countText, durationText, idsText, momentText, readable, timeOf } from "./formatting.js";

const SHOWN = 30;

/** A start in one line: `{title, tone}`. */
export function outcomeOf(run) {
  if (run.outcome === "refuse") return { title: "Refused to start", tone: "bad" };
  if (run.outcome === "fresh") return { title: "Fresh start", tone: "plain" };
  if (run.outcome === "unknown") return { title: "Died on the way", tone: "bad" };
  const skipped = run.skipped.length;
  const title = `Recovered to epoch ${run.epoch} from checkpoint ${run.chosen_id}`;
  return skipped > 0 ? { title: `${title}, skipping ${countText(skipped)}`, tone: "warn" } : { title, tone: "good" };
}

/** How the run ended, in words. `alive` (true, false, null: unknown) tells a running newest one from a killed one. */
export function endingOf(run, newest, alive) {
  if (run.error !== null) return `failed: ${readable(run.error.split("\n")[0])}`;
  if (run.ended_at !== null) return `stopped at epoch ${run.last_epoch}`;
  if (newest && alive === true) return "running";
  if (newest && alive === null) return "running, or killed: nobody wrote down its end";
  return "killed: nobody wrote down its end";
}

export function showRecoveries(model, { alive }) {
  const newestFirst = [...model.starts].reverse().slice(0, SHOWN);
  renderInto(byId("recoveries-body"), [model.name, alive, model.recoveries === null, newestFirst], () =>
    newestFirst.length === 0
      ? h("p", { class: "note" }, model.recoveries === null ? "Looking…" : "History knows no start yet.")
      : h(
          "ol",
          { class: "runs" },
          newestFirst.map((run, index) => runItem(model, run, index === 0, alive)),
        ),
  );
  byId("recoveries-count").textContent = model.starts.length > 0 ? countText(model.starts.length) : "";
}

function runItem(model, run, newest, alive) {
  const { title, tone } = outcomeOf(run);
  const key = `run-${run.at_ms}-${run.generation}`;
  return h(
    "li",
    { class: `run ${tone}` },
    h(
      "details",
      { "data-key": key, open: newest },
      h(
        "summary",
        { "data-key": `${key}-summary` },
        h("span", { class: "run-title" }, title),
        h("span", { class: "note" }, `${momentText(run.at_ms, model.now())} · ${endingOf(run, newest, alive)}`),
      ),
      runBody(model, run),
    ),
  );
}

function runBody(model, run) {
  const to = (id) => link(`#/${encodeURIComponent(model.name)}/checkpoint/${id}`, `${id}`);
  return h(
    "div",
    { class: "run-body" },
    facts(
      [
        run.generation !== null && [
          "Generation",
          `${run.generation}`,
          run.host && `process ${run.process} on ${run.host}`,
        ],
        run.fence_id !== null && ["Fence", to(run.fence_id)],
        run.seconds !== null && [
          "Took",
          durationText(run.seconds),
          run.state_bytes === null ? null : `${bytesText(run.state_bytes)} of state`,
        ],
        run.examined !== null && ["Candidates looked at", countText(run.examined)],
        run.ended_at !== null && [
          "Ended",
          momentText(timeOf(run.ended_at), model.now()),
          run.last_epoch === null ? null : `at epoch ${run.last_epoch}`,
        ],
      ].filter(Boolean),
    ),
    candidates(run, to),
    Object.keys(run.sinks).length > 0 &&
      h(
        "div",
        {},
        h("h3", {}, "Sinks"),
        h(
          "ul",
          {},
          Object.entries(run.sinks).map(([name, action]) => h("li", {}, h("strong", {}, name), ` ${action}`)),
        ),
      ),
    run.replays.length > 0 &&
      h(
        "div",
        {},
        h("h3", {}, "Computed again"),
        h(
          "ul",
          {},
          run.replays.map((each) =>
            h(
              "li",
              {},
              `epoch ${each.epoch}, range from ${each.found_in}${each.done ? "" : ", not known to be done"}`,
            ),
          ),
        ),
      ),
    run.abandons.length > 0 && h("p", { class: "note" }, `Given up: ${idsText(run.abandons)}`),
    run.retries.length > 0 &&
      h(
        "ul",
        { class: "problem-list" },
        run.retries.map((each) =>
          h("li", {}, `${each.sink}: ${each.action} tried again ${each.times}×: ${each.error}`),
        ),
      ),
    run.error !== null && h("p", { class: "problem" }, readable(run.error)),
  );
}

function candidates(run, to) {
  if (run.chosen_id === null && run.skipped.length === 0) return null;
  return h(
    "div",
    {},
    h("h3", {}, "Candidates, newest first"),
    h(
      "ol",
      { class: "candidates" },
      run.skipped.map((each) =>
        h(
          "li",
          { class: "skipped" },
          h("span", { class: "badge damaged" }, "skipped"),
          " checkpoint ",
          to(each.checkpoint_id),
          `: ${readable(each.reason)}`,
        ),
      ),
      run.chosen_id !== null &&
        h(
          "li",
          {},
          h("span", { class: "badge verified" }, "chosen"),
          " checkpoint ",
          to(run.chosen_id),
          ` (epoch ${run.epoch}), every byte verified`,
        ),
    ),
  );
}
