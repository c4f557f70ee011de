// SPDX-License-Identifier: Apache-2.0
// Draws a tree of boxes as one SVG, with an axis of time where the boxes have one.

import { draw } from "./dom.js";

export const CELL = 19;
const LEAST_WIDTH = 1;
const LEAST_TOOTH = 0.3;
const ONE_TEXT = 0.6; // a box that covers more of its width than that has one text over its teeth
const LEAST_TEXT = 24;
const FONT_SIZE = 11.5;
const AXIS_LINE = 14;
const ruler = document.createElement("canvas").getContext("2d");

function letterWidth() {
	ruler.font = `${FONT_SIZE}px ${getComputedStyle(document.documentElement).getPropertyValue("--mono")}`;
	return ruler.measureText("0").width;
}

// Milliseconds since the first capture, for people.
export function since(ms) {
	if (ms < 1000) return `${Math.round(ms)} ms`;
	return ms < 100_000 ? `${(ms / 1000).toFixed(2)} s` : `${Math.round(ms / 1000)} s`;
}

// options: {width, zoomed, colour(box), found(box), label(box), axis: {columns, selected, single}}
export function picture(root, options) {
	const { width, zoomed, axis } = options;
	const scale = width / (zoomed.x1 - zoomed.x0);
	const top = axis ? (axis.single ? 2 : 3) * AXIS_LINE + 4 : 0;
	const letter = letterWidth();
	const svg = draw("svg", { class: "flamegraph", "aria-hidden": "true" });
	const texts = draw("g", { class: "texts" });
	let deepest = 0;
	const add = (one, teeth, faded) => {
		deepest = Math.max(deepest, one.depth);
		const y = top + one.depth * CELL;
		const shape = teeth.map(([x0, x1]) => `M${x0.toFixed(2)} ${y}H${Math.max(x1, x0 + LEAST_TOOTH).toFixed(2)}v${CELL - 1}H${x0.toFixed(2)}z`);
		const kind = `${faded ? "fade" : ""} ${options.found(one) ? "found" : ""}`;
		const g = draw("g", { class: `frame ${kind}`, name: one.node.text }, draw("path", { d: shape.join(""), fill: options.colour(one) }));
		g.box = one;
		svg.append(g);
		const [x, room] = roomFor(teeth);
		if (room >= LEAST_TEXT) texts.append(draw("text", { class: kind, x: (x + 4).toFixed(2), y: y + CELL - 6 }, cut(options.label(one), Math.floor((room - 8) / letter))));
	};
	const above = [];
	for (let at = zoomed.parent; at; at = at.parent) above.unshift(at);
	for (const one of above) add(one, [[0, width]], true);
	const left = [zoomed];
	while (left.length) {
		const one = left.pop();
		const wide = (one.x1 - one.x0) * scale;
		if (wide < LEAST_WIDTH) continue;
		add(one, one.teeth.map((tooth) => tooth.map((x) => (x - zoomed.x0) * scale)), false);
		left.push(...one.children);
	}
	svg.append(texts); // over all boxes
	const height = top + (deepest + 1) * CELL + 1;
	if (axis) svg.append(...ruled(axis, zoomed, scale, width, height, top));
	svg.setAttribute("width", width);
	svg.setAttribute("height", height);
	svg.setAttribute("viewBox", `0 0 ${width} ${height}`); // paper is narrower
	return svg;
}

// Returns where the text of a box begins, and how much room it has.
function roomFor(teeth) {
	const start = teeth[0][0];
	const whole = teeth[teeth.length - 1][1] - start;
	const covered = teeth.reduce((sum, [x0, x1]) => sum + x1 - x0, 0);
	if (covered >= ONE_TEXT * whole) return [start, whole];
	const widest = teeth.reduce((a, b) => (b[1] - b[0] > a[1] - a[0] ? b : a));
	return [widest[0], widest[1] - widest[0]];
}

function cut(text, letters) {
	if (text.length <= letters) return text;
	return letters > 2 ? `${text.slice(0, letters - 1)}…` : "";
}

function ruled(axis, zoomed, scale, width, height, top) {
	const parts = [];
	const rows = axis.single ? 0 : 1;
	const inside = axis.columns.filter((c) => c.x + c.width > zoomed.x0 + 1e-6 && c.x < zoomed.x1 - 1e-6);
	const at = (c) => Math.max(0, (c.x - zoomed.x0) * scale);
	const line = (row) => (row + 1) * AXIS_LINE - 3;
	const text = (x, row, words, kind) => draw("text", { class: `axis ${kind}`, x: x.toFixed(1), y: line(row) }, words);
	const taken = new Map();
	// Writes where nothing is written yet; what comes first is more important.
	const write = (column, row, words, kind) => {
		const start = at(column);
		const end = start + words.length * 6.6 + 10;
		const known = taken.get(row) ?? [];
		if (end > width + 8 || known.some(([a, b]) => start < b && end > a)) return;
		taken.set(row, [...known, [start, end]]);
		parts.push(text(start + 3, row, words, kind));
	};
	const firsts = inside.filter((c, i) => !i || inside[i - 1].capture !== c.capture);
	for (const column of firsts) {
		if (rows) write(column, 0, column.capture === axis.selected ? `▸ ${column.capture + 1}` : `${column.capture + 1}`, column.capture === axis.selected ? "chosen" : "");
		if (column !== inside[0]) parts.push(draw("line", { class: "axis break", x1: at(column).toFixed(1), x2: at(column).toFixed(1), y1: 0, y2: height }));
	}
	for (const column of [...firsts, ...inside]) {
		if (column.time !== null) write(column, rows, since(column.time - axis.start), "");
		write(column, rows + 1, String(column.total), "count");
	}
	for (const column of inside)
		parts.push(draw("line", { class: "axis", x1: at(column).toFixed(1), x2: at(column).toFixed(1), y1: top - 5, y2: top - 1 }));
	return parts;
}
