// SPDX-License-Identifier: Apache-2.0
// Samples over time, with the triggers that fired and the captures, which can be chosen.

import uPlot from "uplot";

import { byId, clock, make } from "./dom.js";
import { Marks } from "./marks.js";

const HEIGHT = 112;
const MOST_AT_FIRST = 5;
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function ticks(u, splits) {
	const fine = splits.length > 1 && splits[1] - splits[0] < 1;
	return splits.map((at) => clock(at * 1000).slice(0, fine ? 12 : 8));
}

export class Timeline {
	constructor(data, select) {
		this.data = data;
		this.box = byId("plots");
		this.plots = [];
		this.series = this.collect();
		this.range = this.extent();
		this.chosen = this.first();
		if (!this.range) {
			byId("timeline").querySelector("p.only-js").hidden = true;
			byId("marks").hidden = true;
			return;
		}
		this.offerMore();
		this.marks = new Marks(data, select);
		let width = 0;
		new ResizeObserver(() => {
			const now = this.box.clientWidth;
			if (now && now !== width) {
				width = now;
				this.redraw();
			}
		}).observe(this.box);
	}

	// name → {x (s), y, points}: of the collectors, and of the captures themselves.
	collect() {
		const found = new Map();
		for (const table of this.data.timeline)
			for (const [name, values] of Object.entries(table.series))
				found.set(found.has(name) ? `${name} (${table.source})` : name, { x: table.time.map((t) => t / 1000), y: values });
		const timed = this.data.captures.filter((capture) => capture.time !== null);
		timed.sort((a, b) => a.time - b.time);
		// Two points are no course, and a chart of zeros shows nothing.
		if (timed.length > 2)
			["waiting", "running", "idle"].forEach((state, i) => {
				if (timed.some((capture) => capture.states[i])) found.set(`threads ${state}, in captures`, {
					x: timed.map((capture) => capture.time / 1000),
					y: timed.map((capture) => capture.states[i]),
					points: true,
				});
			});
		return found;
	}

	first() {
		// What changed most in the stall comes first.
		const changed = new Map(this.data.timeline.flatMap((table) => Object.entries(table.changed)));
		const wanted = this.data.timeline.flatMap((table) => table.first).filter((name) => this.series.has(name));
		wanted.sort((a, b) => (changed.get(b) ?? 0) - (changed.get(a) ?? 0));
		const own = [...this.series.keys()].filter((name) => name.endsWith(", in captures") && !name.includes("idle"));
		return [...wanted.slice(0, MOST_AT_FIRST), ...own];
	}

	extent() {
		const times = [
			...[...this.series.values()].flatMap((item) => [item.x[0], item.x[item.x.length - 1]]),
			...this.data.captures.filter((capture) => capture.time !== null).map((capture) => capture.time / 1000),
			...this.data.fired.map((item) => item.time / 1000),
		].filter(Number.isFinite);
		if (!times.length) return null;
		const low = Math.min(...times);
		const high = Math.max(...times);
		const room = Math.max(0.05, (high - low) * 0.02);
		return [low - room, high + room];
	}

	offerMore() {
		const rest = [...this.series.keys()].filter((name) => !this.chosen.includes(name));
		if (!rest.length) return;
		byId("more-plots").hidden = false;
		byId("series-names").replaceChildren(...rest.map((name) => make("option", { value: name })));
		const input = byId("add-series");
		input.addEventListener("change", () => {
			if (!this.series.has(input.value) || this.chosen.includes(input.value)) return;
			this.chosen.push(input.value);
			input.value = "";
			this.redraw();
		});
	}

	redraw() {
		for (const plot of this.plots) plot.destroy();
		this.box.replaceChildren();
		this.plots = this.chosen.map((name) => this.plot(name));
		this.place();
	}

	// The unit is in the title; the name is what triggers and files have.
	title(name) {
		return Object.hasOwn(this.data.titles, name) ? `${this.data.titles[name]} (${name})` : name;
	}

	caption(name) {
		const threshold = this.threshold(name);
		return this.title(name) + (threshold === null ? "" : `; threshold ${threshold}`);
	}

