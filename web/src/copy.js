// SPDX-License-Identifier: Apache-2.0
// Buttons that copy the text of the element that they name. A page from a file may have no clipboard
// of its own: then the text is selected, for the keyboard.

import { make } from "./dom.js";

const SHOWN_MS = 1500;

export function startCopy() {
	document.addEventListener("click", (event) => {
		const button = event.target.closest?.("button.copy");
		const source = button?.parentElement.querySelector("[data-copy]");
		if (source) copy(source.textContent, source, button);
	});
}

// Copies a text that no element of the page has; label: what says that it is done.
export async function copyText(text, label) {
	const source = make("pre", { class: "away" }, text);
	document.body.append(source);
	await copy(text, source, label);
	source.remove();
}

async function copy(text, source, label) {
	let done = false;
	try {
		await navigator.clipboard.writeText(text);
		done = true;
	} catch {
		const range = document.createRange();
		range.selectNodeContents(source);
		getSelection().removeAllRanges();
		getSelection().addRange(range);
		try {
			done = document.execCommand("copy");
		} catch {
			done = false;
		}
	}
	const before = label.textContent;
	label.textContent = done ? "Copied" : "Selected";
	setTimeout(() => (label.textContent = before), SHOWN_MS);
}
