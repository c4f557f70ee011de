# SPDX-License-Identifier: Apache-2.0
"""No secret of a literal is shown, of random statements of every mode, whole or cut off.

``STALLSCOPE_STATEMENTS`` is their number, ``STALLSCOPE_SEED`` their seed.
"""

from __future__ import annotations

import os
import random
from typing import Any

import pytest

from stallscope.server.statements import normalize
from tests.support.chance import SEED

COUNT = int(os.environ.get("STALLSCOPE_STATEMENTS", "10000"))
SECRET = "S3CR3T"
BITS = (
    *("'", '"', "\\", "`", "--", "#", "/*", "*/", "\n", " ", ",", "(", ")", "x", "AS", "$$", "$a$"),
    *("[", "]", ";", "=", "%", "@", "é", "\r", "0", "/*!", "*", "-", " OR ", "\ufffd", "{", "}"),
    *("E", "N", "_utf8", "..", ":", "''", '""'),
)
VERBS = (
    *("SELECT", "INSERT INTO t VALUES (", "UPDATE t SET a =", "DELETE FROM t WHERE a ="),
    *("SET @x =", "CALL p("),
)
OPERANDS = ("a", "t1", "col", "u.name", "`x y`", "@v", "COUNT(*)", "1", "NULL", "DATE", "f(1)")
JOINTS = (
    *(",", "=", " AND ", "+", " LIKE ", " IN (", "),(", " AS a,", " /* c */ ", " -- c\n", "\n"),
)
MODES: dict[str, dict[str, Any]] = {
    "default": {},
    "no backslash": {"no_backslash_escapes": True},
    "ansi": {"ansi_quotes": True},
    "postgres": {},
}


def literal(draw: random.Random, mode: str) -> str:
    """Return a literal as a client writes it that knows its mode."""
    parts = [draw.choice(BITS) for _ in range(draw.randrange(11))]
    parts.insert(draw.randrange(len(parts) + 1), SECRET)
    body = "".join(parts)
    if mode == "postgres":
        kind, tag = draw.random(), draw.choice(("$$", "$q$", "$zz$"))
        if kind < 0.15:
            return "E'" + body.replace("\\", "\\\\").replace("'", draw.choice(("\\'", "''"))) + "'"
        if kind < 0.4 and tag not in body and not body.endswith("$"):
            return tag + body + tag
        return "'" + body.replace("'", "''") + "'"
    quote = draw.choice("'\"") if mode != "ansi" else "'"
    escapes = mode != "no backslash"
    body = body.replace("\\", "\\\\") if escapes else body
    body = body.replace(quote, "\\" + quote if escapes and draw.random() < 0.5 else quote * 2)
    return draw.choice(("", "", "", "", "N", "_utf8mb4", "_latin1 ")) + quote + body + quote


def statement(draw: random.Random, mode: str) -> str:
    """Return a statement, of which the grammar may be wrong, or the end missing."""
    parts = [draw.choice(VERBS)]
    for _ in range(draw.randrange(1, 6)):
        parts.append(literal(draw, mode) if draw.random() < 0.6 else draw.choice(OPERANDS))
        parts.append(draw.choice(JOINTS))
    text = " ".join(parts) if draw.random() < 0.7 else f"{parts[0]} {''.join(parts[1:])}"
    return text[: draw.randrange(8, len(text) + 1)] if draw.random() < 0.3 else text


@pytest.mark.hypothesis  # the nightly run draws a million
@pytest.mark.parametrize("mode", MODES)
def test_no_secret_is_shown_of_random_statements(mode: str) -> None:
    draw = random.Random(f"{SEED} {mode}")
    whole = 0
    for _ in range(COUNT // len(MODES)):
        text = statement(draw, mode)
        for server in ({}, *(given for given in MODES.values() if given)):
            found = normalize(text, **server).text
            assert SECRET not in found.upper(), (text, server, SEED)
            whole += "…" not in found
    assert whole > COUNT // len(MODES) // 10, "everything was hidden"
