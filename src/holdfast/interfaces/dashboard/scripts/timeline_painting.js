/** Draws the timeline on a canvas. Every state has a shape besides its colour. */

import { durationText } from "./formatting.js";
import { ticksOf, xOf } from "./timeline_layout.js";

export const LANES = { marks: 26, strip: 20, axis: 22 };
const COLOURS = [
  "ink",
  "soft",
  "line",
  "gap",
  "accent",
  "verified",
  "unverified",
  "doubtful",
  "damaged",
  "abandoned",
  "pruned",
  "start",
  "foreign",
  "synced",
  "surface",
];
const WIDE_ENOUGH_FOR_SHAPES = 7;
const MARK_SIGNS = { start: "▶", refused: "⊘", stop: "■", failure: "!", kill: "✕" };

/** The colours of the theme as the canvas takes them. */
export function paletteOf(element) {
  const probe = element.ownerDocument.createElement("span");
  element.append(probe);
  const palette = {};
  for (const name of COLOURS) {
    probe.style.color = `var(--${name})`;
    palette[name] = getComputedStyle(probe).color;
  }
  probe.remove();
  return palette;
}

/** Draw everything. `scene`: width, height, window, columns, pitch, gaps, marks, selected and focused times, now. */
export function paint(context, scene, palette) {
  context.clearRect(0, 0, scene.width, scene.height);
  context.font = "12px system-ui, sans-serif";
  context.textBaseline = "middle";
  drawGaps(context, scene, palette);
  drawAxis(context, scene, palette);
  drawBars(context, scene, palette);
  drawMarks(context, scene, palette);
  drawCursor(context, scene, scene.compared, palette.soft, [2, 3]);
  drawCursor(context, scene, scene.selected, palette.accent, []);
  drawCursor(context, scene, scene.focused, palette.ink, [3, 3]);
}

function floorOf(scene) {
  return scene.height - LANES.axis - LANES.strip;
}

function drawGaps(context, scene, palette) {
  const bottom = floorOf(scene);
  for (const gap of scene.gaps) {
    const left = Math.max(0, xOf(gap.from, scene.window, scene.width));
    const right = Math.min(scene.width, xOf(gap.to, scene.window, scene.width));
    if (right - left < 3) continue;
    context.save();
    context.beginPath();
    context.rect(left + 1, LANES.marks, right - left - 2, bottom - LANES.marks);
    context.clip();
    context.strokeStyle = palette.gap;
    context.beginPath();
    for (let x = left - (bottom - LANES.marks); x < right; x += 8) {
      context.moveTo(x, bottom);
      context.lineTo(x + bottom - LANES.marks, LANES.marks);
    }
    context.stroke();
    context.restore();
    const label = `no checkpoint for ${durationText((gap.to - gap.from) / 1000)}`;
    if (right - left > context.measureText(label).width + 24)
      chip(context, (left + right) / 2, (LANES.marks + bottom) / 2, label, palette);
  }
}

function chip(context, x, y, text, palette) {
  const half = context.measureText(text).width / 2 + 8;
  context.fillStyle = palette.surface;
  context.fillRect(x - half, y - 10, half * 2, 20);
  context.fillStyle = palette.soft;
  context.textAlign = "center";
  context.fillText(text, x, y);
}

function drawAxis(context, scene, palette) {
  const y = floorOf(scene) + LANES.strip;
  context.strokeStyle = palette.line;
  context.beginPath();
  context.moveTo(0, y + 0.5);
  context.lineTo(scene.width, y + 0.5);
  context.stroke();
  context.fillStyle = palette.soft;
  context.textAlign = "center";
  for (const tick of ticksOf(scene.window, scene.width, 90, scene.zoneOffset)) {
    const x = xOf(tick.at, scene.window, scene.width);
    if (x < 24 || x > scene.width - 24) continue;
    context.fillRect(Math.round(x), y, 1, 4);
    context.fillText(tickText(tick), x, y + 13);
  }
}

function tickText({ at, step }) {
  const moment = new Date(at);
  if (step >= 86_400_000) return moment.toLocaleDateString("en-GB", { day: "numeric", month: "short" });
  return moment.toLocaleTimeString("en-GB", step < 60_000 ? {} : { hour: "2-digit", minute: "2-digit" });
}

