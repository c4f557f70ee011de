// SPDX-License-Identifier: Apache-2.0
// The flame graph: of the capture that is shown, of the difference of two sides, or of all moments
// over time.

import { byId, clock, make, onTyping, threadsText } from "./dom.js";
import { picture, since } from "./flamedraw.js";
import { atPath, boxes, moments, path, walk } from "./flametree.js";

const MOST_TABLE_ROWS = 30;
const TABLE_FRAMES = 8;
const OPTIONS = ["time", "cpu", "inverted", "idle"];

export class Flame {
	constructor(data, link, tip) {
		this.data = data;
		this.link = link;
		this.box = byId("flame-chart");
		this.tip = tip;
		this.focused = null;
		this.search = byId("flame-search");
		this.difference = byId("flame-difference");
		this.inputs = Object.fromEntries(OPTIONS.map((name) => [name, byId(`flame-${name}`)]));
		for (const name of link.text("flame").split(",")) if (this.inputs[name]) this.inputs[name].checked = true;
		for (const input of document.querySelectorAll("#flame .bar input:not([type=search])"))
			input.addEventListener("change", () => this.changed());
		onTyping(this.search, () => this.find());
		byId("flame-reset").addEventListener("click", () => this.reset());
		this.listen();
	}

	listen() {
		const at = (event) => event.target.closest?.("g.frame")?.box;
		this.box.addEventListener("click", (event) => at(event) && this.zoom(at(event)));
		this.box.addEventListener("pointermove", (event) => {
			const one = at(event);
			if (!one) return this.tip.hide();
			this.describe(one);
			this.tip.show(this.lines(one), () => [event.clientX, event.clientY]);
		});
		this.box.addEventListener("pointerleave", () => this.tip.hide());
		this.box.addEventListener("keydown", (event) => this.key(event));
		this.box.addEventListener("focus", () => this.describe(this.focused ?? this.zoomed));
		this.box.addEventListener("blur", () => this.tip.hide());
		new ResizeObserver(() => {
			if (this.box.clientWidth !== this.width) this.draw();
		}).observe(this.box);
	}

	is(name) {
		return Boolean(this.inputs[name]?.checked);
	}

	isDifference() {
		return Boolean(this.difference?.checked) && !this.is("time") && !this.is("cpu");
	}

	show(capture) {
		if (this.capture !== undefined && !this.is("time")) this.link.set("zoom", "");
		this.capture = capture;
		this.build();
	}

	changed() {
		this.link.set("flame", OPTIONS.filter((name) => this.is(name)).join(","));
		this.link.set("zoom", "");
		this.build();
	}

	// What a moment has: of all threads, or of what ran since the moment before.
	rowsOf(moment) {
		const rows = [];
		if (this.is("cpu")) {
			for (let i = 0; i < moment.ran.length; i += 2) rows.push({ stack: moment.ran[i], value: moment.ran[i + 1], status: "running" });
			return rows;
		}
		for (let i = 0; i < moment.stacks.length; i += 3) {
			const status = this.data.texts[moment.stacks[i + 1]];
			if (this.is("idle") || status !== "idle") rows.push({ stack: moment.stacks[i], value: moment.stacks[i + 2], status });
		}
		return rows;
	}

