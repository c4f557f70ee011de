# SPDX-License-Identifier: Apache-2.0
"""The sentence of a trigger that fired: each figure with its name, its unit, and what it passed.

Threads_running is 40, over 20.5 (5 x its average of the last 60 s, which is 4.1)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from stallscope.base.text import one_line
from stallscope.collectors.triggers.expression import (
    Binary,
    Call,
    Name,
    Negation,
    Node,
    Number,
    States,
)

__all__ = ["beyond", "figures", "number", "whole"]

Values = Callable[[Node], float | None]
"""Gives the latest value of a part of an expression."""

_MOST_NAMES = 3
"""Of a sum: the names that are written out."""
_SHORT = 40
"""Characters of a name that is repeated with its value."""
_MOST_CHARACTERS = 500
_NOUNS = {
    "processlist.running": ("running thread", "running threads"),
    "processlist.sleeping": ("sleeping connection", "sleeping connections"),
    "backends.active": ("active connection", "active connections"),
    "backends.waiting": ("waiting connection", "waiting connections"),
    "backends.idle_in_transaction": (
        "connection in an idle transaction",
        "connections in idle transactions",
    ),
}
_STATES = ("thread", "threads")
_UNITS = (
    ("ms", " ms"),
    ("us", " µs"),
    ("seconds", " s"),
    ("bytes", " bytes"),
    ("avg10", " %"),
    ("avg60", " %"),
    ("avg300", " %"),
)
"""By the last word of a sample's name; the name of a status variable has no unit."""
_BEYOND = {">": "over", ">=": "at least", "<": "below", "<=": "at most", "==": "equal to"}
_OPPOSITE = {">": "<=", ">=": "<", "<": ">=", "<=": ">", "==": "!=", "!=": "=="}
_MIRRORED = {">": "<", ">=": "<=", "<": ">", "<=": ">="}
_SHARES = {2.0: "half of", 3.0: "a third of", 4.0: "a quarter of"}
_WINDOWS = {"avg": "average", "max": "largest", "min": "smallest"}
_CHOICES = {"greatest": "the greater of", "least": "the smaller of", "coalesce": "the known one of"}


def whole(about: str, found: list[str], cycles: int) -> str:
    """Return the sentence: what the trigger detects, the figures, and how often they were seen."""
    head = f"{one_line(about, 160)}: " if about else ""
    times = "1 sample" if cycles == 1 else f"{cycles} samples in a row"
    return one_line(f"{head}{'; '.join(found)}; in {times}", _MOST_CHARACTERS)


def figures(tree: Node, values: Values) -> list[str]:
    """Return the figures that made a condition true, in the order of its text."""
    return list(_figures(tree, values, wanted=True))


def beyond(left: Node, sign: str, right: Node, values: Values) -> str:
    """Describe a value by the one that it is compared with."""
    left, right = _chosen(left, values), _chosen(right, values)
    if isinstance(left, Number) and not isinstance(right, Number):
        left, right, sign = right, left, _MIRRORED.get(sign, sign)
    now, limit = _apart(values(left), values(right))
    unit = _unit(left)
    word = _BEYOND.get(sign, "not")
    return f"{_counted(left, now, unit, values)}, {word} {limit}{unit}{_base(right, left, values)}"


def _figures(node: Node, values: Values, *, wanted: bool) -> Iterator[str]:
    match node:
        case Negation("not", operand):
            yield from _figures(operand, values, wanted=not wanted)
        case Binary("and" | "or", left, right):
            for side in (left, right):
                value = values(side)
                if value is not None and bool(value) == wanted:
                    yield from _figures(side, values, wanted=wanted)
        case Binary(sign, left, right) if sign in _OPPOSITE:
            yield beyond(left, sign if wanted else _OPPOSITE[sign], right, values)
        case _:
            yield _counted(node, number(values(node)), _unit(node), values)


def _counted(node: Node, now: str, unit: str, values: Values) -> str:
    """Return a part with its value, and the values that it is made of."""
    plus, minus = _terms(node)
    if minus or not all(isinstance(term, States) for term in plus):
        noun = _noun(plus[0] if len(plus) == 1 else None)
        if noun and all(isinstance(term, States) for term in minus):
            return f"{now} {noun[now != '1']}{_outside(minus)}"
        parts = _known_parts(node, values)
        made_of = f" ({', '.join(parts)})" if parts else ""
        return f"{_phrase(node, values)} is {now}{unit}{made_of}"
    held = [term for term in plus if values(term)] or plus[:1]
    names = [_quoted(term) for term in held]
    if len(held) > 1:
        names = [f"{one} ({number(values(term))})" for one, term in zip(names, held, strict=True)]
    return f"{now} {_STATES[now != '1']} in state {_joined(names, 'or')}"


def _base(node: Node, subject: Node, values: Values) -> str:
    """Return what a threshold is made of, empty where it is a plain number."""
    found = list(dict.fromkeys(_atoms(node, values)))
    if not found:
        return ""
    text = _phrase(node, values, subject)
    if found == [node]:
        return f" ({text})"
    if len(found) == 1:
        verb = "are" if _noun(found[0]) else "is"
        return f" ({text}, which {verb} {number(values(found[0]))})"
    parts = ", ".join(f"{_phrase(a, values, subject)} {number(values(a))}" for a in found)
    return f" ({text}: {parts})"


def _known_parts(node: Node, values: Values) -> list[str]:
    """Return the parts of a value with theirs; what is 0 is left out."""
    found = [atom for atom in dict.fromkeys(_atoms(node, values)) if atom != node]
    names = {_phrase(atom, values): values(atom) for atom in found if values(atom)}
    parts = [f"{name} {number(value)}" for name, value in names.items() if len(name) <= _SHORT]
    return parts[:_MOST_NAMES]


