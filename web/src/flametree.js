// SPDX-License-Identifier: Apache-2.0
// Trees of boxes for the flame graph. The width is cut into columns, one for each moment, or one in
// all; in a column each stack is as wide as its share of the threads. What is the same function,
// called in the same way, in columns beside each other is one box: with a tooth in each column,
// and one for those that touch.

const TOUCH = 1e-6;
export const MOST_COLUMNS = 400;
// Frames of all columns. Hostile captures have many stacks; what is left out is said.
export const MOST_FRAMES = 400_000;
const BREAK = 0.4; // between two captures, in columns

class Node {
	constructor(name, text, subsystem) {
		Object.assign(this, { name, text, subsystem, value: 0, before: 0, after: 0 });
		this.at = new Map(); // column -> threads, in the order of the columns
		this.below = new Map();
	}

	add(row) {
		this.value += row.value;
		this.before += row.before ?? 0;
		this.after += row.after ?? 0;
		this.at.set(row.column, (this.at.get(row.column) ?? 0) + row.value);
	}

	child(key, text, subsystem) {
		let node = this.below.get(key);
		if (!node) this.below.set(key, (node = new Node(key, text, subsystem)));
		return node;
	}

	ordered() {
		return [...this.below.values()].sort((a, b) => b.value - a.value);
	}
}

// rows: {stack, value, column, status}, and of a difference before and after.
function grow(data, rows, inverted, title) {
	const root = new Node(-1, title, null);
	for (const row of rows) {
		root.add(row);
		const names = data.stacks[row.stack];
		let node = root;
		for (let i = 0; i < names.length; i++) {
			const name = names[inverted ? i : names.length - 1 - i];
			node = node.child(name, data.name(name), data.subsystem(name));
			node.add(row);
		}
		if (!names.length) root.child(`no ${row.status}`, `no frame could be read (${row.status})`, null).add(row);
	}
	return root;
}

function box(node, parent, x0, column) {
	const made = { node, parent, x0, x1: x0, depth: parent ? parent.depth + 1 : 0, teeth: [], children: [], first: column, last: column, least: Infinity, most: 0, columns: 0 };
	parent?.children.push(made);
	return made;
}

function place(node, starts, above, columns) {
	const own = new Map();
	const next = new Map();
	let last = null;
	for (const [column, value] of node.at) {
		const x0 = starts.get(column);
		const parent = above.get(column);
		const beside = last?.last === column - 1 && columns[last.last].capture === columns[column].capture;
		if (!beside || last.parent !== parent) last = box(node, parent, x0, column);
		grown(last, x0, x0 + width(columns[column], value));
		last.last = column;
		last.least = Math.min(last.least, value);
		last.most = Math.max(last.most, value);
		last.columns += 1;
		own.set(column, last);
		next.set(column, x0);
	}
	below(node, next, own, columns);
}

function grown(one, x0, x1) {
	const tooth = one.teeth[one.teeth.length - 1];
	if (tooth && x0 - tooth[1] < TOUCH) tooth[1] = x1;
	else one.teeth.push([x0, x1]);
	one.x1 = x1;
}

function below(node, next, own, columns) {
	for (const child of node.ordered()) {
		place(child, next, own, columns);
		for (const [column, value] of child.at) next.set(column, next.get(column) + width(columns[column], value));
	}
}

const width = (column, value) => (column.width * value) / column.total;

// Returns the box of all threads. columns: {x, width, total}, in their order.
export function boxes(data, rows, columns, inverted, title) {
	for (const column of columns) column.total = 0;
	for (const row of rows) columns[row.column].total += row.value;
	const node = grow(data, rows, inverted, title);
	const root = box(node, null, 0, 0);
	const end = columns[columns.length - 1];
	grown(root, 0, end.x + end.width);
	root.last = columns.length - 1;
	const totals = [...node.at.values()];
	Object.assign(root, { least: Math.min(...totals), most: Math.max(...totals), columns: totals.length });
	const own = new Map([...node.at.keys()].map((column) => [column, root]));
	below(node, new Map([...node.at.keys()].map((column) => [column, columns[column].x])), own, columns);
	for (const each of walk(root)) each.children.sort((a, b) => a.x0 - b.x0);
	return root;
}

export function* walk(root) {
	const left = [root];
	while (left.length) {
		const one = left.pop();
		yield one;
		for (let i = one.children.length - 1; i >= 0; i--) left.push(one.children[i]);
	}
}

// A box as numbers: which child of the root, which child of that, ...
export function path(one) {
	const steps = [];
	for (let at = one; at.parent; at = at.parent) steps.unshift(at.parent.children.indexOf(at));
	return steps.join(".");
}

export function atPath(root, text) {
	let at = root;
	for (const step of text.split(".")) at = at?.children[Number(step)];
	return at ?? null;
}

// Captures with moments, in the order of time where all have one.
function inOrder(data) {
	const order = [...data.captures.keys()].filter((number) => data.captures[number].moments.length);
	const timed = order.every((number) => data.captures[number].moments[0].time !== null);
	if (timed) order.sort((a, b) => data.captures[a].moments[0].time - data.captures[b].moments[0].time);
	return { order, timed };
}

// Of too many captures those around the shown one.
function near(data, order, shown, rowsOf) {
	const middle = Math.max(0, order.indexOf(shown));
	const byDistance = [...order.keys()].sort((a, b) => Math.abs(a - middle) - Math.abs(b - middle));
	const kept = new Map();
	let columns = 0;
	let frames = 0;
	for (const place of byDistance) {
		const { moments: all } = data.captures[order[place]];
		const rows = all.map(rowsOf);
		columns += all.length;
		for (const row of rows.flat()) frames += data.stacks[row.stack].length + 1;
		if (kept.size && (columns > MOST_COLUMNS || frames > MOST_FRAMES)) break;
		kept.set(order[place], rows);
	}
	return kept;
}

// Columns and rows of the moments of all captures; left: captures that are left out.
export function moments(data, shown, rowsOf) {
	const { order, timed } = inOrder(data);
	const kept = near(data, order, shown, rowsOf);
	const columns = [];
	const rows = [];
	let x = 0;
	for (const number of order.filter((one) => kept.has(one))) {
		if (columns.length) x += BREAK;
		data.captures[number].moments.forEach((moment, index) => {
			for (const row of kept.get(number)[index]) rows.push({ ...row, column: columns.length });
			const time = timed ? moment.time : null;
			columns.push({ x, width: 1, total: 0, capture: number, index, time, leftOut: moment.left_out });
			x += 1;
		});
	}
	const first = order.length ? data.captures[order[0]].moments[0].time : null;
	return { columns, rows, left: order.length - kept.size, start: timed ? first : null };
}
