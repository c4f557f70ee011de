// SPDX-License-Identifier: Apache-2.0
// The table of threads: filter, states, sorting.

import { stateOrder } from "./data.js";
import { byId, make, onTyping } from "./dom.js";

const STEP = 200;
const PRINTED = 15;
const MOST_ON_PAPER = 90;
const MOST_CHOSEN = 200;
const MOST_OF_CELL = 200;
const NUMBERS = new Set(["tid", "connection", "waited"]);

export class Threads {
	constructor(data, link) {
		this.data = data;
		this.link = link;
		this.chosen = null;
		this.note = byId("thread-chosen");
		this.note.querySelector("button").addEventListener("click", () => this.choose([]));
		this.body = document.querySelector("#thread-table tbody");
		this.heads = [...document.querySelectorAll("#thread-table th")];
		this.labels = new Map(this.heads.map((head) => [head.dataset.key, head.textContent.trim()]));
		this.search = byId("thread-search");
		this.states = [...document.querySelectorAll("#thread-states input")];
		this.sorted = { key: "status", down: false };
		this.limit = STEP;
		onTyping(this.search, () => {
			this.link.set("find", this.search.value);
			this.redraw();
		});
		for (const input of this.states) input.addEventListener("change", () => this.redraw());
		for (const head of this.heads)
			head.querySelector("button").addEventListener("click", () => this.sort(head.dataset.key));
		byId("thread-more").addEventListener("click", () => {
			this.limit += 5 * STEP;
			this.redraw();
		});
	}

	show(number) {
		this.number = number;
		this.limit = STEP;
		// Columns in which no thread has anything are in the way.
		const rows = this.data.threads(number);
		this.keys = this.data.columns;
		this.empty = new Set(this.keys.filter((key) => key !== "tid" && rows.every((row) => row[key] === "" || row[key] === null)));
		for (const head of this.heads) head.hidden = this.empty.has(head.dataset.key);
		this.redraw();
	}

	// Shows these threads alone; none: all.
	choose(tids) {
		this.chosen = tids.length ? new Set(tids.slice(0, MOST_CHOSEN)) : null;
		this.note.hidden = !this.chosen;
		this.note.querySelector("b").textContent = this.chosen ? `the ${tids.length === 1 ? "thread" : `${tids.length} threads`} of a box` : "";
		this.link.set("threads", this.chosen ? [...this.chosen].join(",") : "");
		this.redraw();
	}

	restore() {
		const find = this.link.text("find");
		const tids = this.link.text("threads").split(",").filter((text) => /^\d{1,10}$/.test(text)).map(Number);
		if (find) this.search.value = find;
		if (tids.length) this.choose(tids);
		else if (find) this.redraw();
	}

	sort(key) {
		this.sorted = { key, down: this.sorted.key === key ? !this.sorted.down : false };
		this.redraw();
	}

	compare(a, b) {
		const { key, down } = this.sorted;
		let order;
		if (key === "status") order = stateOrder(a.status) - stateOrder(b.status);
		else if (NUMBERS.has(key)) order = (a[key] ?? Infinity) - (b[key] ?? Infinity);
		else if (!a[key] !== !b[key]) return a[key] ? -1 : 1;
		else order = a[key] < b[key] ? -1 : a[key] > b[key] ? 1 : 0;
		return (Number.isNaN(order) ? 0 : down ? -order : order) || a.tid - b.tid;
	}

	rows() {
		const states = new Set(this.states.filter((input) => input.checked).map((input) => input.value));
		const words = this.search.value.toLowerCase().split(/\s+/).filter(Boolean);
		const fits = (row) => {
			if (!words.length) return true;
			const stack = this.data.stack(row.stack).join(" ");
			const all = `${this.keys.map((key) => row[key] ?? "").join(" ")} ${stack}`.toLowerCase();
			return words.every((word) => all.includes(word));
		};
		return this.data
			.threads(this.number)
			.filter((row) => (this.chosen ? this.chosen.has(row.tid) : states.has(row.status)) && fits(row))
			.sort((a, b) => this.compare(a, b));
	}

	redraw() {
		const rows = this.rows();
		this.body.replaceChildren(...rows.slice(0, this.limit).map((row) => this.row(row)));
		for (const head of this.heads) {
			const on = head.dataset.key === this.sorted.key;
			if (on) head.setAttribute("aria-sort", this.sorted.down ? "descending" : "ascending");
			else head.removeAttribute("aria-sort");
		}
		const all = this.data.threads(this.number).reduce((sum, row) => sum + row.count, 0);
		const found = rows.reduce((sum, row) => sum + row.count, 0);
		byId("thread-count").textContent = `${found} of ${all} threads`;
		const more = byId("thread-more");
		more.hidden = rows.length <= this.limit;
		more.textContent = `Show more (${rows.length - this.limit} left)`;
	}

	row(row) {
		return make("tr", { class: row.status },
			...this.keys
				.filter((key) => !this.empty.has(key))
				.map((key) => this.td(row, key)));
	}

	cell(row, key) {
		if (key === "tid" && row.count > 1) return `${row.tid || ""} ×${row.count}`;
		return row[key] === null ? "" : String(row[key]);
	}

	// Long words in many cells take a browser minutes to lay out.
	td(row, key) {
		const text = this.cell(row, key);
		const kind = NUMBERS.has(key) ? "n" : key === "query" || key === "place" ? "code" : null;
		const most = this.printing ? MOST_ON_PAPER : MOST_OF_CELL;
		const cut = text.length > most;
		return make("td", { class: kind, title: cut ? text : null, "data-label": this.labels.get(key) }, cut ? `${text.slice(0, most)}…` : text);
	}

	// Paper has the first threads; the file has them all.
	print() {
		const limit = this.limit;
		this.limit = PRINTED;
		this.printing = true;
		this.redraw();
		const left = this.rows().length - PRINTED;
		if (left > 0) {
			const columns = this.keys.length - this.empty.size;
			this.body.append(make("tr", {}, make("td", { colspan: columns, "data-label": "" }, `${left} more are in the file.`)));
		}
		return () => {
			this.limit = limit;
			this.printing = false;
			this.redraw();
		};
	}
}