def _atoms(node: Node, values: Values) -> Iterator[Node]:
    """Yield what has a value of its own: names, and functions of earlier samples."""
    match _chosen(node, values):
        case Number():
            return
        case Negation(_, operand):
            yield from _atoms(operand, values)
        case Binary(_, left, right):
            yield from _atoms(left, values)
            yield from _atoms(right, values)
        case atom:
            yield atom


def _chosen(node: Node, values: Values) -> Node:
    """Return the argument that ``greatest`` and similar took; any other part as it is."""
    while isinstance(node, Call) and node.function in _CHOICES:
        value = values(node)
        taken = [one for one in node.arguments if value is not None and values(one) == value]
        if not taken:
            return node
        node = taken[0]
    return node


def _phrase(node: Node, values: Values, subject: Node | None = None) -> str:
    """Return a part in words. ``subject``: what the sentence is about, "it" from there on."""
    node = _chosen(node, values)
    match node:
        case Number(value):
            return number(value)
        case Name(name):
            return one_line(_NOUNS[name][1] if name in _NOUNS else name, 80)
        case States():
            return f"threads in state {_quoted(node)}"
        case Negation(sign, operand):
            return f"{'-' if sign == '-' else 'not '}{_factor(operand, values, subject)}"
        case Binary("+" | "-"):
            return _sum(node, values, subject)
        case Binary("/", left, Number(value)) if value in _SHARES:
            return f"{_SHARES[value]} {_factor(left, values, subject)}"
        case Binary(sign, left, right):
            written = "x" if sign == "*" else sign
            return f"{_factor(left, values, subject)} {written} {_factor(right, values, subject)}"
    return _call(node, values, subject)


def _call(node: Call, values: Values, subject: Node | None) -> str:
    first = node.arguments[0]
    own = first == subject
    inner = _factor(first, values, subject)
    last = f"of the last {node.seconds:g} s"
    match node.function:
        case "rate":
            return f"{inner} per second"
        case "delta":
            return f"the growth of {inner} since the last sample"
        case "baseline":
            return "its usual value" if own else f"the usual {inner}"
        case "avg" if own:
            return f"its average {last}"
        case "max" | "min" if own:
            return f"its {_WINDOWS[node.function]} value {last}"
        case "avg" | "max" | "min":
            return f"the {_WINDOWS[node.function]} {inner} {last}"
    arguments = [_phrase(one, values, subject) for one in node.arguments]
    return f"{_CHOICES[node.function]} {_joined(arguments, 'and')}"


def _sum(node: Node, values: Values, subject: Node | None) -> str:
    plus, minus = _terms(node)
    if len(plus) == 1 and _noun(plus[0]) and all(isinstance(term, States) for term in minus):
        return f"{_phrase(plus[0], values, subject)}{_outside(minus)}"
    if len(plus) > _MOST_NAMES and not minus:
        return f"{_phrase(plus[0], values, subject)} and {len(plus) - 1} more"
    text = " + ".join(_phrase(term, values, subject) for term in plus)
    return text + "".join(f" - {_factor(term, values, subject)}" for term in minus)


def _factor(node: Node, values: Values, subject: Node | None) -> str:
    text = _phrase(node, values, subject)
    return f"({text})" if isinstance(_chosen(node, values), Binary) else text


def _terms(node: Node) -> tuple[list[Node], list[Node]]:
    """Return what is added in a sum, and what is subtracted."""
    match node:
        case Binary("+", left, right):
            a, b = _terms(left), _terms(right)
            return a[0] + b[0], a[1] + b[1]
        case Binary("-", left, right):
            a, b = _terms(left), _terms(right)
            return a[0] + b[1], a[1] + b[0]
    return [node], []


def _outside(minus: list[Node]) -> str:
    return f" not in state {_joined([_quoted(term) for term in minus], 'or')}" if minus else ""


def _quoted(node: Node) -> str:
    assert isinstance(node, States)
    return f'"{one_line(node.pattern, 80)}"'


def _joined(names: list[str], word: str) -> str:
    if len(names) > _MOST_NAMES:
        return f"{', '.join(names[: _MOST_NAMES - 1])} {word} {len(names) - _MOST_NAMES + 1} more"
    return f" {word} ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def _noun(node: Node | None) -> tuple[str, str] | None:
    """Return one and several of what a value counts; None: it is known by its name only."""
    if isinstance(node, States):
        return _STATES
    return _NOUNS.get(node.name) if isinstance(node, Name) else None


def _unit(node: Node) -> str:
    match node:
        case Name(name) if "." in name:
            last = name.rpartition(".")[2].rpartition("_")[2]
            return dict(_UNITS).get(last, "")
        case Call(function, arguments) if function in ("avg", "max", "min", "baseline", "delta"):
            return _unit(arguments[0])
    return ""


def _apart(one: float | None, other: float | None) -> tuple[str, str]:
    """Return two values with as many digits as it takes to see that they differ."""
    texts = number(one), number(other)
    if texts[0] == texts[1] and one != other and one is not None and other is not None:
        return f"{one:.7g}", f"{other:.7g}"
    return texts


def number(value: float | None) -> str:
    """Return a value for people: a whole number, or three digits."""
    if value is None:
        return "unknown"
    whole_number = value == int(value) or abs(value) >= 1000
    return f"{value:,.0f}" if whole_number else f"{value:.3g}"
