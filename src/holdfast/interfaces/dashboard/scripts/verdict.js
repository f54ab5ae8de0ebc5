/** Can we recover right now? The first thing on the page. */

import { age, byId, facts, h, link, renderInto } from "./dom.js";
import { bytesText, countedText, durationText, momentText, readable, timeOf } from "./formatting.js";

const SIGNS = { yes: "✓", degraded: "!", no: "✕", unknown: "?" };

/** The verdict in words: `{tone, headline}`. `problem` says why there is none of now. */
export function headlineOf(health, problem = null) {
  if (problem !== null) return { tone: "unknown", headline: "Nobody can tell" };
  if (health === null) return { tone: "unknown", headline: "Looking…" };
  if (health.recoverable === "yes") return { tone: "yes", headline: "Yes, recoverable now" };
  if (health.recoverable === "degraded")
    return { tone: "degraded", headline: "Recoverable, but something needs a look" };
  if (health.refused) return { tone: "no", headline: "No: a start would refuse" };
  return { tone: "unknown", headline: "Nothing to recover yet" };
}

/** What remains if the chosen checkpoint does not hold: `[value, note]`. */
export function fallbackWords(health) {
  if (health.fallbacks.length === 0) return ["nothing is left", null];
  const apart = health.independent_fallback;
  const shared = apart === null ? "all share bytes with it" : `${apart} shares no bytes with it`;
  return [countedText(health.fallbacks.length, "checkpoint"), shared];
}

/** Who may write: `[value, note]`. */
export function holderWords(holder, now) {
  if (holder === null || holder.generation === null) return ["nobody yet", null];
  const where = holder.host === null ? null : `process ${holder.process} on ${holder.host}`;
  const since = holder.since === null ? null : `since ${momentText(timeOf(holder.since), now)}`;
  const when = holder.ended_at === null ? since : `ended at ${momentText(timeOf(holder.ended_at), now)}`;
  return [`generation ${holder.generation}`, [where, when].filter(Boolean).join(", ") || null];
}

/** The verdict without what changes with every look: ages grow on the page by themselves. */
function steady(health) {
  if (health === null) return null;
  const { at: _, checkpoint, verified, ...rest } = health;
  return [rest, checkpoint?.checkpoint_id, checkpoint?.state_bytes, verified?.checkpoint_id, verified?.at];
}

export function showVerdict(model, { stale }) {
  const { health } = model;
  const { tone, headline } = headlineOf(health, model.healthProblem);
  const section = byId("verdict");
  section.dataset.tone = stale ? "stale" : tone;
  renderInto(
    byId("verdict-body"),
    [model.name, tone, model.healthProblem, stale && health?.at, steady(health)],
    () => [
      h(
        "div",
        { class: "verdict-head" },
        h("span", { class: "verdict-sign", "aria-hidden": "true" }, SIGNS[tone]),
        h(
          "div",
          {},
          h("p", { class: "question" }, "Can we recover right now?"),
          h("h1", { id: "verdict-title" }, headline),
          stale &&
            health &&
            h(
              "p",
              { class: "stale-note" },
              `Not known since ${momentText(timeOf(health.at))}: this is what was true then`,
            ),
          reasonsOf(model),
        ),
      ),
      health && facts(factsOf(model, health)),
    ],
  );
  return headline;
}

function reasonsOf(model) {
  const reasons = [model.healthProblem, ...(model.health?.reasons ?? [])].filter(Boolean);
  if (reasons.length === 0) return null;
  return h(
    "ul",
    { class: "reasons" },
    reasons.map((reason) => h("li", {}, readable(reason, model.now()))),
  );
}

function factsOf(model, health) {
  const [point, now] = [health.checkpoint, model.now()];
  const to = (id) => `#/${encodeURIComponent(model.name)}/checkpoint/${id}`;
  const { seconds, basis } = health.estimate;
  return [
    point && [
      "Back to",
      link(to(point.checkpoint_id), `epoch ${point.epoch}`, { "data-key": "point" }),
      `checkpoint ${point.checkpoint_id}, ${bytesText(point.state_bytes)} of state`,
    ],
    point && ["Age", age(timeOf(point.created_at)), `sealed ${momentText(timeOf(point.created_at), now)}`],
    verifiedFact(health, to),
    point && [
      "Recovery takes",
      seconds === null ? "unknown" : `about ${durationText(Math.max(0.1, seconds))}`,
      `${readable(basis, now)}; without Spark's own start`,
    ],
    ["Fence held by", ...holderWords(health.holder, now)],
    point && ["If that fails", ...fallbackWords(health)],
    ["Store", countedText(health.checkpoints, "checkpoint"), `${bytesText(health.bytes)} in ${health.store}`],
  ].filter(Boolean);
}

function verifiedFact(health, to) {
  const verified = health.verified;
  if (verified === null) return ["Verified", "never", "as far as history knows; “Verify all” reads every byte"];
  const how = verified.by === "recovery" ? "read by a start" : "every byte was read";
  return [
    "Verified",
    age(timeOf(verified.at), { suffix: " ago" }),
    h(
      "span",
      {},
      link(to(verified.checkpoint_id), `checkpoint ${verified.checkpoint_id}`, { "data-key": "verified" }),
      `, ${how}`,
    ),
  ];
}
