// SPDX-License-Identifier: Apache-2.0
// Reads stallscope.report/1 (docs/report.md): resolves the numbers by which captures refer to
// texts, functions and stacks.

const ORDER = { waiting: 0, running: 1, idle: 2 };

export class Data {
	constructor(value) {
		if (value.schema !== "stallscope.report/1") throw new Error("not stallscope.report/1");
		Object.assign(this, value);
		this.threadsOf = new Map();
	}

	name(number) {
		return this.texts[this.names[number][0]];
	}

	subsystem(number) {
		const [name, title, colour] = this.subsystems[this.names[number][1]];
		return { name, title, colour };
	}

	// Names, innermost first.
	stack(number) {
		return this.stacks[number].map((name) => this.name(name));
	}

	// {text, where} innermost first.
	raw(number) {
		return this.raws[number].map((frame) => {
			const [text, where] = this.frames[frame];
			return { text: this.texts[text], where: this.texts[where] };
		});
	}

	threads(capture) {
		let rows = this.threadsOf.get(capture);
		if (!rows) {
			rows = this.captures[capture].who.map((_, index) => this.thread(capture, index));
			if (this.threadsOf.size > 4) this.threadsOf.clear();
			this.threadsOf.set(capture, rows);
		}
		return rows;
	}

	thread(number, index) {
		const capture = this.captures[number];
		const [tid, name, connection, user, database] = this.who[capture.who[index]];
		const what = this.what[capture.what[index]];
		const [status, stack, raw, kernel, label, unwind, lock, call, doing, query, place] = what;
		const text = (at) => this.texts[at];
		return {
			tid,
			connection,
			status: text(status),
			lock: text(lock),
			place: text(place),
			query: text(query),
			user: [text(user), text(database)].filter(Boolean).join(", "),
			doing: text(doing),
			waited: capture.waited ? capture.waited[index] : null,
			name: text(name),
			label: text(label) + (text(unwind) ? `, ${text(unwind)}` : ""),
			call: text(call),
			stack,
			raw,
			kernel,
			count: capture.counts ? capture.counts[index] : 1,
		};
	}

	// Threads of one state with one stack, as `stallscope analyze` groups them.
	groups(capture) {
		const found = new Map();
		for (const thread of this.threads(capture)) {
			const key = `${thread.status} ${thread.stack}`;
			let group = found.get(key);
			if (!group) {
				group = { count: 0, status: thread.status, stack: thread.stack, threads: [] };
				found.set(key, group);
			}
			group.count += thread.count;
			group.threads.push(thread);
		}
		return [...found.values()].sort(
			(a, b) => (a.status === "idle") - (b.status === "idle") || b.count - a.count,
		);
	}
}

export const stateOrder = (status) => ORDER[status] ?? 3;
