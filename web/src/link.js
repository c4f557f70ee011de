// SPDX-License-Identifier: Apache-2.0
// What is selected, in the address: each reader of it sees the same. `#capture=3&threads=12,13`.

export class Link {
	constructor() {
		this.values = new URLSearchParams(location.hash.includes("=") ? location.hash.slice(1) : "");
	}

	number(name) {
		const text = this.values.get(name);
		return text !== null && /^\d{1,9}$/.test(text) ? Number(text) : null;
	}

	text(name) {
		return (this.values.get(name) ?? "").slice(0, 2000);
	}

	// An empty value takes the name out.
	set(name, value) {
		if (value === "" || value === null) this.values.delete(name);
		else this.values.set(name, String(value));
		const text = this.values.toString();
		history.replaceState(null, "", text ? `#${text}` : location.pathname + location.search);
	}
}
