# SPDX-License-Identifier: Apache-2.0
"""Compare two captures, two sets of them, or two saved reports of ``storage writes``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import msgspec

from stallscope.analyzers import catalog, engine, importers
from stallscope.analyzers.analysis import Analysis
from stallscope.analyzers.diff import diff
from stallscope.analyzers.series import Sample, related, sample
from stallscope.analyzers.server import release
from stallscope.base.errors import Exit, StallscopeError
from stallscope.base.text import one_line
from stallscope.commands import _common, _inputs, _options, _writes
from stallscope.commands._together import Together
from stallscope.model.capture import Capture
from stallscope.reporters import course, facts, lines, progress, terminal
from stallscope.reporters.sentence import Speaker

__all__ = ["EPILOG", "add_arguments", "run"]

EPILOG = """\
examples:
  stallscope diff quiet.jsonl.zst stall.jsonl.zst
  stallscope diff --lines 6 before/ after/
  stallscope diff --json a.txt b.txt | jq '.new[0].frames'
  stallscope diff before.json after.json       # saved by storage writes -o
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.add_argument(
        "before",
        metavar="A",
        help="a capture, a dump, a directory of them, or an incident; or a report that"
        " storage writes saved",
    )
    parser.add_argument(
        "after", metavar="B", help="what to compare it with; one of the two may be -"
    )
    _inputs.add_arguments(parser)
    group = parser.add_argument_group("output")
    group.add_argument("--json", action="store_true", help="print JSON (stallscope.diff/1)")
    group.add_argument(
        "--lines", type=_common.count, metavar="N", help="compare stacks by the N innermost frames"
    )
    _options.add_signatures_argument(group)


class _Side(msgspec.Struct):
    """One side of the comparison."""

    samples: list[Sample] = []
    together: Together = msgspec.field(default_factory=Together)
    worst: Analysis | None = None
    """The analysis with the highest confidence; any, where there are no findings."""
    unread: list[str] = []
    partial: bool = False

    def add(self, capture: Capture, analysis: Analysis, name: str) -> None:
        self.samples.append(sample(analysis, name))
        self.together.add(capture)
        if self.worst is None or _confidence(analysis) > _confidence(self.worst):
            self.worst = analysis
        self.unread += facts.unread(analysis.capture)
        self.partial |= analysis.capture.partial

    def verdict(self, signatures: catalog.Catalog) -> Analysis | None:
        """Return the analysis of all captures together, where they are of one server."""
        if related(self.samples):
            return self.together.analyze(signatures) or self.worst
        return self.worst


def run(args: argparse.Namespace) -> Exit:
    """Analyze both sides, and print what is new, more, fewer and gone."""
    if (saved := _writes.both(args.before, args.after)) is not None:
        return _writes.compare(saved, (args.before, args.after), args)
    signatures = catalog.load(args.signatures)
    before = _side(args.before, args, signatures)
    after = _side(args.after, args, signatures)
    unlike = _unlike(before, after)
    if unlike is not None:
        print(f"stallscope: {one_line(unlike, 500)}", file=sys.stderr)
    report = diff(before.samples, after.samples, frames=args.lines or None)
    code = Exit.PARTIAL if before.partial or after.partial else Exit.DONE
    if args.json:
        print(course.diff_dumps(report))
        return code
    width = lines.width_of(sys.stdout)
    text: list[lines.Line] = []
    stall: list[lines.Line] = []
    now = after.verdict(signatures)
    if now is not None:
        say = Speaker(now)
        text += lines.wrap(say.verdict(), width, style=say.style)
        stall = terminal.stall(now, terminal.Options(width=width))
    text += course.diff_head(report, width, names=(args.before, args.after))
    text += stall
    text += course.diff_changes(report, width)
    text += course.unread(before.unread + after.unread, width)
    lines.print_lines(text, sys.stdout)
    return code


def _unlike(before: _Side, after: _Side) -> str | None:
    """Return that the sides are of different servers or releases, None where they are not."""
    sides = [side.worst for side in (before, after)]
    said = [
        (side.server, release(side.version)) if side is not None else (None, None) for side in sides
    ]
    if any(name is None for name, _ in said):
        return None
    same_server = said[0][0] == said[1][0]
    if same_server and (said[0] == said[1] or any(text is None for _, text in said)):
        return None
    one, two = (f"{name} {text or ''}".strip() for name, text in said)
    return f"A is of {one}, B of {two}: what differs can be the release, and not the moment"


def _confidence(analysis: Analysis) -> float:
    return analysis.findings[0].confidence if analysis.findings else 0.0


def _side(word: str, args: argparse.Namespace, signatures: catalog.Catalog) -> _Side:
    """Return the analyses of a side; in a directory, files without stacks are skipped."""
    path = _inputs.path_of(word, args)
    side = _Side()
    if word == "-" or not path.is_dir():
        _add_file(side, path, args, signatures)
        return side
    for item in progress.of_files(_inputs.files(path), printing=False):
        try:
            _add_file(side, item, args, signatures)
        except importers.UnknownFormat:
            continue
    if not side.samples:
        raise StallscopeError(f"{path}: none of its files contains stacks")
    return side


def _add_file(
    side: _Side, path: Path, args: argparse.Namespace, signatures: catalog.Catalog
) -> None:
    captures, _ = _inputs.read(path, args)
    for capture in captures:
        side.add(capture, engine.analyze(capture, signatures), str(path))
