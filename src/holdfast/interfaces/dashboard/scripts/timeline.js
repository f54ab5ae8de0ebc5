/** The timeline: a drawing that can be pointed at, dragged, zoomed and walked through with the keyboard. */

import { byId, h } from "./dom.js";
import {
  RANGES,
  columnsOf,
  gapsOf,
  marksOf,
  nearest,
  pitchFor,
  timeAt,
  windowOf,
  xOf,
  zoomed,
} from "./timeline_layout.js";
import { paint, paletteOf } from "./timeline_painting.js";
import { buildRanges, describe, showLegend, showRange } from "./timeline_words.js";

const DEFAULT_RANGE = "6 h";

export class Timeline {
  /** `onOpen` hears which checkpoint to show, `onCompare` which to compare with it, `onOlder` that more is wanted. */
  constructor({ onOpen, onCompare, onOlder }) {
    Object.assign(this, { _onOpen: onOpen, _onCompare: onCompare, _onOlder: onOlder });
    this._view = byId("timeline-view");
    this._canvas = byId("timeline-canvas");
    this._tip = byId("timeline-tip");
    this._range = DEFAULT_RANGE;
    this._window = null; // Set while a person looks elsewhere than at the newest.
    this._focused = null;
    this._items = [];
    this._listen();
    buildRanges({ choose: (range) => this._choose(range), zoom: (factor) => this._zoom(factor) });
    this._showRange();
    this.readTheme();
  }

  readTheme() {
    this._palette = paletteOf(this._view);
    showLegend(this._palette);
    if (this._scene) this._draw();
  }

  /** Show a model. `selected` and `compared` are ids; `alive` says whether the newest run still goes on. */
  show(model, { selected, compared, alive }) {
    const rest = this._items === model.items && this._items.length > 0;
    this._items = model.items;
    this._now = model.now();
    Object.assign(this, { _selected: selected, _compared: compared });
    if (!rest) this._gaps = gapsOf(this._items, this._now);
    this._marks = marksOf(model.starts, this._items, alive);
    this._wantOlder(model);
    this._draw();
    this._describe();
    byId("timeline-empty").hidden = this._items.length > 0;
    byId("timeline-empty").textContent = model.total === null ? "Looking…" : "No checkpoints yet";
  }

  /** Go back to the default view, for another pipeline. */
  reset() {
    this._window = this._focused = null;
    this._items = [];
  }

  _wantOlder(model) {
    const window = this._currentWindow();
    const oldest = model.ids.length > 0 ? (model.summary(model.ids[0]).at ?? 0) : 0;
    const wants = this._range === "all" || this._window !== null || window.from <= oldest;
    if (model.unknownOlder > 0 && wants && window.from <= oldest) this._onOlder();
  }

  _currentWindow() {
    return this._window ?? windowOf(this._items, RANGES[this._range], this._now);
  }

  _draw() {
    const width = this._view.clientWidth;
    const height = this._view.clientHeight;
    if (width === 0) return;
    const ratio = globalThis.devicePixelRatio || 1;
    if (this._canvas.width !== Math.round(width * ratio) || this._canvas.height !== Math.round(height * ratio)) {
      this._canvas.width = Math.round(width * ratio);
      this._canvas.height = Math.round(height * ratio);
    }
    const window = this._currentWindow();
    const pitch = pitchFor(this._items, window, width);
    const context = this._canvas.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    this._scene = {
      width,
      height,
      window,
      pitch,
      columns: columnsOf(this._items, window, width, pitch),
      gaps: this._gaps ?? [],
      marks: this._marks ?? [],
      selected: this._timeOf(this._selected),
      compared: this._timeOf(this._compared),
      focused: this._focused === null ? null : (this._items[this._focused]?.at ?? null),
      zoneOffset: -new Date(window.to).getTimezoneOffset() * 60_000,
    };
    paint(context, this._scene, this._palette);
  }

  _timeOf(id) {
    return id === null || id === undefined ? null : (this._items.find((each) => each.id === id)?.at ?? null);
  }

  // keyboard and pointer

  _listen() {
    this._view.addEventListener("keydown", (event) => this._onKey(event));
    this._view.addEventListener("focus", () => this._focusOn(this._focused ?? this._indexOfSelected()));
    this._view.addEventListener("blur", () => this._leave());
    this._view.addEventListener("pointermove", (event) => this._onMove(event));
    this._view.addEventListener("pointerleave", () => this._leave());
    this._view.addEventListener("pointerdown", (event) => this._onDown(event));
    this._view.addEventListener("pointerup", (event) => this._onUp(event));
    this._view.addEventListener("wheel", (event) => this._onWheel(event), { passive: false });
    new ResizeObserver(() => this._scene && this._draw()).observe(this._view);
  }

