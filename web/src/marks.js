// SPDX-License-Identifier: Apache-2.0
// The captures over time, as numbers that can be selected. Those that would cover each other stand
// side by side, in more rows where one is not enough; a line leads from each to its time.

import { byId, clock, draw, make } from "./dom.js";

const ROW = 28;
const LINES = 12; // below the rows: from the numbers to their times
const PAPER = 660; // pixels: so wide is a page

export class Marks {
	constructor(data, select) {
		this.data = data;
		this.select = select;
		this.box = byId("marks");
		this.lines = draw("svg", { class: "leads", "aria-hidden": "true", preserveAspectRatio: "none" });
		this.buttons = data.captures.map((capture, number) => this.button(capture, number));
		this.box.append(this.lines, ...this.buttons);
		this.box.addEventListener("keydown", (event) => this.key(event));
	}

	button(capture, number) {
		const what = capture.signature ?? (capture.stall ? "unknown stall" : "no stall");
		const when = capture.time === null ? "" : ` at ${clock(capture.time)}`;
		const button = make("button", {
			type: "button",
			class: `mark ${capture.stall ? "bad" : "good"}`,
			"data-mark": number,
			tabindex: -1,
			title: `Capture ${number + 1}${when}: ${what}, ${capture.states[0]} waiting`,
			"aria-label": `${number + 1}: capture${when}, ${what}`,
		}, String(number + 1));
		button.hidden = capture.time === null;
		button.addEventListener("click", () => this.select(number));
		return button;
	}

	key(event) {
		const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
		if (!step) return;
		const next = this.buttons[this.number + step];
		if (next && !next.hidden) {
			this.select(this.number + step);
			next.focus();
		}
		event.preventDefault();
	}

	// left, width: of the charts, in a box that is `full` wide; low, high: their first and last second.
	place({ left, width, full, low, high }, forPaper = false) {
		const shown = [];
		this.buttons.forEach((button, number) => {
			const { time } = this.data.captures[number];
			const x = time === null ? NaN : left + (width * (time / 1000 - low)) / (high - low);
			button.hidden = !(x >= left - 1 && x <= left + width + 1);
			if (!button.hidden) shown.push({ button, x });
		});
		shown.sort((a, b) => a.x - b.x);
		const narrower = forPaper ? Math.max(1, full / PAPER) : 1;
		const room = (this.buttons.length > 99 ? 38 : 30) * narrower;
		const rows = Math.max(1, Math.ceil((shown.length * room) / full));
		for (let row = 0; row < rows; row++) spread(shown.filter((_, i) => i % rows === row), room, full);
		const height = rows * ROW + LINES;
		this.box.style.height = `${height}px`;
		this.lines.setAttribute("viewBox", `0 0 ${full} ${height}`);
		this.lines.replaceChildren(...shown.map((mark, i) => {
			const top = (i % rows) * ROW;
			mark.button.style.left = `${((100 * mark.at) / full).toFixed(3)}%`; // paper is narrower
			mark.button.style.top = `${top}px`;
			return draw("path", { d: `M${mark.at.toFixed(1)} ${top + ROW - 4}L${mark.x.toFixed(1)} ${height}` });
		}));
	}

	show(number) {
		this.number = number;
		this.buttons.forEach((button, i) => {
			button.classList.toggle("selected", i === number);
			button.tabIndex = i === number ? 0 : -1;
			if (i === number) button.setAttribute("aria-current", "true");
			else button.removeAttribute("aria-current");
		});
	}
}

// Sets `at`, near to `x`, so that marks in the order of time are `room` apart.
function spread(marks, room, full) {
	let least = room / 2;
	for (const mark of marks) {
		mark.at = Math.max(mark.x, least);
		least = mark.at + room;
	}
	let most = full - room / 2;
	for (const mark of [...marks].reverse()) {
		mark.at = Math.min(mark.at, most);
		most = mark.at - room;
	}
}
