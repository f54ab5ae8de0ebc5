/** Builds parts of the document. Text is always text: nothing here takes HTML. */

const SVG = "http://www.w3.org/2000/svg";

/** Make an element: attributes, `on…` functions, and children, of which null and false are left out. */
export function h(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** The same for SVG. */
export function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** Find what the page certainly has. */
export function byId(id) {
  const found = document.getElementById(id);
  if (!found) throw new Error(`the page has no element '${id}'`);
  return found;
}

/**
 * Replace the content of a container if `signature` changed. The focus and what was folded open stay where their
 * `data-key` is, so that news do not take the page out of anybody's hands.
 */
export function renderInto(container, signature, build) {
  const text = JSON.stringify(signature);
  if (container.renderedSignature === text) return false;
  const focused = container.contains(document.activeElement) ? document.activeElement.dataset.key : null;
  const opened = new Set([...container.querySelectorAll("details[open][data-key]")].map((each) => each.dataset.key));
  container.replaceChildren(...[build()].flat().filter(Boolean));
  container.renderedSignature = text;
  for (const each of container.querySelectorAll("details[data-key]"))
    if (opened.has(each.dataset.key)) each.open = true;
  if (focused) container.querySelector(`[data-key="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
  return true;
}

/** A table with a caption, columns `{title, numeric}` and rows of cells; scrolls by itself when it is too wide. */
export function table(caption, columns, rows, { visibleCaption = false } = {}) {
  const heads = columns.map((column) => h("th", { scope: "col", class: column.numeric && "number" }, column.title));
  const body = rows.map((cells) =>
    h(
      "tr",
      {},
      cells.map((cell, index) => {
        const attributes = { class: columns[index].numeric && "number", "data-label": columns[index].title };
        return index === 0 ? h("th", { scope: "row", ...attributes }, cell) : h("td", attributes, cell);
      }),
    ),
  );
  return h(
    "div",
    { class: "scrolls", tabindex: "0", role: "region", "aria-label": caption },
    h(
      "table",
      {},
      h("caption", { class: visibleCaption ? "" : "visually-hidden" }, caption),
      h("thead", {}, h("tr", {}, heads)),
      h("tbody", {}, body),
    ),
  );
}

/** A name that stands in the row above already: not seen again, but heard. */
export function again(name) {
  return h("span", { class: "visually-hidden" }, name);
}

/** Terms and what they are, as a list of descriptions; entries without a value are left out. */
export function facts(entries) {
  const shown = entries.filter(([, value]) => value !== null && value !== undefined);
  return h(
    "dl",
    { class: "facts" },
    shown.map(([term, value, note]) =>
      h("div", { class: "fact" }, h("dt", {}, term), h("dd", {}, value, note && h("span", { class: "note" }, note))),
    ),
  );
}

/** A link within the page. */
export function link(hash, text, attributes = {}) {
  return h("a", { href: hash, ...attributes }, text);
}

/** A time that keeps ageing on the page: `tickAges` writes it anew. */
export function age(sinceMs, { prefix = "", suffix = "" } = {}) {
  return h("time", {
    "data-since": sinceMs,
    "data-prefix": prefix,
    "data-suffix": suffix,
    datetime: new Date(sinceMs).toISOString(),
  });
}