  _indexOfSelected() {
    const index = this._items.findIndex((each) => each.id === this._selected);
    return index >= 0 ? index : this._items.length - 1;
  }

  _onKey(event) {
    const step = event.shiftKey ? 10 : 1;
    const at = this._focused ?? this._indexOfSelected();
    const moves = {
      ArrowLeft: at - step,
      ArrowDown: at - step,
      ArrowRight: at + step,
      ArrowUp: at + step,
      PageDown: at - 10,
      PageUp: at + 10,
      Home: 0,
      End: this._items.length - 1,
    };
    if (event.key in moves) this._focusOn(moves[event.key], { reveal: true });
    else if (event.key === "+" || event.key === "=") this._zoom(0.5, this._items[at]?.at);
    else if (event.key === "-") this._zoom(2, this._items[at]?.at);
    else if ((event.key === "Enter" || event.key === " ") && this._items[at]) this._onOpen(this._items[at].id);
    else return;
    event.preventDefault();
  }

  _focusOn(index, { reveal = false } = {}) {
    if (this._items.length === 0) return;
    this._focused = Math.min(this._items.length - 1, Math.max(0, index));
    if (reveal) this._reveal(this._items[this._focused].at);
    this._draw();
    this._describe();
    this._showTip(this._focused);
  }

  _reveal(at) {
    const window = this._currentWindow();
    if (at >= window.from && at <= window.to) return;
    const span = window.to - window.from;
    this._window = { from: at - span / 2, to: at + span / 2 };
    this._showRange();
  }

  _zoom(factor, around) {
    const window = this._currentWindow();
    this._window = zoomed(window, factor, around ?? (window.from + window.to) / 2);
    this._showRange();
    this._draw();
  }

  _onWheel(event) {
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    this._zoom(event.deltaY > 0 ? 1.3 : 0.77, timeAt(event.offsetX, this._scene.window, this._scene.width));
  }

  _onDown(event) {
    this._drag = { x: event.offsetX, window: this._currentWindow(), moved: false };
    this._view.setPointerCapture(event.pointerId);
  }

  _onUp(event) {
    const drag = this._drag;
    this._drag = null;
    if (!drag || drag.moved) return;
    const index = this._indexAt(event.offsetX);
    if (index < 0) return;
    this._focused = index;
    (event.shiftKey ? this._onCompare : this._onOpen)(this._items[index].id);
  }

  _onMove(event) {
    if (this._drag && Math.abs(event.offsetX - this._drag.x) > 5) this._drag.moved = true;
    if (this._drag?.moved) {
      const { window, x } = this._drag;
      const by = timeAt(x, window, this._scene.width) - timeAt(event.offsetX, window, this._scene.width);
      this._window = { from: window.from + by, to: window.to + by };
      this._showRange();
      this._draw();
      return;
    }
    const index = this._scene ? this._indexAt(event.offsetX) : -1;
    if (index >= 0) this._showTip(index);
    else this._tip.hidden = true;
  }

  _indexAt(x) {
    const index = nearest(this._items, timeAt(x, this._scene.window, this._scene.width));
    if (index < 0) return -1;
    const distance = Math.abs(xOf(this._items[index].at, this._scene.window, this._scene.width) - x);
    return distance <= Math.max(12, this._scene.pitch) ? index : -1;
  }

  _leave() {
    this._tip.hidden = true;
    if (document.activeElement !== this._view && this._focused !== null) {
      this._focused = null;
      if (this._scene) this._draw();
    }
  }

  // words

  _showTip(index) {
    const item = this._items[index];
    this._tip.replaceChildren(
      ...describe(item, this._now).map((line, at) => h("div", { class: at === 0 ? "tip-title" : "" }, line)),
    );
    this._tip.hidden = false;
    const x = xOf(item.at, this._scene.window, this._scene.width);
    const room = this._scene.width - this._tip.offsetWidth - 4;
    this._tip.style.left = `${Math.max(4, Math.min(room, x + 10))}px`;
  }

  _describe() {
    const index = this._focused ?? this._indexOfSelected();
    const item = this._items[index];
    this._view.setAttribute("aria-valuemax", Math.max(0, this._items.length - 1));
    this._view.setAttribute("aria-valuenow", Math.max(0, index));
    this._view.setAttribute("aria-valuetext", item ? describe(item, this._now).join(", ") : "no checkpoints");
  }

  _choose(range) {
    this._range = range;
    this._window = null;
    this._showRange();
    this._draw();
    if (range === "all") this._onOlder();
  }

  _showRange() {
    showRange(this._window === null ? this._range : null);
  }
}
