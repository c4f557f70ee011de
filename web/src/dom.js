// SPDX-License-Identifier: Apache-2.0
// Elements are made from names and texts alone; nothing here reads markup.

export const byId = (id) => document.getElementById(id);

const SVG = "http://www.w3.org/2000/svg";

function fill(element, attributes, children) {
	for (const [name, value] of Object.entries(attributes))
		if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value);
	element.append(...children);
	return element;
}

export const make = (name, attributes = {}, ...children) =>
	fill(document.createElement(name), attributes, children);

export const draw = (name, attributes = {}, ...children) =>
	fill(document.createElementNS(SVG, name), attributes, children);

// Calls back once typing has paused.
export function onTyping(input, callback) {
	let timer = 0;
	input.addEventListener("input", () => {
		clearTimeout(timer);
		timer = setTimeout(callback, 120);
	});
}

export const threadsText = (count) => (count === 1 ? "1 thread" : `${count} threads`);

export function clock(ms) {
	return new Date(ms).toISOString().slice(11, 23);
}