	rows() {
		if (this.isDifference()) return this.changes();
		if (this.is("cpu")) return this.data.captures[this.capture].moments.flatMap((moment) => this.rowsOf(moment));
		return this.data
			.groups(this.capture)
			.filter((group) => this.is("idle") || group.status !== "idle")
			.map((group) => ({ stack: group.stack, value: group.count, status: group.status }));
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
				if (this.is("idle") || group.status !== "idle")
					side.set(group.stack, (side.get(group.stack) ?? 0) + group.count);
		});
		return [...new Set([...sides.before.keys(), ...sides.after.keys()])].map((stack) => {
			const before = (sides.before.get(stack) ?? 0) / samples.before;
			const after = (sides.after.get(stack) ?? 0) / samples.after;
			return { stack, value: Math.max(before, after), before, after, status: "" };
		});
	}

	build() {
		this.axis = null;
		this.tip.hide();
		let columns = [{ x: 0, width: 1, total: 0 }];
		let rows;
		if (this.is("time")) {
			const found = moments(this.data, this.capture, (moment) => this.rowsOf(moment));
			({ columns, rows } = found);
			const single = new Set(columns.map((column) => column.capture)).size < 2;
			this.axis = { columns, start: found.start, left: found.left, single, selected: this.capture };
		} else rows = this.rows().map((row) => ({ ...row, column: 0 }));
		rows = rows.filter((row) => row.value > 0);
		const title = this.all();
		this.root = rows.length ? boxes(this.data, rows, columns, this.is("inverted"), title) : null;
		const wanted = this.link.text("zoom");
		this.zoomed = this.root && wanted ? (atPath(this.root, wanted) ?? this.root) : this.root;
		this.focused = null;
		this.about();
		this.legend();
		this.table(rows);
		this.describe(this.zoomed);
		this.find();
	}

	all() {
		return this.is("cpu") ? "all samples" : "all threads";
	}

	empty() {
		return this.is("cpu") ? "No samples were taken." : "All threads are idle: select “include idle threads”.";
	}

	draw() {
		this.width = this.box.clientWidth;
		if (!this.width || this.capture === undefined) return;
		if (!this.root) {
			this.box.replaceChildren(make("p", { class: "dim" }, this.empty()));
			byId("flame-details").textContent = "";
			return;
		}
		const term = this.term();
		const svg = picture(this.root, {
			width: this.width,
			zoomed: this.zoomed,
			axis: this.axis,
			colour: (one) => this.colour(one),
			found: (one) => term && one.node.text.toLowerCase().includes(term),
			label: (one) => this.title(one),
		});
		this.box.replaceChildren(svg);
		this.mark();
	}

	// What the axis says, in words; and what is left out.
	about() {
		const text = [];
		if (this.axis) {
			const { start, left, single, columns } = this.axis;
			text.push(`Each column is one capture of a burst, ${columns.length} in all; ${this.is("cpu") ? "what ran since the one before fills it" : "its threads fill it"}. Above it: `);
			text.push(start === null ? "" : `the time since the first (${clock(start)} UTC), and `, `the number of its ${this.is("cpu") ? "samples" : "threads"}.`);
			if (!single) text.push(" The first line has the numbers of the captures as they are listed; ▸ is the one shown on this page.");
			if (left) text.push(` ${left} captures farther away are left out.`);
			const hidden = columns.reduce((sum, column) => sum + column.leftOut, 0);
			if (hidden && !this.is("cpu")) text.push(` Threads in rare stacks are left out: ${hidden}.`);
		}
		byId("flame-about").textContent = text.join("");
	}

	// What the colours mean: parts of the server, or of a difference more and fewer.
	legend() {
		const item = (kind, ...text) => make("li", {}, make("span", { class: `chip ${kind}` }), ...text);
		const list = byId("flame-legend");
		if (this.isDifference()) {
			list.replaceChildren(item("d-down", "−: fewer threads after"), item("", "no change"), item("d-up", "+: more threads after"));
			return;
		}
		const seen = new Map();
		for (const { node } of this.root ? walk(this.root) : [])
			if (node.subsystem && node.subsystem.name !== "other")
				seen.set(node.subsystem.colour, (seen.get(node.subsystem.colour) ?? new Set()).add(node.subsystem.title));
		const grey = seen.get("grey") ?? new Set();
		seen.delete("grey");
		seen.set("grey", grey.add("not known"));
		list.replaceChildren(...[...seen].map(([colour, titles]) => item(`c-${colour}`, [...titles].join(", "))));
	}

	colour({ node }) {
		if (!this.isDifference()) return `var(--f-${node.subsystem?.colour ?? "grey"})`;
		const share = node.value ? (node.after - node.before) / node.value : 0;
		if (Math.abs(share) < 0.02) return "var(--f-grey)";
		const step = Math.min(4, Math.max(1, Math.ceil(Math.abs(share) * 4)));
		return `var(--${share > 0 ? "up" : "down"}-${step})`;
	}

	count(value) {
		const rounded = round(value);
		if (!this.is("cpu")) return threadsText(rounded);
		return rounded === 1 ? "1 sample" : `${rounded} samples`;
	}

	title({ node }) {
		const change = node.after - node.before;
		if (!this.isDifference() || Math.abs(change) < 0.005) return node.text;
		return `${change > 0 ? "+" : "−"}${round(Math.abs(change))} ${node.text}`;
	}

	// [name, what it is], as the tooltip has them.
	lines(one) {
		const { node } = one;
		const where = node.subsystem && node.subsystem.name !== "other" ? `; ${node.subsystem.title}` : "";
		return [node.text, `${this.amount(one)}${where}`];
	}

	amount(one) {
		const { node } = one;
		if (this.isDifference()) {
			const change = round(Math.abs(node.after - node.before));
			const word = change === 0 ? "no change" : `${change} ${node.after > node.before ? "more" : "fewer"}`;
			return `${round(node.before)} before, ${threadsText(round(node.after))} after: ${word}`;
		}
		if (!this.axis) return `${this.count(node.value)} (${this.share(node.value / this.root.node.value)})`;
		const many = one.least === one.most ? this.count(one.most) : `${round(one.least)} to ${this.count(one.most)}`;
		return `${many}, ${this.span(one)}`;
	}

	span({ first, last, columns }) {
		const { start, columns: all } = this.axis;
		const at = (number) => (start === null ? `capture ${all[number].capture + 1}` : since(all[number].time - start));
		const when = first === last ? `at ${at(first)}` : `${at(first)} to ${at(last)}`;
		return `${when}, in ${columns} of ${all.length} columns`;
	}

	share(part) {
		return `${(100 * part).toFixed(1)} %`;
	}

	describe(one) {
		if (one) byId("flame-details").textContent = this.lines(one).join(": ");
	}

	elementOf(one) {
		return [...this.box.querySelectorAll("g.frame")].find((g) => g.box === one);
	}

	// By the keyboard: the tooltip stands below the box.
	focus(one) {
		this.focused = one;
		this.describe(one);
		this.mark();
		this.tip.show(this.lines(one), () => this.placeOf(one), true);
	}

	placeOf(one) {
		const at = this.elementOf(one)?.getBoundingClientRect();
		return at ? [at.left + Math.min(at.width / 2, 160), at.bottom] : null;
	}

	mark() {
		for (const g of this.box.querySelectorAll("g.frame")) g.classList.toggle("focused", g.box === this.focused);
	}

	zoom(one) {
		this.zoomed = one;
		this.focused = one;
		this.link.set("zoom", one === this.root ? "" : path(one));
		this.draw();
		this.describe(one);
	}

	reset() {
		if (!this.root) return;
		this.search.value = "";
		this.tip.hide();
		this.zoom(this.root);
		this.find();
	}

	term() {
		return this.search.value.trim().toLowerCase();
	}

	find() {
		const term = this.term();
		const out = byId("flame-found");
		this.draw();
		if (!term || !this.root) {
			out.textContent = "";
			return;
		}
		const found = [...walk(this.root)].filter((one) => one.node.text.toLowerCase().includes(term));
		const above = new Set(found);
		const outer = found.filter((one) => {
			for (let at = one.parent; at; at = at.parent) if (above.has(at)) return false;
			return true;
		});
		const part = outer.reduce((sum, one) => sum + one.x1 - one.x0, 0) / (this.root.x1 - this.root.x0);
		const many = found.length === 1 ? "1 box" : `${found.length} boxes`;
		const threads = this.axis ? "" : `, ${this.count(outer.reduce((sum, one) => sum + one.node.value, 0))}`;
		out.textContent = `${many}${threads} (${this.share(part)})`;
	}

	key(event) {
		if (!this.root || event.target !== this.box) return;
		const at = this.focused ?? this.zoomed;
		const row = at.parent?.children ?? [at];
		const step = (by) => (at === this.zoomed ? null : row[row.indexOf(at) + by]);
		const next = {
			ArrowDown: () => [...at.children].sort((a, b) => b.x1 - b.x0 - (a.x1 - a.x0))[0],
			ArrowUp: () => at.parent,
			ArrowLeft: () => step(-1),
			ArrowRight: () => step(1),
			Home: () => this.zoomed,
		}[event.key];
		if (next) {
			const one = next();
			if (one) this.focus(one);
		} else if (event.key === "Enter" || event.key === " ") this.zoom(at);
		else if (event.key === "Escape") this.reset();
		else return;
		event.preventDefault();
	}

	// The same as the picture over time, for paper and for those who do not see it.
	table(rows) {
		const holder = byId("flame-table");
		if (!holder) return;
		holder.hidden = !this.axis || !this.root;
		if (holder.hidden) return;
		const stacks = stacksOf(rows);
		byId("flame-table-many").textContent = this.is("cpu") ? "Samples" : "Threads";
		byId("flame-table-more").textContent = stacks.length > MOST_TABLE_ROWS ? `The ${MOST_TABLE_ROWS} largest of ${stacks.length} stacks.` : "";
		holder.querySelector("tbody").replaceChildren(
			...stacks.slice(0, MOST_TABLE_ROWS).map(({ stack, at }) => {
				const values = [...at.values()];
				const columns = [...at.keys()];
				const [least, most] = [Math.min(...values), Math.max(...values)];
				const span = this.span({ first: columns[0], last: columns.at(-1), columns: columns.length });
				const names = this.data.stack(stack).slice(0, TABLE_FRAMES).join(" < ") || "no frame could be read";
				return make("tr", {}, make("td", {}, make("code", {}, names)),
					make("td", { class: "n" }, least === most ? String(most) : `${least} to ${most}`), make("td", {}, span));
			}),
		);
	}

	print() {
		const holder = byId("flame-table");
		if (!holder) return () => {};
		const open = holder.open;
		holder.open = true;
		return () => (holder.open = open);
	}
}

// [{stack, at}], the largest first; at: column -> threads.
function stacksOf(rows) {
	const found = new Map();
	for (const { stack, column, value } of rows) {
		const one = found.get(stack) ?? { stack, at: new Map(), sum: 0 };
		one.at.set(column, (one.at.get(column) ?? 0) + value);
		one.sum += value;
		found.set(stack, one);
	}
	return [...found.values()].sort((a, b) => b.sum - a.sum);
}

const round = (value) => (Number.isInteger(value) ? value : Number(value.toFixed(2)));
