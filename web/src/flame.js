// SPDX-License-Identifier: Apache-2.0
// The flame graph: of the capture that is shown, or of the difference of two sides.

import flamegraph from "d3-flame-graph";
import { select } from "d3-selection";

import { byId, make, onTyping, threadsText } from "./dom.js";

const LEAST_WIDTH = 3;
const CELL = 19;

export class Flame {
	constructor(data) {
		this.data = data;
		this.box = byId("flame-chart");
		this.focused = null;
		this.inverted = byId("flame-inverted");
		this.idle = byId("flame-idle");
		this.difference = byId("flame-difference");
		this.search = byId("flame-search");
		for (const input of [this.inverted, this.idle, this.difference])
			input?.addEventListener("change", () => this.redraw());
		onTyping(this.search, () => this.find());
		byId("flame-reset").addEventListener("click", () => this.reset());
		this.box.addEventListener("keydown", (event) => this.key(event));
		this.box.addEventListener("focus", () => this.describe(this.focused ?? this.root));
		new ResizeObserver(() => {
			if (this.box.clientWidth !== this.width) this.redraw();
		}).observe(this.box);
	}

	show(capture) {
		this.capture = capture;
		this.redraw();
	}

	// Groups to draw: [names from the root, threads, change].
	groups() {
		if (this.difference?.checked) return this.changes();
		return this.data
			.groups(this.capture)
			.filter((group) => this.idle.checked || group.status !== "idle")
			.map((group) => [group.stack, group.count, 0, group.status]);
	}

	// Mean threads in each stack on both sides. A stack is as wide as the larger one, so that what
	// is gone shows as well as what is new.
	changes() {
		const sides = { before: new Map(), after: new Map() };
		const samples = { before: 0, after: 0 };
		this.data.captures.forEach((capture, number) => {
			const side = sides[capture.reason];
			if (!side) return;
			samples[capture.reason] += 1;
			for (const group of this.data.groups(number))
				if (this.idle.checked || group.status !== "idle")
					side.set(group.stack, (side.get(group.stack) ?? 0) + group.count);
		});
		return [...new Set([...sides.before.keys(), ...sides.after.keys()])].map((stack) => {
			const before = (sides.before.get(stack) ?? 0) / samples.before;
			const after = (sides.after.get(stack) ?? 0) / samples.after;
			return [stack, Math.max(before, after), after - before, ""];
		});
	}

	tree() {
		const root = { name: "all threads", value: 0, delta: 0, children: [], index: new Map() };
		for (const [stack, count, delta, status] of this.groups()) {
			let node = root;
			const names = this.data.stacks[stack];
			const ordered = this.inverted.checked ? names : [...names].reverse();
			root.value += count;
			root.delta += delta;
			for (const name of ordered) {
				let child = node.index.get(name);
				if (!child) {
					child = {
						name: this.data.name(name),
						subsystem: this.data.subsystem(name),
						value: 0,
						delta: 0,
						children: [],
						index: new Map(),
					};
					node.index.set(name, child);
					node.children.push(child);
				}
				child.value += count;
				child.delta += delta;
				node = child;
			}
			if (!names.length) {
				node.children.push({ name: `no frame could be read (${status})`, value: count, delta, children: [] });
			}
		}
		return root;
	}

	redraw() {
		this.width = this.box.clientWidth;
		if (this.capture === undefined || !this.width) return;
		const tree = this.tree();
		this.box.replaceChildren();
		this.focused = null;
		if (!tree.value) {
			this.box.append(make("p", { class: "dim" }, "All threads are idle: select “include idle threads”."));
			this.chart = null;
			return;
		}
		const target = make("div");
		this.box.append(target);
		this.total = tree.value;
		this.chart = flamegraph()
			.width(this.width)
			.cellHeight(CELL)
			.inverted(true)
			.minFrameSize(LEAST_WIDTH)
			.transitionDuration(0)
			.sort((a, b) => b.data.value - a.data.value)
			.tooltip(false)
			.setColorMapper((d) => this.colour(d))
			.setSearchMatch((d, term) => d.data.name.toLowerCase().includes(term.toLowerCase()))
			.label((d) => this.label(d))
			.onClick((d) => this.focus(d))
			.onHover((d) => this.describe(d));
		this.chart.setSearchHandler((found, sum, total) => this.found(found, sum, total));
		const chosen = select(target).datum(tree);
		chosen.call(this.chart);
		this.root = chosen.datum();
		const svg = target.querySelector("svg");
		svg.setAttribute("aria-hidden", "true");
		svg.querySelector("text.title")?.remove();
		this.trim();
		this.describe(this.root);
		if (this.search.value) this.find();
	}

