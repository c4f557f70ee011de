// SPDX-License-Identifier: Apache-2.0
// Buttons that copy the text of the element that they name. A page from a file may have no clipboard
// of its own: then the text is selected, for the keyboard.

const SHOWN_MS = 1500;

export function startCopy() {
	document.addEventListener("click", (event) => {
		const button = event.target.closest?.("button.copy");
		if (button) copy(button);
	});
}

async function copy(button) {
	const source = button.parentElement.querySelector("[data-copy]");
	if (!source) return;
	let done = false;
	try {
		await navigator.clipboard.writeText(source.textContent);
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
	const before = button.textContent;
	button.textContent = done ? "Copied" : "Selected";
	setTimeout(() => (button.textContent = before), SHOWN_MS);
}
