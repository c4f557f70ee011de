// SPDX-License-Identifier: Apache-2.0
// The page of a fleet: its heat map has one stop of the Tab key, and a cell opens its incidents.

import { byId } from "./dom.js";
import { startNav } from "./nav.js";
import { onPrint } from "./print.js";
import { Theme } from "./theme.js";
import { Tip } from "./tip.js";

const MOVES = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

class Heat {
	constructor(table, tip, step) {
		this.tip = tip;
		this.step = step;
		this.rows = [...table.tBodies[0].rows].map((row) =>
			[...row.cells].slice(1, -1).map((cell) => cell.querySelector("a")),
		);
		for (const link of this.links()) {
			// The tip says it, also at the keyboard.
			link.dataset.said = link.title;
			link.removeAttribute("title");
			link.tabIndex = -1;
			link.addEventListener("focus", () => this.focused(link));
			link.addEventListener("blur", () => tip.hide());
			link.addEventListener("pointerenter", () => this.say(link, false));
			link.addEventListener("pointerleave", () => tip.hide());
			link.addEventListener("click", (event) => this.open(event, link));
		}
		const first = this.links()[0];
		if (first) first.tabIndex = 0;
		table.addEventListener("keydown", (event) => this.move(event));
	}

	links() {
		return this.rows.flat().filter(Boolean);
	}

	focused(link) {
		for (const other of this.links()) other.tabIndex = other === link ? 0 : -1;
		this.say(link, true);
	}

	say(link, stays) {
		const [title, ...rest] = link.dataset.said.split(": ");
		const at = () => {
			const { left, bottom } = link.getBoundingClientRect();
			return [left, bottom];
		};
		this.tip.show([title, rest.join(": ")], at, stays);
	}

	// To the next cell in this direction that has incidents.
	move(event) {
		const step = MOVES[event.key];
		const y = this.rows.findIndex((row) => row.includes(event.target));
		if (!step || y < 0) return;
		event.preventDefault();
		const [dx, dy] = step;
		let [column, row] = [this.rows[y].indexOf(event.target) + dx, y + dy];
		while (this.rows[row] && column >= 0 && column < this.rows[row].length) {
			if (this.rows[row][column]) return this.rows[row][column].focus();
			column += dx;
			row += dy;
		}
	}

	open(event, link) {
		const details = byId(link.hash.slice(1));
		if (!details || details.tagName !== "DETAILS") return event.preventDefault();
		const at = Number(link.dataset.at);
		for (const row of details.querySelectorAll("tr[data-at]")) {
			const time = Number(row.dataset.at);
			row.classList.toggle("chosen", time >= at && time < at + this.step);
		}
	}
}

// The target of a link is opened: a closed one shows nothing of what was asked for.
function openTarget(hash) {
	const found = byId(hash.slice(1));
	if (!found || found.tagName !== "DETAILS") return;
	for (let part = found; part; part = part.parentElement.closest("details")) part.open = true;
	found.querySelector("summary").focus({ preventScroll: true });
	found.scrollIntoView({ block: "start" });
}

export function startFleet(data) {
	const table = document.querySelector("table.heat");
	const tip = new Tip(byId("tip"));
	if (table) new Heat(table, tip, data.step);
	new Theme(() => {});
	onPrint([]);
	startNav();
	addEventListener("hashchange", () => openTarget(location.hash));
	openTarget(location.hash);
}
