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

let pressed = null;
const waiting = new Map();

/** Hear of presses: what a button is replaced under is no click, so news wait until it is let go of. */
function onPress(event) {
  pressed = event.target;
}

function onRelease() {
  pressed = null;
  // The click comes after this event: what it does shall find the page that was clicked.
  setTimeout(() => {
    if (pressed !== null) return;
    const renderings = [...waiting.values()];
    waiting.clear();
    for (const render of renderings) render();
  });
}

for (const [name, listener] of Object.entries({ pointerdown: onPress, pointerup: onRelease, pointercancel: onRelease }))
  document.addEventListener(name, listener, true);

/**
 * Replace the content of a container if `signature` changed. The focus, what is selected in a field and what was folded
 * open stay where their `data-key` is, so that news do not take the page out of anybody's hands.
 */
export function renderInto(container, signature, build) {
  const text = JSON.stringify(signature);
  waiting.delete(container);
  if (container.renderedSignature === text) return;
  if (pressed !== null && container.contains(pressed)) {
    waiting.set(container, () => renderInto(container, signature, build));
    return;
  }
  const focused = container.contains(document.activeElement) ? document.activeElement : null;
  const opened = new Set([...container.querySelectorAll("details[open][data-key]")].map((each) => each.dataset.key));
  container.replaceChildren(...[build()].flat().filter(Boolean));
  container.renderedSignature = text;
  for (const each of container.querySelectorAll("details[data-key]"))
    if (opened.has(each.dataset.key)) each.open = true;
  if (focused?.dataset.key) takeOver(focused, container.querySelector(`[data-key="${CSS.escape(focused.dataset.key)}"]`));
}

/** Give what stands where the focus was the focus and, if it is a field of text, what was selected there. */
function takeOver(before, now) {
  now?.focus({ preventScroll: true });
  // Without it, who types over what is selected would type beside it.
  if (now && typeof before.selectionStart === "number")
    now.setSelectionRange(before.selectionStart, before.selectionEnd, before.selectionDirection);
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