	// The library leaves two empty rows.
	trim() {
		const svg = this.box.querySelector("svg");
		const rows = [...svg.querySelectorAll("g.frame")].map((g) => g.__data__.depth);
		const height = (Math.max(0, ...rows) + 1) * CELL + 1;
		svg.setAttribute("height", height);
		svg.setAttribute("viewBox", `0 0 ${this.width} ${height}`); // paper is narrower
	}

	colour(d) {
		if (d.highlight) return "var(--found)";
		if (!this.difference?.checked) return `var(--f-${d.data.subsystem?.colour ?? "grey"})`;
		const share = d.data.value ? d.data.delta / d.data.value : 0;
		if (Math.abs(share) < 0.02) return "var(--f-grey)";
		const step = Math.min(4, Math.max(1, Math.ceil(Math.abs(share) * 4)));
		return `var(--${share > 0 ? "up" : "down"}-${step})`;
	}

	label(d) {
		const { value, delta, subsystem, name } = d.data;
		const share = ((100 * value) / this.total).toFixed(1);
		const change = this.difference?.checked ? `, ${delta > 0 ? "+" : ""}${round(delta)}` : "";
		const where = subsystem && subsystem.name !== "other" ? `; ${subsystem.title}` : "";
		return `${name}: ${threadsText(round(value))}${change} (${share} %)${where}`;
	}

	describe(d) {
		if (d) byId("flame-details").textContent = this.label(d);
	}

	focus(d) {
		this.focused = d;
		this.describe(d);
		this.mark();
	}

	mark() {
		for (const g of this.box.querySelectorAll("g.frame"))
			g.classList.toggle("focused", g.__data__ === this.focused);
		this.trim();
	}

	zoom(d) {
		this.chart.zoomTo(d);
		this.focus(d);
	}

	reset() {
		if (!this.chart) return;
		this.search.value = "";
		byId("flame-found").textContent = "";
		this.chart.clear();
		this.zoom(this.root);
	}

	find() {
		if (!this.chart) return;
		const term = this.search.value.trim();
		if (term) this.chart.search(term);
		else {
			this.chart.clear();
			byId("flame-found").textContent = "";
		}
		this.mark();
	}

	found(results, sum, total) {
		const share = total ? ((100 * sum) / total).toFixed(1) : "0";
		byId("flame-found").textContent = `${results.length} boxes, ${threadsText(round(sum))} (${share} %)`;
	}

	key(event) {
		if (!this.chart || event.target !== this.box) return;
		const at = this.focused ?? this.root;
		const seen = (list) => (list ?? []).filter((d) => d.x1 - d.x0 > 0);
		const row = seen(at.parent?.children);
		const place = row.indexOf(at);
		const next = {
			ArrowDown: () => seen(at.children).sort((a, b) => b.value - a.value)[0],
			ArrowUp: () => at.parent,
			ArrowLeft: () => row[place - 1],
			ArrowRight: () => row[place + 1],
			Home: () => this.root,
		}[event.key];
		if (next) {
			const d = next();
			if (d) this.focus(d);
		} else if (event.key === "Enter" || event.key === " ") this.zoom(at);
		else if (event.key === "Escape") this.reset();
		else return;
		event.preventDefault();
	}
}

const round = (value) => (Number.isInteger(value) ? value : Number(value.toFixed(2)));
