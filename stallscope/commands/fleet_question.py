# SPDX-License-Identifier: Apache-2.0
"""Ask a fleet one of the named questions."""

from __future__ import annotations

import argparse
import sys
import time

from stallscope.base.errors import Exit
from stallscope.base.text import one_line
from stallscope.commands import _fleet, _numbers
from stallscope.fleet.questions.asking import Asked, Question, ask
from stallscope.fleet.tables import SCHEMA

__all__ = ["Asking"]

_DAY = "1d"
_MOST_ROWS = 100_000
_WITH_MINUTES = {
    "now": "leave out incidents whose agent was not seen for N minutes (default 10)",
    "silent": "agents that were not seen for N minutes (default 10)",
    "signatures": "hosts that had the same stall within N minutes had it together (default 10)",
}
_WITH_VERSION = {
    "versions": "only this version of the server (default: all)",
    "regressions": "the new version of the server (default: the newest)",
}
_AGAINST = "regressions"


class Asking:
    """The command of a question: the interface of a command's module."""

    def __init__(self, question: Question) -> None:
        self._question = question
        name = question.name
        more = " --version 9.7.4 --against 9.7.3" if name == _AGAINST else ""
        self.EPILOG = f"""\
examples:
  stallscope fleet {name} --from file:///var/lib/fleet{more}
  stallscope fleet {name} --from clickhouse+https://dba@ch1:8443/stallscope --since 7d{more} --json
"""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the options of this question."""
        name = self._question.name
        _fleet.add_since_arguments(parser, _DAY)
        if name in _WITH_MINUTES:
            parser.add_argument(
                "--minutes", type=_minutes, default=10.0, metavar="N", help=_WITH_MINUTES[name]
            )
        if name in _WITH_VERSION:
            parser.add_argument(
                "--version", default="", metavar="VERSION", help=_WITH_VERSION[name]
            )
        if name == _AGAINST:
            parser.add_argument(
                "--against",
                default="",
                metavar="VERSION",
                help="the old version of the server (default: the one before)",
            )
        parser.add_argument(
            "--limit", type=_limit, default=100, metavar="N", help="at most N rows (default 100)"
        )
        parser.add_argument("--json", action="store_true", help=f"print JSON ({SCHEMA})")
        _fleet.add_place_arguments(parser, "--from", "the fleet to ask")

    def run(self, args: argparse.Namespace) -> Exit:
        """Print the answer; notes on standard error."""
        from stallscope.reporters import fleet, lines

        name = self._question.name
        since_ms, until_ms = _fleet.since_until(args, time.time_ns() // 10**6)
        (place,) = _fleet.places(args)
        asked = Asked(
            since_ms,
            until_ms,
            minutes=getattr(args, "minutes", 10.0),
            version=getattr(args, "version", "") or "",
            against=getattr(args, "against", ""),
            limit=args.limit,
        )
        with _fleet.opened(place) as engine:
            answer = ask(engine, name, asked)
            left_out = engine.notes
            notes = tuple(dict.fromkeys((*answer.notes, *left_out)))
        shown = fleet.Shown(
            SCHEMA,
            name,
            self._question.columns,
            answer.rows,
            notes,
            since_ms,
            until_ms,
            args.limit,
        )
        if args.json:
            print(fleet.dumps(shown))
        else:
            lines.print_lines(fleet.render(shown, lines.width_of(sys.stdout)), sys.stdout)
        for note in notes:
            print(f"stallscope: {one_line(note)}", file=sys.stderr)
        return Exit.PARTIAL if left_out else Exit.DONE


def _minutes(text: str) -> float:
    number = _numbers.count(text)
    if not 1 <= number <= 1_000_000:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of minutes, 1 to 1000000")
    return float(number)


def _limit(text: str) -> int:
    number = _numbers.count(text)
    if not 1 <= number <= _MOST_ROWS:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of rows, 1 to {_MOST_ROWS}")
    return number
