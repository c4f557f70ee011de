// SPDX-License-Identifier: Apache-2.0
// The page of memory: a flame graph whose widths are bytes.

import { byId } from "./dom.js";
import { Flame } from "./flame.js";
import { startNav } from "./nav.js";
import { onPrint } from "./print.js";
import { Theme } from "./theme.js";
import { Tip } from "./tip.js";

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

export function bytes(count) {
	let step = 0;
	let value = count;
	while (value >= 1024 && step < UNITS.length - 1) {
		value /= 1024;
		step += 1;
	}
	const digits = value >= 100 || !step ? 0 : value >= 10 ? 1 : 2;
	return `${value.toFixed(digits)} ${UNITS[step]}`;
}

class MemoryFlame extends Flame {
	rows() {
		const found = [];
		const { rows } = this.data.captures[this.capture];
		for (let i = 0; i < rows.length; i += 2) found.push({ stack: rows[i], value: rows[i + 1], status: "" });
		return found;
	}

	all() {
		return "all stacks";
	}

	empty() {
		return "Nothing grew.";
	}

	count(value) {
		return bytes(value);
	}
}

export function startMemory(data, link) {
	const flame = new MemoryFlame(data, link, new Tip(byId("tip")));
	new Theme(() => flame.draw());
	onPrint([flame]);
	startNav();
	flame.show(0);
}
