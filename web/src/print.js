// SPDX-License-Identifier: Apache-2.0
// On paper nothing can be opened, so it is open beforehand.

import { byId } from "./dom.js";

const OPEN = ".about-capture";

export function onPrint(parts) {
	let undo = [];
	addEventListener("beforeprint", () => {
		const root = document.documentElement;
		const theme = root.dataset.theme;
		root.dataset.theme = "light";
		undo.push(() => {
			if (theme === undefined) delete root.dataset.theme;
			else root.dataset.theme = theme;
			parts.forEach((part) => part.recolour?.());
		});
		parts.forEach((part) => part.recolour?.());
		for (const element of document.querySelectorAll(OPEN))
			if (!element.open) {
				element.open = true;
				undo.push(() => (element.open = false));
			}
		for (const part of parts) if (part.print) undo.push(part.print());
	});
	addEventListener("afterprint", () => {
		undo.forEach((back) => back());
		undo = [];
	});
	byId("print").addEventListener("click", () => print());
}
