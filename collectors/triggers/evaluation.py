# SPDX-License-Identifier: Apache-2.0
"""Values of expressions over time. An unknown value is None, and never fires a trigger."""

from __future__ import annotations

import math
import operator
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from stallscope.collectors.triggers.baseline import NS, Baseline
from stallscope.collectors.triggers.expression import (
    Binary,
    Call,
    Name,
    Named,
    Negation,
    Node,
    Number,
    States,
    names,
)
from stallscope.collectors.triggers.readings import Readings

__all__ = ["Evaluation", "Moment"]

Value = float | None

MAX_SLOTS = 600
"""Of a window: an hour at 20 samples a second must not take 72,000 numbers."""


@dataclass(frozen=True, slots=True)
class Moment:
    """One moment at which an expression is evaluated."""

    readings: Readings
    clock_ns: int
    stale_ns: int
    """Values older than this are not known."""
    incident: bool = False
    """An incident goes on: baselines do not change."""


class Evaluation:
    """An expression compiled to be evaluated many times; it remembers earlier values for
    ``rate(x)``."""

    def __init__(self, tree: Node) -> None:
        self.tree = tree
        self.names = names(tree)
        self._parts = _Parts()
        self._value = _compile(tree, self._parts)

    @property
    def baselines(self) -> Sequence[Baseline]:
        """Return its baselines, in the order of the text."""
        return self._parts.baselines

    def value(self, moment: Moment) -> Value:
        """Return the value now."""
        return self._value(moment)

    def latest(self, part: Node) -> Value:
        """Return the latest value of a part of ``tree``."""
        return part.value if isinstance(part, Number) else self._parts.latest.get(id(part))


_Compiled = Callable[[Moment], Value]


def _divide(a: float, b: float) -> Value:
    return a / b if b else None


_ARITHMETIC: dict[str, Callable[[float, float], Value]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": _divide,
}
_COMPARISONS: dict[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}


def _compile(node: Node, parts: _Parts) -> _Compiled:
    if isinstance(node, Number):
        return lambda moment: node.value
    evaluate, latest, key = _compiled(node, parts), parts.latest, id(node)

    def value(moment: Moment) -> Value:
        found = latest[key] = evaluate(moment)
        return found

    return value


def _compiled(node: Name | States | Negation | Binary | Call, parts: _Parts) -> _Compiled:
    match node:
        case Name() | States():
            return _read(node)
        case Negation(sign, operand):
            return _negation(sign, _compile(operand, parts))
        case Binary(sign, left, right):
            return _binary(sign, _compile(left, parts), _compile(right, parts))
        case Call():
            return _call(node, [_compile(argument, parts) for argument in node.arguments], parts)


def _binary(sign: str, left: _Compiled, right: _Compiled) -> _Compiled:
    if sign in ("and", "or"):
        return _logic(left, right, decides=sign == "or")
    if sign in _ARITHMETIC:
        return _arithmetic(_ARITHMETIC[sign], left, right)
    compare = _COMPARISONS[sign]
    return _arithmetic(lambda a, b: float(compare(a, b)), left, right)


class _Parts:
    """The parts of a compiled expression that others read."""

    def __init__(self) -> None:
        self.latest: dict[int, Value] = {}
        """By the identity of a node: a sentence has the values that a decision was made of."""
        self.baselines: list[Baseline] = []


def _read(name: Named) -> _Compiled:
    def value(moment: Moment) -> Value:
        reading = moment.readings.reading(name, moment.clock_ns, moment.stale_ns)
        return None if reading is None else _finite(reading.value)

    return value


def _negation(sign: str, operand: _Compiled) -> _Compiled:
    def value(moment: Moment) -> Value:
        inner = operand(moment)
        if inner is None:
            return None
        return -inner if sign == "-" else float(not inner)

    return value


def _logic(left: _Compiled, right: _Compiled, *, decides: bool) -> _Compiled:
    """One side that decides is enough when the other one is unknown."""

    def value(moment: Moment) -> Value:
        # Both are always evaluated: functions of earlier samples must see every sample.
        sides = (left(moment), right(moment))
        if any(side is not None and bool(side) == decides for side in sides):
            return float(decides)
        return None if None in sides else float(not decides)

    return value


def _arithmetic(apply: Callable[[float, float], Value], a: _Compiled, b: _Compiled) -> _Compiled:
    def value(moment: Moment) -> Value:
        left, right = a(moment), b(moment)
        if left is None or right is None:
            return None
        try:
            return _finite(apply(left, right))
        except OverflowError:
            return None

    return value


def _finite(value: Value) -> Value:
    return value if value is not None and math.isfinite(value) else None


