// SPDX-License-Identifier: Apache-2.0
// The page's script: shows one capture at a time of the value in #data.

import "uplot/dist/uPlot.min.css";

import { Data } from "./data.js";
import { Flame } from "./flame.js";
import { startFleet } from "./fleet.js";
import { Graph } from "./graph.js";
import { startMemory } from "./memory.js";
import { startNav } from "./nav.js";
import { onPrint } from "./print.js";
import { Stacks } from "./stacks.js";
import { Theme } from "./theme.js";
import { Threads } from "./threads.js";
import { Tip } from "./tip.js";
import { Timeline } from "./timeline.js";
import { byId } from "./dom.js";
import { startCopy } from "./copy.js";
import { Link } from "./link.js";

// After those of the libraries, which it overrules.
import "./report.css";

document.documentElement.classList.add("js");
const data = new Data(JSON.parse(byId("data").textContent));
const parts = [];
let current = data.main;
const link = new Link();

function select(number) {
	if (number < 0 || number >= data.captures.length) return;
	moveArticle(number);
	current = number;
	const pick = byId("pick");
	if (pick) {
		pick.value = String(number);
		byId("previous").disabled = number === 0;
		byId("next").disabled = number === data.captures.length - 1;
		byId("picked").textContent = `${number + 1} of ${data.captures.length}`;
	}
	for (const item of document.querySelectorAll(".captures > li"))
		item.classList.toggle("selected", Number(item.dataset.capture) === number);
	for (const part of parts) part.show(number);
	link.set("capture", number === data.main ? "" : number + 1);
}

// Each capture's article is in the page once: where it is shown, or in the list of captures.
function moveArticle(number) {
	if (number === current) return;
	const home = (n) => document.querySelector(`#capture-${n} .held`);
	const shown = document.querySelector("#verdict > article");
	const wanted = home(number).querySelector("article");
	const note = home(current).querySelector(":scope > p");
	home(current).replaceChildren(shown);
	byId("verdict").replaceChildren(wanted);
	home(number).replaceChildren(note);
}

function startPicker() {
	const pick = byId("pick");
	if (!pick) return;
	pick.addEventListener("change", () => select(Number(pick.value)));
	byId("previous").addEventListener("click", () => select(current - 1));
	byId("next").addEventListener("click", () => select(current + 1));
	for (const button of document.querySelectorAll("[data-show]"))
		button.addEventListener("click", () => {
			select(Number(button.dataset.show));
			byId("verdict").scrollIntoView();
			byId("verdict").focus({ preventScroll: true });
		});
}

function startCaptures() {
	startPicker();
	const tip = new Tip(byId("tip"));
	const threads = new Threads(data, link);
	parts.push(new Graph(data, (tids) => threads.choose(tids), tip), new Flame(data, link, tip), new Stacks(data), threads);
	if (byId("plots")) parts.push(new Timeline(data, select));
	new Theme(() => parts.forEach((part) => part.recolour?.()));
	onPrint(parts);
	startCopy();
	startNav();
	const asked = link.number("capture");
	select(asked !== null && asked <= data.captures.length ? asked - 1 : current);
	threads.restore();
}

if (data.kind === "memory") startMemory(data, link);
else if (data.kind === "fleet") startFleet(data);
else startCaptures();
document.documentElement.dataset.ready = "yes";
