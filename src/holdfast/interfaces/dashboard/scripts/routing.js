/** What the address says: which pipeline, which checkpoint, compared with which. Pure. */

/** `#/NAME`, `#/NAME/checkpoint/ID`, `#/NAME/compare/BEFORE/AFTER`. */
export function parseRoute(hash) {
  const [name, what, first, second] = hash.replace(/^#\/?/, "").split("/").map(decode);
  const route = { name: name || null, checkpoint: null, compared: null };
  if (what === "checkpoint") route.checkpoint = idOf(first);
  if (what === "compare" && idOf(first) !== null)
    Object.assign(route, { compared: idOf(first), checkpoint: idOf(second) });
  return route;
}

export function routeText({ name, checkpoint = null, compared = null }) {
  const base = `#/${encodeURIComponent(name)}`;
  if (checkpoint !== null && compared !== null) return `${base}/compare/${compared}/${checkpoint}`;
  return checkpoint === null ? base : `${base}/checkpoint/${checkpoint}`;
}

function idOf(text) {
  return /^[1-9][0-9]{0,15}$/.test(text ?? "") ? Number(text) : null;
}

function decode(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return "";
  }
}