function drawBars(context, scene, palette) {
  const bottom = floorOf(scene);
  const room = bottom - LANES.marks - 4;
  const largest = Math.max(1, ...scene.columns.map((column) => Math.max(column.fullBytes, column.newBytes)));
  const tall = (bytes) => (bytes > 0 ? Math.max(3, Math.sqrt(bytes / largest) * room) : 3);
  const width = Math.max(1, scene.pitch - (scene.pitch > 6 ? 2 : scene.pitch > 2 ? 1 : 0));
  for (const column of scene.columns) {
    const left = Math.round(column.x - width / 2);
    const colour = palette[column.state];
    context.fillStyle = colour;
    context.globalAlpha = 0.28;
    const full = tall(Math.max(column.fullBytes, column.newBytes));
    context.fillRect(left, bottom - full, width, full);
    context.globalAlpha = column.state === "pruned" ? 0.55 : 1;
    const fresh = column.fence ? 3 : tall(column.newBytes);
    context.fillRect(left, bottom - fresh, width, fresh);
    context.globalAlpha = 1;
    if (column.state === "damaged") cross(context, column.x, bottom - full - 8, 4, palette.damaged);
    drawStrip(context, scene, column, bottom + LANES.strip / 2, palette);
  }
}

function drawStrip(context, scene, column, y, palette) {
  if (scene.pitch < WIDE_ENOUGH_FOR_SHAPES) {
    const height = { damaged: 14, doubtful: 10, abandoned: 3, pruned: 3 }[column.state] ?? 6;
    context.fillStyle = palette[column.state];
    context.fillRect(Math.round(column.x - scene.pitch / 2), y - height / 2, scene.pitch, height);
  } else {
    shape(context, column.state, column.x, y, Math.min(4.5, scene.pitch / 2 - 0.5), palette[column.state]);
  }
  if (column.synced) {
    context.fillStyle = palette.synced;
    context.fillRect(Math.round(column.x - scene.pitch / 2), y + 8, scene.pitch, 2);
  }
}

/** The shape of a state, around a point; also for the legend. */
export function shape(context, state, x, y, size, colour) {
  context.fillStyle = context.strokeStyle = colour;
  context.lineWidth = 1.6;
  context.beginPath();
  if (state === "damaged") {
    cross(context, x, y, size, colour);
  } else if (state === "doubtful") {
    context.moveTo(x, y - size);
    context.lineTo(x + size, y + size);
    context.lineTo(x - size, y + size);
    context.fill();
  } else if (state === "abandoned" || state === "pruned") {
    context.fillRect(x - size, y - 1, size * 2, 2);
  } else if (state === "start" || state === "foreign") {
    context.strokeRect(x - size + 1, y - size + 1, size * 2 - 2, size * 2 - 2);
  } else {
    context.arc(x, y, size - 0.8, 0, Math.PI * 2);
    if (state === "verified") context.fill();
    else context.stroke();
  }
  context.lineWidth = 1;
}

function cross(context, x, y, size, colour) {
  context.strokeStyle = colour;
  context.lineWidth = 2;
  context.beginPath();
  context.moveTo(x - size, y - size);
  context.lineTo(x + size, y + size);
  context.moveTo(x + size, y - size);
  context.lineTo(x - size, y + size);
  context.stroke();
  context.lineWidth = 1;
}

function drawMarks(context, scene, palette) {
  const bottom = floorOf(scene);
  for (const mark of scene.marks) {
    const x = xOf(mark.at, scene.window, scene.width);
    if (x < 0 || x > scene.width) continue;
    const bad = mark.kind === "kill" || mark.kind === "failure" || mark.kind === "refused";
    context.strokeStyle = context.fillStyle = bad ? palette.damaged : palette.soft;
    context.setLineDash(mark.kind === "start" ? [] : [3, 3]);
    context.beginPath();
    context.moveTo(Math.round(x) + 0.5, 18);
    context.lineTo(Math.round(x) + 0.5, bottom);
    context.stroke();
    context.setLineDash([]);
    context.textAlign = "center";
    context.fillText(
      MARK_SIGNS[mark.kind],
      Math.min(scene.width - 8, Math.max(8, x + (mark.kind === "start" ? 4 : -4))),
      10,
    );
  }
  for (const column of scene.columns) if (column.name) flag(context, column.x, bottom, palette);
}

function flag(context, x, bottom, palette) {
  context.fillStyle = context.strokeStyle = palette.accent;
  context.beginPath();
  context.moveTo(x, bottom);
  context.lineTo(x, 20);
  context.stroke();
  context.beginPath();
  context.moveTo(x, 20);
  context.lineTo(x + 10, 24);
  context.lineTo(x, 28);
  context.fill();
}

function drawCursor(context, scene, at, colour, dash) {
  if (at === null) return;
  const x = Math.round(xOf(at, scene.window, scene.width)) + 0.5;
  if (x < 0 || x > scene.width) return;
  context.strokeStyle = context.fillStyle = colour;
  context.lineWidth = 1.5;
  context.setLineDash(dash);
  context.beginPath();
  context.moveTo(x, LANES.marks);
  context.lineTo(x, floorOf(scene) + LANES.strip);
  context.stroke();
  context.setLineDash([]);
  context.lineWidth = 1;
}