def _call(node: Call, arguments: list[_Compiled], parts: _Parts) -> _Compiled:
    first = arguments[0]
    match node.function:
        case "greatest":
            return _arithmetic(max, *arguments)
        case "least":
            return _arithmetic(min, *arguments)
        case "coalesce":
            return _known(first, arguments[1])
        case "baseline":
            parts.baselines.append(Baseline())
            return _baseline(first, parts.baselines[-1])
        case "rate" | "delta":
            grows = _is_counter(node.arguments[0])
            return _Growth(first, names(node.arguments[0]), node.function == "rate", grows).value
    return _Window(first, node.function, node.seconds).value


def _known(first: _Compiled, instead: _Compiled) -> _Compiled:
    def value(moment: Moment) -> Value:
        a, b = first(moment), instead(moment)
        return b if a is None else a

    return value


def _baseline(operand: _Compiled, baseline: Baseline) -> _Compiled:
    epoch = 0

    def value(moment: Moment) -> Value:
        nonlocal epoch
        if moment.readings.epoch != epoch:
            epoch = moment.readings.epoch
            baseline.forget()
        inner = operand(moment)
        if inner is not None:
            baseline.learn(inner, moment.clock_ns, incident=moment.incident)
        return baseline.value

    return value


def _is_counter(node: Node) -> bool:
    """Return whether the value can only grow while the server runs: status variables and sums of
    them."""
    match node:
        case Name(name):
            return "." not in name
        case Binary("+", left, right):
            return _is_counter(left) and _is_counter(right)
    return False


class _Growth:
    """``rate(x)`` and ``delta(x)``: between two samples of the names in x."""

    def __init__(
        self, operand: _Compiled, of: tuple[Named, ...], per_second: bool, grows: bool
    ) -> None:
        self._operand = operand
        self._of = of
        self._per_second = per_second
        self._grows = grows
        self._before: tuple[float, int] | None = None
        self._latest: Value = None
        self._epoch = 0

    def value(self, moment: Moment) -> Value:
        if moment.readings.epoch != self._epoch:
            self._epoch = moment.readings.epoch
            self._before = self._latest = None
        now = self._operand(moment)
        if now is None:
            return None
        clock = self._clock(moment)
        if self._before is None:
            self._before = (now, clock)
        elif clock > self._before[1]:
            self._latest = self._growth(now - self._before[0], clock - self._before[1])
            self._before = (now, clock)
        return self._latest

    def _growth(self, difference: float, elapsed_ns: int) -> Value:
        if self._grows and difference < 0:
            return None
        return _finite(difference * NS / elapsed_ns if self._per_second else difference)

    def _clock(self, moment: Moment) -> int:
        """Return when x was sampled: a trigger is evaluated more often than a slow collector
        samples."""
        found = [
            moment.readings.reading(name, moment.clock_ns, moment.stale_ns) for name in self._of
        ]
        return max((reading.clock_ns for reading in found if reading), default=moment.clock_ns)


class _Window:
    """``avg``, ``max`` and ``min`` over the last seconds; unknown until half of them were seen."""

    def __init__(self, operand: _Compiled, function: str, seconds: float) -> None:
        self._operand = operand
        self._function = function
        self._length_ns = int(seconds * NS)
        self._slot_ns = max(1, self._length_ns // MAX_SLOTS)
        self._slots: deque[_Slot] = deque()
        self._first: int | None = None
        self._epoch = 0

    def value(self, moment: Moment) -> Value:
        if moment.readings.epoch != self._epoch:
            self._epoch = moment.readings.epoch
            self._slots.clear()
            self._first = None
        now = self._operand(moment)
        if now is not None:
            self._add(now, moment.clock_ns)
        while self._slots and moment.clock_ns - self._slots[0].clock_ns >= self._length_ns:
            self._slots.popleft()
        if not self._slots:
            self._first = None
        if self._first is None or moment.clock_ns - self._first < self._length_ns // 2:
            return None
        match self._function:
            case "max":
                return max(slot.largest for slot in self._slots)
            case "min":
                return min(slot.smallest for slot in self._slots)
        return _finite(sum(s.total for s in self._slots) / sum(s.count for s in self._slots))

    def _add(self, value: float, clock_ns: int) -> None:
        if self._first is None:
            self._first = clock_ns
        if self._slots and clock_ns - self._slots[-1].clock_ns < self._slot_ns:
            self._slots[-1].add(value)
        else:
            self._slots.append(_Slot(clock_ns, value, value, value))


@dataclass(slots=True)
class _Slot:
    clock_ns: int
    total: float
    largest: float
    smallest: float
    count: int = 1

    def add(self, value: float) -> None:
        self.total += value
        self.count += 1
        self.largest = max(self.largest, value)
        self.smallest = min(self.smallest, value)
