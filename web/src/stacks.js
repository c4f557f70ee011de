// SPDX-License-Identifier: Apache-2.0
// Threads by stack, with the frames as the capture has them.

import { byId, make, onTyping } from "./dom.js";

const SHOWN = 300;

export class Stacks {
	constructor(data) {
		this.data = data;
		this.list = byId("stack-list");
		this.search = byId("stack-search");
		onTyping(this.search, () => this.redraw());
		byId("stack-all").addEventListener("click", () => this.expand());
	}

	show(number) {
		this.number = number;
		this.redraw();
	}

	redraw() {
		const term = this.search.value.trim().toLowerCase();
		const groups = this.data
			.groups(this.number)
			.filter((group) => !term || this.data.stack(group.stack).some((name) => name.toLowerCase().includes(term)));
		this.list.replaceChildren(...groups.slice(0, SHOWN).map((group) => this.group(group)));
		const threads = groups.reduce((sum, group) => sum + group.count, 0);
		const more = groups.length > SHOWN ? `; the first ${SHOWN} are shown` : "";
		byId("stack-count").textContent = `${threads} threads in ${groups.length} ${groups.length === 1 ? "stack" : "stacks"}${more}`;
	}

	group(group) {
		const text = group.threads[0].place;
		const element = make("details", { class: `group s-${group.status}` },
			make("summary", {},
				make("span", { class: "count" }, String(group.count)), " ",
				make("span", { class: "state" }, group.status), " ",
				make("code", {}, text)));
		// Frames are created when shown: thousands of them cost time to lay out.
		element.addEventListener("toggle", () => this.fill(element, group), { once: true });
		element.group = group;
		return element;
	}

	fill(element, group) {
		if (element.childElementCount > 1) return;
		const thread = group.threads[0];
		const raw = this.data.raw(thread.raw);
		const names = this.data.stacks[group.stack];
		const colour = (i) => (raw.length === names.length ? this.data.subsystem(names[i]).colour : "grey");
		element.append(
			make("ol", { class: "frames", start: 0 },
				...raw.map((frame, i) =>
					make("li", {}, make("span", { class: `chip c-${colour(i)}` }), make("code", {}, frame.text), " ",
						make("span", { class: "where" }, frame.where)))),
		);
		const kernel = this.data.raw(thread.kernel);
		if (kernel.length)
			element.append(make("p", { class: "dim" }, "In the kernel: ", make("code", {}, kernel.map((f) => f.text).join(" < "))));
		const labels = new Map();
		for (const item of group.threads) if (item.label) labels.set(item.label, (labels.get(item.label) ?? 0) + item.count);
		const doubts = [...labels].map(([label, count]) => `${count} ${label}`).join(", ");
		const tids = group.threads.slice(0, 40).map((item) => item.tid).filter(Boolean).join(", ");
		const more = group.threads.length > 40 ? ", …" : "";
		element.append(make("p", { class: "dim" }, [doubts, tids && `threads ${tids}${more}`].filter(Boolean).join(". ")));
	}

	expand() {
		for (const element of this.list.querySelectorAll("details.group:not([open])")) {
			this.fill(element, element.group);
			element.open = true;
		}
	}
}
