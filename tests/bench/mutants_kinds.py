# SPDX-License-Identifier: Apache-2.0
"""Changes of one line that change what a program does: of Python by its syntax, of C by its words.

Not changed: texts, what is logged, types, imports. Each change is within one line.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import msgspec

__all__ = ["Mutant", "of_c", "of_python", "statement"]

OPPOSITES = dict(
    zip(
        (ast.Eq, ast.NotEq, ast.Lt, ast.GtE, ast.Gt, ast.LtE, ast.In, ast.NotIn, ast.Is, ast.IsNot),
        ("!=", "==", ">=", "<", "<=", ">", "not in", "in", "is not", "is"),
        strict=True,
    )
)
SIGNS = {ast.Add: "-", ast.Sub: "+", ast.Mult: "//"}
LOGS = re.compile(r"(?:\w+\.)*(?:_?log(?:ger|ging)?|warnings|progress)\b")
C_PAIRS = (("==", "!="), ("<", ">="), (">", "<="), ("+", "-"), ("&&", "||"))
C_WORDS = [
    *(
        (rf" {re.escape(old)} ", f" {new} ")
        for one, other in C_PAIRS
        for old, new in ((one, other), (other, one))
    ),
    (r"\breturn true;", "return false;"),
    (r"\breturn false;", "return true;"),
    (r"\breturn 0;", "return 1;"),
    (r"\bif \((\w+)\)", r"if (!\1)"),
    (r"\bif \(!", "if ("),
    (r"^\t+(?!return\b|free\b|_)\w+\([^;=]*\);$", "\t;"),
]
C_CALM = re.compile(r"//|/\*|^#|\bfor \(|\"|'")
"""Lines with texts and comments, and heads of loops, which would not end, or never begin."""


class Mutant(msgspec.Struct, frozen=True):
    """One line, by its number from 1, and what takes its place."""

    module: str
    line: int
    before: str
    after: str


def of_python(module: str, text: str) -> list[Mutant]:
    """Return the mutants inside functions; if there are none, those of the module's own lines."""
    inside: list[Mutant] = []
    outside: list[Mutant] = []
    raw = [line.encode() for line in text.split("\n")]
    for node, part, in_function in _places(ast.parse(text)):
        if node.end_lineno != node.lineno:
            continue
        before = raw[node.lineno - 1]
        old = before[node.col_offset : node.end_col_offset].decode()
        after = before[: node.col_offset] + _changed(node, part, old).encode()
        after += before[node.end_col_offset :]
        mutant = Mutant(module, node.lineno, before.decode(), after.decode())
        (inside if in_function else outside).append(mutant)
    return inside or outside


def _places(
    tree: ast.AST, in_function: bool = False
) -> Iterator[tuple[ast.expr | ast.stmt, str, bool]]:
    """Yield the nodes that can be changed, how, and whether they are in a function."""
    for node in ast.iter_child_nodes(tree):
        inner = in_function or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        match node:
            case ast.Import() | ast.ImportFrom() | ast.Raise() | ast.arguments() | ast.JoinedStr():
                continue
            case (
                ast.If(test=ast.Name(id="TYPE_CHECKING"))
                | ast.If(test=ast.Compare(left=ast.Name(id="__name__")))
            ):
                continue
            case ast.Assign(targets=[ast.Name(id="__all__")]):
                continue
            case ast.Expr(value=ast.Constant()):
                continue
            case ast.Expr(value=ast.Call() as call):
                if LOGS.match(ast.unparse(call.func)):
                    continue
                yield node, "pass", inner
            case ast.Return(value=ast.expr() as value):
                if not (isinstance(value, ast.Constant) and value.value is None):
                    yield node, "return None", inner
            case ast.If() | ast.While() | ast.IfExp():
                yield node.test, "not", inner
            case ast.Compare(ops=[_]) | ast.BoolOp():
                yield node, "operator", inner
            case ast.BinOp(op=ast.Add() | ast.Sub() | ast.Mult()):
                if not any(_is_text(part) for part in (node.left, node.right)):
                    yield node, "operator", inner
            case ast.Constant(value=bool() | int() | float()):
                yield node, "constant", inner
        if isinstance(node, ast.AnnAssign):
            if node.value is not None:
                yield from _places(ast.Expression(node.value), inner)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _places(ast.Module(node.body, []), True)
        elif isinstance(node, ast.ClassDef):
            yield from _places(ast.Module(node.body, []), inner)
        else:
            yield from _places(node, inner)


def statement(text: str, line: int) -> range:
    """Return the lines of the innermost statement of Python at a line; of an ``if``, its head."""
    found = range(line, line + 1)
    for node in ast.walk(ast.parse(text)):  # outer ones first
        if isinstance(node, ast.stmt) and node.lineno <= line <= (node.end_lineno or 0):
            body = getattr(node, "body", None)
            found = range(node.lineno, body[0].lineno if body else (node.end_lineno or 0) + 1)
    return found


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)
    )


def _changed(node: ast.expr | ast.stmt, part: str, old: str) -> str:
    match part, node:
        case "not", _:
            return f"not ({old})"
        case "constant", ast.Constant(value=value):
            return repr(not value if isinstance(value, bool) else value + 1)  # type: ignore
        case "operator", ast.Compare(left=left, ops=[op], comparators=[right]):
            return f"(({ast.unparse(left)}) {OPPOSITES[type(op)]} ({ast.unparse(right)}))"
        case "operator", ast.BinOp(left=left, op=op, right=right):
            return f"(({ast.unparse(left)}) {SIGNS[type(op)]} ({ast.unparse(right)}))"
        case "operator", ast.BoolOp(op=op, values=values):
            word = " or " if isinstance(op, ast.And) else " and "
            return f"({word.join(f'({ast.unparse(value)})' for value in values)})"
    return part


def of_c(module: str, text: str) -> list[Mutant]:
    """Return the mutants of lines inside functions."""
    found = []
    inside = False
    for number, line in enumerate(text.splitlines(), 1):
        if line in ("{", "}"):
            inside = line == "{"
        elif inside and not C_CALM.search(line):
            for pattern, new in C_WORDS:
                if (after := re.sub(pattern, new, line, count=1)) != line:
                    found.append(Mutant(module, number, line, after))
    return found
