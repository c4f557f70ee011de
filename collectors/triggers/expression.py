# SPDX-License-Identifier: Apache-2.0
"""Expressions of triggers: parse a text into a checked tree of limited size.

    expression := conjunction ("or" conjunction)*
    conjunction := negation ("and" negation)*
    negation := "not" negation | comparison
    comparison := sum [("<" | "<=" | ">" | ">=" | "==" | "!=") sum]
    sum := product (("+" | "-") product)*
    product := sign (("*" | "/") sign)*
    sign := "-" sign | NUMBER | NAME | function "(" arguments ")" | "(" expression ")"

Names are those of a `Sample`; one with other characters (``disk.dm-0.util``) is in backticks.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from stallscope.base.errors import UsageError
from stallscope.base.text import one_line
from stallscope.model.waitkinds import KINDS

__all__ = [
    "FUNCTIONS",
    "MAX_WINDOW",
    "NAMESPACES",
    "Binary",
    "Call",
    "ExpressionError",
    "Name",
    "Named",
    "Negation",
    "Node",
    "Number",
    "States",
    "is_condition",
    "names",
    "parse",
    "remembered",
    "walk",
]

MAX_LENGTH = 2000
"""The most characters of an expression."""
MAX_DEPTH = 40
MAX_NODES = 200
MAX_WINDOW = 3600.0
"""The longest window of a function, in seconds."""

NAMESPACES = (
    "accept",
    "agent",
    "backends",
    "cgroup",
    "command",
    "disk",
    "group",
    "heartbeat",
    "host",
    "innodb",
    "lock_waits",
    "login",
    "memory",
    "metadata_locks",
    "perf_threads",
    "process",
    "processlist",
    "psi",
    "replication",
    "server",
    "settings",
    "space",
    "transactions",
    "waits",
)
"""First words of names with a dot; names without one are status variables of the server."""

FUNCTIONS = {
    "rate": "rate(x): growth of x per second",
    "delta": "delta(x): growth of x since the previous sample",
    "avg": "avg(x, seconds): mean of x over the last seconds",
    "max": "max(x, seconds): largest x of the last seconds",
    "min": "min(x, seconds): smallest x of the last seconds",
    "baseline": "baseline(x): the usual value of x; unknown for the first two minutes",
    "greatest": "greatest(x, y): the greater of two",
    "least": "least(x, y): the smaller of two",
    "coalesce": "coalesce(x, y): x, or y if x is unknown",
    "state": 'state("text"): threads with this state in the processlist; * matches any text',
    "command": 'command("name"): the last number that this [[command]] printed',
}
_WINDOWED = ("avg", "max", "min")
_REMEMBER = frozenset(("rate", "delta", "baseline", *_WINDOWED))
_ARITY = {
    "rate": 1,
    "delta": 1,
    "baseline": 1,
    "greatest": 2,
    "least": 2,
    "coalesce": 2,
} | dict.fromkeys(_WINDOWED, 2)
_TEXTUAL = ("state", "command")

_HYPHENED = "|".join(kind for kind in KINDS if "-" in kind)
_TOKEN = re.compile(
    r"\s*(?:"
    r"(?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)"
    rf"|(?P<name>waits\.(?:{_HYPHENED})\.\w+|[A-Za-z_]\w*(?:\.\w+)*)"
    r"|`(?P<quoted>[^`]+)`"
    r'|"(?P<text>[^"]*)"'
    r"|(?P<sign><=|>=|==|!=|[-+*/<>(),])"
    r")",
    re.ASCII,
)
_COMPARISONS = frozenset(("<", "<=", ">", ">=", "==", "!="))
_WORDS = frozenset(("and", "or", "not"))


class ExpressionError(UsageError):
    """An expression is wrong: its text says why, and what to write."""


@dataclass(frozen=True, slots=True)
class Number:
    """A number in the text."""

    value: float


@dataclass(frozen=True, slots=True)
class Name:
    """A value of a sample, by its name."""

    name: str


@dataclass(frozen=True, slots=True)
class States:
    """Threads of the processlist in states that match."""

    pattern: str


@dataclass(frozen=True, slots=True)
class Negation:
    """``not x`` or ``-x``."""

    operator: str
    operand: Node


@dataclass(frozen=True, slots=True)
class Binary:
    """Two operands of arithmetic, a comparison, ``and`` or ``or``."""

    operator: str
    left: Node
    right: Node


@dataclass(frozen=True, slots=True)
class Call:
    """A function of numbers. ``seconds``: the window of those that read earlier samples."""

    function: str
    arguments: tuple[Node, ...]
    seconds: float = 0.0


Named = Name | States
"""Nodes that are read from samples."""
Node = Number | Named | Negation | Binary | Call


def parse(text: str) -> Node:
    """Read an expression. Raises: ExpressionError."""
    if len(text) > MAX_LENGTH:
        raise ExpressionError(f"longer than {MAX_LENGTH} characters; split it into two triggers")
    parser = _Parser(_tokens(text))
    tree = parser.expression(0)
    parser.end()
    return tree


def walk(node: Node) -> Iterator[Node]:
    """Yield a tree's nodes; those with names come in the order of the text."""
    yield node
    match node:
        case Negation(_, operand):
            yield from walk(operand)
        case Binary(_, left, right):
            yield from walk(left)
            yield from walk(right)
        case Call(_, arguments):
            for argument in arguments:
                yield from walk(argument)