	plot(name) {
		const item = this.series.get(name);
		const holder = make("figure", { class: "plot" }, make("figcaption", {}, this.caption(name)));
		this.box.append(holder);
		const range = this.range;
		const threshold = this.threshold(name);
		const axis = { stroke: colour("--dim"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false }, font: "11px system-ui, sans-serif" };
		const last = item.y.filter((v) => v !== null).at(-1);
		holder.setAttribute("aria-label", `${this.caption(name)}, last ${last}`);
		return new uPlot(
			{
				width: this.box.clientWidth,
				height: HEIGHT,
				legend: { show: false },
				cursor: { sync: { key: "time" }, y: false },
				scales: {
					x: { time: true, range: (_, low, high) => (low === item.x[0] && high === item.x.at(-1) ? range : [low, high]) },
					y: { range: (_, low, high) => [Math.min(0, low), Math.max(high, threshold ?? 0) * 1.08 || 1] },
				},
				axes: [{ ...axis, values: ticks, space: 90, size: 28 }, { ...axis, size: 56 }],
				series: [
					{},
					{
						label: name,
						stroke: colour("--accent"),
						fill: item.points ? undefined : colour("--accent-soft"),
						width: 1.5,
						paths: item.points ? () => null : undefined, // nothing is known of the time between
						points: { show: Boolean(item.points) || item.x.length < 30, size: 6 },
						spanGaps: true,
					},
				],
				hooks: {
					draw: [(u) => this.overlay(u, threshold)],
					setScale: [(u, key) => key === "x" && this.follow(u)],
					setCursor: [(u) => this.value(u, name, holder)],
				},
			},
			[item.x, item.y],
			holder,
		);
	}

	threshold(name) {
		const fired = this.data.fired.find((item) => item.threshold !== null && item.why.split(/[^\w.]+/).includes(name.replace(/\/s$/, "")));
		return fired ? fired.threshold : null;
	}

	value(u, name, holder) {
		const at = u.cursor.idx;
		const now = at === null || at === undefined ? "" : `: ${u.data[1][at] ?? "?"} at ${clock(u.data[0][at] * 1000)}`;
		holder.querySelector("figcaption").textContent = this.caption(name) + now;
	}

	// Zooming one plot zooms all, and the marks with them.
	follow(u) {
		const { min, max } = u.scales.x;
		if (this.following || !this.plots.length || min === null) return;
		this.following = true;
		for (const plot of this.plots) if (plot !== u) plot.setScale("x", { min, max });
		this.following = false;
		this.window = [min, max];
		this.place();
	}

	overlay(u, threshold) {
		const { ctx, bbox } = u;
		ctx.save();
		ctx.beginPath();
		ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
		ctx.clip();
		const line = (x0, y0, x1, y1, stroke, width, dash) => {
			ctx.beginPath();
			ctx.setLineDash(dash.map((n) => n * devicePixelRatio));
			ctx.strokeStyle = stroke;
			ctx.lineWidth = width * devicePixelRatio;
			ctx.moveTo(x0, y0);
			ctx.lineTo(x1, y1);
			ctx.stroke();
		};
		if (this.data.window) {
			const [from, to] = this.data.window.map((time) => u.valToPos(time / 1000, "x", true));
			ctx.fillStyle = colour("--stall-soft");
			ctx.fillRect(from, bbox.top, Math.max(1, to - from), bbox.height);
		}
		for (const item of this.data.fired) {
			const x = u.valToPos(item.time / 1000, "x", true);
			line(x, bbox.top, x, bbox.top + bbox.height, colour("--bad"), 1.5, [5, 4]);
		}
		this.data.captures.forEach((capture, number) => {
			if (capture.time === null) return;
			const x = u.valToPos(capture.time / 1000, "x", true);
			const on = number === this.number;
			line(x, bbox.top, x, bbox.top + bbox.height, colour(on ? "--text" : "--mark"), on ? 2 : 1, []);
		});
		if (threshold !== null) {
			const y = u.valToPos(threshold, "y", true);
			line(bbox.left, y, bbox.left + bbox.width, y, colour("--bad"), 1, [2, 3]);
			ctx.fillStyle = colour("--bad");
			ctx.font = `${10 * devicePixelRatio}px system-ui, sans-serif`;
			ctx.fillText(`threshold ${threshold}`, bbox.left + 4 * devicePixelRatio, y - 3 * devicePixelRatio);
		}
		ctx.restore();
	}

	place(forPaper = false) {
		const plot = this.plots[0];
		const full = this.box.clientWidth;
		const left = plot ? plot.bbox.left / devicePixelRatio : 0;
		const width = plot ? plot.bbox.width / devicePixelRatio : full;
		const [low, high] = this.window ?? this.range;
		if (full) this.marks.place({ left, width, full, low, high }, forPaper);
	}

	show(number) {
		this.number = number;
		if (!this.marks) return;
		this.marks.show(number);
		for (const plot of this.plots) plot.redraw(false);
	}

	print() {
		if (!this.marks) return () => {};
		this.place(true);
		return () => this.place();
	}

	recolour() {
		if (this.range) this.redraw();
	}
}
