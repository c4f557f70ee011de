// SPDX-License-Identifier: Apache-2.0
// The wait graph: what blocks stands above what waits for it.

import dagre from "@dagrejs/dagre";

import { copyText } from "./copy.js";
import { byId, draw, make } from "./dom.js";

const WIDTH = 230;
const PADDING = 10;
const LINE = 16;
const LOCK_PADDING = 18;
const FRAME = 6;
const COPY = 52; // width of the button in a box
const MOST = 400; // letters: no three lines hold more
// As report.css has them: text in SVG does not wrap, so it is measured before it is drawn.
const FONTS = { title: "650 13px", note: "12px", sql: "11px" };

const ruler = document.createElement("canvas").getContext("2d");

function fits(text, room) {
	return ruler.measureText(text).width <= room;
}

function beginning(text, room) {
	let length = text.length;
	while (length > 1 && !fits(text.slice(0, length), room)) length--;
	return length;
}

function wrapped(text, style, room, rows) {
	const family = getComputedStyle(document.documentElement).getPropertyValue(style === "sql" ? "--mono" : "--sans");
	ruler.font = `${FONTS[style]} ${family}`;
	const lines = [];
	let rest = text.slice(0, MOST);
	while (lines.length < rows - 1 && !fits(rest, room)) {
		const most = beginning(rest, room);
		let cut = rest.lastIndexOf(" ", most);
		if (cut < most / 2) cut = most;
		lines.push(rest.slice(0, cut));
		rest = rest.slice(cut).trimStart();
	}
	if (!fits(rest, room)) rest = `${rest.slice(0, beginning(rest, room - ruler.measureText("…").width))}…`;
	return [...lines, rest].filter((line) => line).map((line) => ({ text: line, class: style }));
}

// The name of a button begins with the text that is seen in it.
const visible = (at) => at.lines.map((line) => line.text).join(" ");
const noteOf = (node) => node.note + (node.state ? `; ${node.state}` : "");
// What a box has no room for.
function rest(node) {
	const tids = node.tids.length > 1 ? `threads ${node.tids.join(", ")}${node.count > node.tids.length ? ", …" : ""}` : "";
	return [noteOf(node), node.file, node.query, tids].filter(Boolean).join("\n");
}

const whole = (node) => [node.text, noteOf(node), node.file, node.query].filter(Boolean).join("\n");

function onPress(element, act) {
	element.addEventListener("click", act);
	element.addEventListener("keydown", (event) => {
		if (event.key !== "Enter" && event.key !== " ") return;
		event.preventDefault();
		act();
	});
}

export class Graph {
	constructor(data, choose, tip) {
		this.data = data;
		this.tip = tip;
		this.choose = choose;
		this.box = byId("drawing");
		this.tree = byId("tree");
		byId("graph-text").open = false; // the drawing says it
	}

	show(number) {
		const graph = this.data.captures[number].graph;
		this.box.replaceChildren();
		this.tree.replaceChildren();
		byId("graph-text").hidden = !graph.nodes.length;
		if (!graph.nodes.length) {
			this.box.append(make("p", {}, "No thread waits for a known lock or thread."));
			byId("no-graph")?.remove();
			return;
		}
		this.box.append(this.picture(graph));
		this.text(graph);
		if (graph.left_out)
			this.box.append(make("p", { class: "dim" }, `${graph.left_out} threads at locks with fewer waiters are omitted.`));
	}

	layout(graph) {
		const layout = new dagre.graphlib.Graph();
		layout.setGraph({ rankdir: "TB", nodesep: 18, ranksep: 42, marginx: FRAME, marginy: FRAME });
		layout.setDefaultEdgeLabel(() => ({}));
		graph.nodes.forEach((node, number) => {
			const inset = node.kind === "lock" ? LOCK_PADDING : PADDING;
			const room = WIDTH - 2 * inset;
			const lines = [
				...wrapped(node.text, "title", node.tids.length ? room - COPY : room, 2),
				...wrapped(noteOf(node), "note", room, 3),
				...wrapped(node.file ?? "", "note", room, 2),
				...wrapped(node.query ?? "", "sql", room, 2),
			];
			layout.setNode(String(number), { lines, inset, width: WIDTH, height: lines.length * LINE + 2 * PADDING });
		});
		for (const [one, other] of graph.links) layout.setEdge(String(one), String(other));
		dagre.layout(layout);
		return layout;
	}