def names(node: Node) -> tuple[Named, ...]:
    """Return the names that an expression reads, each once, in the order of the text."""
    return tuple(dict.fromkeys(n for n in walk(node) if isinstance(n, Named)))


def remembered(node: Node) -> tuple[Named, ...]:
    """Return the names within functions of earlier values, such as ``rate(x)``."""
    calls = [one for one in walk(node) if isinstance(one, Call) and one.function in _REMEMBER]
    return tuple(dict.fromkeys(name for call in calls for name in names(call)))


def is_condition(node: Node) -> bool:
    """Return whether the value is true or false, not a number."""
    match node:
        case Negation(operator, _):
            return operator == "not"
        case Binary(operator, _, _):
            return operator in _COMPARISONS or operator in _WORDS
    return False


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str


def _tokens(text: str) -> list[_Token]:
    found = []
    position = 0
    end = len(text.rstrip())
    while position < end:
        match = _TOKEN.match(text, position)
        if match is None or match.lastgroup is None:
            rest = one_line(text[position:], 20)
            raise ExpressionError(f"{rest!r} is not part of an expression")
        found.append(_Token(match.lastgroup, match.group(match.lastgroup)))
        position = match.end()
    return found


class _Parser:
    def __init__(self, tokens: list[_Token]) -> None:
        self._tokens = tokens
        self._next = 0
        self._nodes = 0

    def end(self) -> None:
        if self._next < len(self._tokens):
            token = self._tokens[self._next]
            raise ExpressionError(f"unexpected {_shown(token)}")

    def expression(self, depth: int) -> Node:
        left = self._conjunction(depth)
        while self._take_word("or"):
            left = self._made(Binary("or", left, self._conjunction(depth)))
        return left

    def _conjunction(self, depth: int) -> Node:
        left = self._negation(depth)
        while self._take_word("and"):
            left = self._made(Binary("and", left, self._negation(depth)))
        return left

    def _negation(self, depth: int) -> Node:
        if self._take_word("not"):
            return self._made(Negation("not", self._negation(self._deeper(depth))))
        return self._comparison(depth)

    def _comparison(self, depth: int) -> Node:
        left = self._sum(depth)
        if sign := self._take_sign(_COMPARISONS):
            left = self._made(Binary(sign, left, self._sum(depth)))
            if another := self._take_sign(_COMPARISONS):
                raise ExpressionError(
                    f"{another!r} after a comparison: join comparisons with 'and'"
                )
        return left

    def _sum(self, depth: int) -> Node:
        left = self._product(depth)
        while sign := self._take_sign(frozenset("+-")):
            left = self._made(Binary(sign, left, self._product(depth)))
        return left

    def _product(self, depth: int) -> Node:
        left = self._sign(depth)
        while sign := self._take_sign(frozenset("*/")):
            left = self._made(Binary(sign, left, self._sign(depth)))
        return left

    def _sign(self, depth: int) -> Node:
        depth = self._deeper(depth)
        if self._take_sign(frozenset("-")):
            return self._made(Negation("-", self._sign(depth)))
        if self._take_sign(frozenset("(")):
            inner = self.expression(depth)
            self._expect(")")
            return inner
        token = self._take()
        if token is None:
            raise ExpressionError("unexpected end: a number or a name is missing")
        if token.kind == "number":
            return self._made(Number(float(token.text)))
        if token.kind == "quoted":
            return self._made(Name(_checked(token.text)))
        if token.kind == "name" and token.text not in _WORDS:
            if self._take_sign(frozenset("(")):
                return self._made(self._call(token.text, depth))
            return self._made(Name(_checked(token.text)))
        raise ExpressionError(f"unexpected {_shown(token)}: a number or a name is missing")

    def _call(self, function: str, depth: int) -> Node:
        if function not in FUNCTIONS:
            raise ExpressionError(
                f"no function {function!r}; known functions are {', '.join(FUNCTIONS)}"
            )
        if function in _TEXTUAL:
            token = self._take()
            if token is None or token.kind != "text" or not token.text:
                raise ExpressionError(f"{function!r} needs a text: write {FUNCTIONS[function]}")
            self._expect(")")
            return States(token.text) if function == "state" else Name(f"command.{token.text}")
        arguments = [self.expression(depth)]
        while self._take_sign(frozenset(",")):
            arguments.append(self.expression(depth))
        self._expect(")")
        if len(arguments) != _ARITY[function]:
            raise ExpressionError(
                f"{function!r} with {len(arguments)} arguments: write {FUNCTIONS[function]}"
            )
        if function not in _WINDOWED:
            return Call(function, tuple(arguments))
        seconds = arguments.pop()
        if not isinstance(seconds, Number) or not 0 < seconds.value <= MAX_WINDOW:
            raise ExpressionError(
                f"{function!r} needs a number of seconds, at most {MAX_WINDOW:g}:"
                f" write {FUNCTIONS[function]}"
            )
        return Call(function, tuple(arguments), seconds.value)

    def _take(self) -> _Token | None:
        if self._next == len(self._tokens):
            return None
        self._next += 1
        return self._tokens[self._next - 1]

    def _take_sign(self, wanted: frozenset[str]) -> str | None:
        if self._next < len(self._tokens):
            token = self._tokens[self._next]
            if token.kind == "sign" and token.text in wanted:
                self._next += 1
                return token.text
        return None

    def _take_word(self, word: str) -> bool:
        if self._next < len(self._tokens) and self._tokens[self._next] == _Token("name", word):
            self._next += 1
            return True
        return False

    def _expect(self, sign: str) -> None:
        if self._take_sign(frozenset((sign,))) is None:
            token = self._take()
            raise ExpressionError(f"{_shown(token)} where {sign!r} is missing")

    def _deeper(self, depth: int) -> int:
        if depth >= MAX_DEPTH:
            raise ExpressionError(f"deeper than {MAX_DEPTH} levels; split it into two triggers")
        return depth + 1

    def _made(self, node: Node) -> Node:
        self._nodes += 1
        if self._nodes > MAX_NODES:
            raise ExpressionError(f"more than {MAX_NODES} parts; split it into two triggers")
        return node


def _shown(token: _Token | None) -> str:
    return "it ends" if token is None else repr(one_line(token.text, 40))


def _checked(name: str) -> str:
    space, dot, _ = name.partition(".")
    if dot and space not in NAMESPACES:
        raise ExpressionError(f"{name!r}: names begin with {', '.join(NAMESPACES)}")
    return name
