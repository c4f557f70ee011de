# SPDX-License-Identifier: Apache-2.0
"""Whether the first lines end a stall: each stall of ``scripts/stall``, and the statement that
``snap`` prints for it, pasted into a client of its server as a user would."""

from __future__ import annotations

import json
import shlex
import statistics
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tests.bench import progress
from tests.bench.snapshots import PLACE, command, run, snap, verdict_of
from tests.bench.stats import BenchError, Row, Section, number
from tests.support.servers import PATIENCE, ChildEnded, Late, Unavailable
from tests.support.stall import STALLS

__all__ = ["Ended", "measure", "sections"]

LINES = 24
COLUMNS = 80
SECONDS = 1.5
RUNS = 3
ENDS_WITHIN = 30.0
FIXED = "-fixed"
NONE = "no statement"


@dataclass
class Ended:
    """What was printed for one stall, and what pasting it did."""

    server: str
    seconds: float
    lines: int
    widest: int
    statement: str
    """Empty: the lines say that none is known."""
    likely: bool
    asked: bool
    ended: bool


def sections(server: str, quick: bool, only: Sequence[str]) -> Iterator[Section]:
    """Yield one table: each stall, or those that ``only`` names; ``quick``: a few."""
    del server
    names = [name for name in STALLS if not name.endswith(FIXED)]
    if only:
        unknown = sorted(set(only) - set(names))
        if unknown:
            raise BenchError(f"no stall {', '.join(unknown)}: see scripts/stall --help")
        names = [name for name in names if name in only]
    elif quick:
        names = names[:3]
    rows: list[Row] = []
    goals: list[tuple[str, bool]] = []
    left_out: list[str] = []
    for name in names:
        progress(f"endings: {name}")
        try:
            found = measure(name)
        except (Unavailable, Late, ChildEnded) as error:
            left_out.append(f"{name}: {error}")
            continue
        rows.append(Row(name, _cells(found)))
        goals += _goals(name, found)
    yield Section(
        "endings",
        "The statement of the first lines, pasted",
        tuple(rows),
        goals=tuple(goals),
        left_out=tuple(left_out),
        notes=(
            f"seconds: from the command's start to the last line that it prints, median of {RUNS};"
            " ended: within"
            f" {ENDS_WITHIN:.0f} s another burst shows no stall of this name, or one of less than"
            " half as many threads",
            "asked: the lines give a question, or a command, whose answer is the statement",
            f"{NONE}: the lines say that none is known that ends it, and what to do instead",
        ),
    )


def measure(name: str) -> Ended:
    """Make the stall, print the first lines, paste the first statement."""
    with STALLS[name].started() as (server, made), made:
        runs = [_first_lines(server.pid) for _ in range(RUNS)]
        printed, seconds = runs[-1][0], statistics.median(seconds for _, seconds in runs)
        statement, how = _first_statement(printed)
        before = snap(server.pid)
        if how == "ask":
            statement = _paste(server, statement).splitlines()[-1]
        elif how == "learn":
            again = run(server.pid, "--calibrate").splitlines()
            statement, _ = _first_statement(again)
        if statement:
            _paste(server, statement, in_shell=how == "shell")
        return Ended(
            server=server.name,
            seconds=seconds,
            lines=len(printed),
            widest=max(map(len, printed)),
            statement=statement,
            likely=_is_likely(before, statement),
            asked=how in ("ask", "learn"),
            ended=bool(statement) and _ends(server.pid, before),
        )


def _first_lines(pid: int) -> tuple[list[str], float]:
    """Return what ``snap`` prints, and after how many seconds its last line was there. Its end can
    be later: a connection whose question hangs is closed then."""
    begun = time.monotonic()
    with subprocess.Popen(command(pid), stdout=subprocess.PIPE, text=True, **PLACE) as running:
        assert running.stdout is not None
        found = [(line.rstrip("\n"), time.monotonic() - begun) for line in running.stdout]
    if running.returncode not in (0, 3) or not found:
        raise BenchError(f"snap ended with {running.returncode}")
    return [line for line, _ in found], found[-1][1]


def _first_statement(printed: list[str]) -> tuple[str, str]:
    """Return the first statement or command, and what to do with it: paste it into a client or
    into a ``shell``, ``ask`` with it, ``learn`` with it."""
    kinds = {
        "To end it, paste in a shell": "shell",
        "To end it, paste one of these in a shell": "shell",
        "To end it, paste": "client",
        "Its connection is not known. Ask": "ask",
        "Who holds it is not known. Ask": "ask",
        "Its connection is not known: this": "learn",
        "Who holds it is not known: this": "learn",
    }
    for at, line in enumerate(printed):
        how = next((kind for start, kind in kinds.items() if line.startswith(start)), None)
        if how is None:
            continue
        lines = [printed[at + 1].strip()]
        for more in printed[at + 2 :]:  # a long one goes on, further in than it began
            if not more.startswith("    ") or more.startswith("      "):
                break
            lines.append(more.strip())
        return " ".join(lines), how
    return "", "none"


def _paste(server: Any, statement: str, *, in_shell: bool = False) -> str:
    """Do what a user does: give it to the client whose command the stall prints; return what that
    prints."""
    command = ["sh", "-c", statement] if in_shell else shlex.split(server.client_command())
    done = subprocess.run(
        command, input=statement, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    if done.returncode:
        raise BenchError(f"{statement}: {done.stderr.strip()}")
    return done.stdout.strip()


def _is_likely(analysis: dict[str, Any], statement: str) -> bool:
    return any(e["statement"] == statement and not e["certain"] for e in analysis["endings"])


def _ends(pid: int, before: dict[str, Any]) -> bool:
    first = verdict_of(before)
    if first is None:
        return False
    deadline = time.monotonic() + ENDS_WITHIN
    while time.monotonic() < deadline:
        now = verdict_of(json.loads(run(pid, "--json")))
        if now is None or now["signature"] != first["signature"]:
            return True
        if now["threads"] * 2 < first["threads"]:
            return True
    return False


def _cells(found: Ended) -> dict[str, str]:
    return {
        "server": found.server,
        "seconds": number(round(found.seconds, 2)),
        "lines": str(found.lines),
        "statement": found.statement or NONE,
        "sure": "-" if not found.statement else "likely" if found.likely else "yes",
        "asked": "yes" if found.asked else "no",
        "ended": "-" if not found.statement else "yes" if found.ended else "no",
    }


def _goals(name: str, found: Ended) -> list[tuple[str, bool]]:
    goals = [
        (f"{name}: {LINES} lines of {COLUMNS}", found.lines <= LINES and found.widest <= COLUMNS),
        (f"{name}: {SECONDS} s", found.seconds <= SECONDS),
    ]
    if found.statement:
        goals.append((f"{name}: ended by {found.statement}", found.ended))
    return goals