	picture(graph) {
		const layout = this.layout(graph);
		const { width, height } = layout.graph();
		const svg = draw("svg", {
			class: "waitgraph",
			viewBox: `0 0 ${Math.ceil(width)} ${Math.ceil(height)}`,
			width: Math.ceil(width),
			height: Math.ceil(height),
			role: "group",
			"aria-label": "Who waits for whom: a box filters the table of threads; the text version follows",
		});
		svg.append(
			draw("defs", {},
				draw("marker", { id: "arrow", viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 9, markerHeight: 9, markerUnits: "userSpaceOnUse", orient: "auto" },
					draw("path", { d: "M0 0L8 4L0 8z" }))),
		);
		for (const [one, other, count, source] of graph.links) svg.append(...this.link(layout, one, other, count, source));
		graph.nodes.forEach((node, number) => {
			const at = layout.node(String(number));
			svg.append(this.node(node, at));
			if (node.tids.length) svg.append(this.copyButton(node, at));
		});
		return svg;
	}

	link(layout, one, other, count, source) {
		const { points } = layout.edge(String(one), String(other));
		const path = points.map((p, i) => `${i ? "L" : "M"}${p.x.toFixed(1)} ${p.y.toFixed(1)}`).join("");
		const line = draw("path", {
			d: path,
			class: source === "frames" ? "guess" : "sure",
			"stroke-width": Math.min(5, 1.2 + Math.log2(Math.max(1, count)) * 0.4).toFixed(1),
			"marker-end": "url(#arrow)",
		}, draw("title", {}, `${count} wait; known from: ${source}`));
		return [line];
	}

	node(node, at) {
		const left = at.x - at.width / 2;
		const top = at.y - at.height / 2;
		const g = draw("g", {
			class: ["node", node.kind, node.root || node.blocker ? "root" : "", node.cycle ? "in-cycle" : "", node.state ? `s-${node.state}` : ""].join(" "),
			transform: `translate(${left.toFixed(1)} ${top.toFixed(1)})`,
			role: node.tids.length ? "button" : null,
			tabindex: node.tids.length ? 0 : null,
			"aria-label": node.tids.length ? `${visible(at)}: show its threads in the table` : null,
		});
		if (node.tids.length) this.answer(g, node.tids);
		g.addEventListener("pointermove", (event) => this.tip.show([node.text, rest(node)], () => [event.clientX, event.clientY]));
		g.addEventListener("pointerleave", () => this.tip.hide());
		g.append(
			draw("rect", { width: at.width, height: at.height, rx: node.kind === "lock" ? at.height / 2.4 : 5 }),
		);
		if (node.kind === "group" && node.count > 1)
			g.prepend(draw("rect", { class: "behind", x: 4, y: 4, width: at.width, height: at.height, rx: 5 }));
		at.lines.forEach((line, i) => {
			g.append(draw("text", { class: line.class, x: at.inset, y: PADDING + LINE * (i + 0.75) }, line.text), " ");
		});
		return g;
	}

	// Beside its box, not in it: a button has no buttons.
	copyButton(node, at) {
		const width = COPY - 6;
		const x = at.x + at.width / 2 - width - 5;
		const label = draw("text", { x: width / 2, y: 12, "text-anchor": "middle" }, "Copy");
		const g = draw("g", {
			class: "copybox",
			transform: `translate(${x.toFixed(1)} ${(at.y - at.height / 2 + 5).toFixed(1)})`,
			role: "button",
			tabindex: 0,
			"aria-label": `Copy the text of ${node.text}`,
		}, draw("rect", { width, height: 17, rx: 4 }), label);
		onPress(g, () => copyText(whole(node), label));
		return g;
	}

	answer(g, tids) {
		onPress(g, () => {
			for (const other of this.box.querySelectorAll(".node.chosen")) other.classList.remove("chosen");
			g.classList.add("chosen");
			this.choose(tids);
			byId("threads").scrollIntoView();
		});
	}

	// The same tree as the page has without its script.
	text(graph) {
		const below = new Map();
		for (const [one, other] of graph.links) below.set(one, [...(below.get(one) ?? []), other]);
		const done = new Set();
		const starts = graph.nodes.map((_, i) => i);
		starts.sort((a, b) => Boolean(graph.nodes[b].root) - Boolean(graph.nodes[a].root) || a - b);
		for (const start of starts) {
			const stack = [[0, start]];
			while (stack.length) {
				const [depth, number] = stack.pop();
				if (done.has(number)) continue;
				done.add(number);
				const node = graph.nodes[number];
				this.tree.append(
					make("li", { class: `depth-${Math.min(depth, 8)}` }, make("b", {}, node.text), " ",
						make("span", { class: "dim" }, [noteOf(node), node.file, node.query].filter(Boolean).join("; "))),
				);
				for (const child of [...(below.get(number) ?? [])].reverse()) stack.push([depth + 1, child]);
			}
		}
	}
}
