// SPDX-License-Identifier: Apache-2.0
// Light, dark, or as the system has it. Nothing is kept: a file has no place to.

import { byId } from "./dom.js";

const STEPS = ["system", "light", "dark"];
const NAMES = { system: "Auto", light: "Light", dark: "Dark" };

export class Theme {
	constructor(changed) {
		this.button = byId("theme");
		this.changed = changed;
		this.button.addEventListener("click", () => this.set(STEPS[(STEPS.indexOf(this.now) + 1) % STEPS.length]));
		matchMedia("(prefers-color-scheme: dark)").addEventListener("change", changed);
		this.now = "system";
	}

	set(theme) {
		this.now = theme;
		if (theme === "system") delete document.documentElement.dataset.theme;
		else document.documentElement.dataset.theme = theme;
		this.button.setAttribute("aria-label", `${NAMES[theme]}: colours${theme === "system" ? " of the system" : ""}`);
		this.button.textContent = NAMES[theme];
		this.changed();
	}
}
