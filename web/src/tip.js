// SPDX-License-Identifier: Apache-2.0
// A tooltip at the pointer, or at what the keyboard has selected. Escape hides it. What it says is
// also in the page, where a screen reader finds it.

const APART = 14;

export class Tip {
	constructor(element) {
		this.element = element;
		addEventListener("keydown", (event) => event.key === "Escape" && this.hide());
		addEventListener("scroll", () => this.follow(), { passive: true });
	}

	// lines: a title, and a text. at: returns where, and null where that is gone.
	show(lines, at, stays = false) {
		const [title, text] = this.element.children;
		[title.textContent, text.textContent] = lines;
		this.at = at;
		this.stays = stays;
		this.scrolled = scrollY; // an event of before comes after
		this.place();
	}

	// What the keyboard has selected moves with the page; under the pointer is something else then.
	follow() {
		if (this.element.hidden || scrollY === this.scrolled) return;
		if (this.stays) this.place();
		else this.hide();
	}

	place() {
		const where = this.at();
		this.element.hidden = !where;
		if (!where) return;
		const [x, y] = where;
		const { offsetWidth: width, offsetHeight: height } = this.element;
		const left = Math.min(x + APART, innerWidth - width - 4);
		const below = y + APART + height < innerHeight;
		this.element.style.left = `${Math.max(4, left)}px`;
		this.element.style.top = `${below ? y + APART : Math.max(4, y - APART - height)}px`;
	}

	hide() {
		this.element.hidden = true;
	}
}
