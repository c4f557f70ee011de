# SPDX-License-Identifier: Apache-2.0
"""Reports of several captures: over time (``stallscope.series/1``), and before and after
(``stallscope.diff/1``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from stallscope.analyzers.diff import Change, Diff, Side
from stallscope.analyzers.series import Series, StackCounts, Together, Verdict
from stallscope.base.text import clean, without_surrogates
from stallscope.reporters.lines import Line, short_name, wrap

__all__ = ["diff_changes", "diff_dumps", "diff_head", "dumps", "render", "unread"]

_SHOWN = 8
_FRAMES = 6
_TIDS = 8


def dumps(report: Series) -> str:
    """Return one line of JSON."""
    return _json("stallscope.series/1", report)


def diff_dumps(report: Diff) -> str:
    """Return one line of JSON."""
    return _json("stallscope.diff/1", report)


def _json(schema: str, report: Series | Diff) -> str:
    value: dict[str, Any] = {"schema": schema, **msgspec.to_builtins(report, str_keys=True)}
    return msgspec.json.encode(without_surrogates(value)).decode("utf-8")


def render(report: Series, width: int) -> list[Line]:
    """Return the series for people."""
    return list(_series(report, width))


def _series(report: Series, width: int) -> Iterator[Line]:
    yield Line(f"Over {_samples(report.samples)}", "bold")
    if report.together is not None:
        yield from wrap(_together(report.together, report.samples), width, indent="  ", hang="    ")
    for verdict in report.verdicts[:_SHOWN]:
        yield from wrap(_verdict(verdict, report.samples), width, indent="  ", hang="    ")
    if report.quiet:
        yield Line(f"  no stall in {report.quiet} of {report.samples}")
    for stuck in report.stuck[:_SHOWN]:
        tids = ", ".join(map(str, stuck.tids[:_TIDS]))
        more = f" and {len(stuck.tids) - _TIDS} more" if len(stuck.tids) > _TIDS else ""
        who = f"thread {tids}" if len(stuck.tids) == 1 else f"threads {tids}{more}"
        text = f"{who}: the same stack in all: {_stack(stuck.frames)}"
        yield from wrap(text, width, indent="  ", hang="    ")
    yield Line(f"  {report.moved} threads moved, {report.came} appeared, {report.went} disappeared")
    yield from _courses("Stacks of all samples", report.persists, width)
    yield from _courses("Stacks that come and go", report.comes_and_goes, width)


def _together(verdict: Together, samples: int) -> str:
    name = verdict.signature or verdict.title
    text = f"all together: {name}, confidence {verdict.confidence:.2f}"
    text += f", in {verdict.samples} of {samples}"
    return text + (f"; blocked by thread {verdict.blocker}" if verdict.blocker else "")


def _verdict(verdict: Verdict, samples: int) -> str:
    name = verdict.signature or verdict.title
    text = f"{name} in {verdict.samples} of {samples}, confidence up to {verdict.confidence:.2f}"
    if verdict.blockers:
        tid, count = next(iter(verdict.blockers.items()))
        if len(verdict.blockers) == 1:
            text += f"; when known, the blocker is always thread {tid} ({count})"
        else:
            text += f"; {len(verdict.blockers)} blockers, thread {tid} in {count}"
    return text


def _courses(title: str, courses: Sequence[StackCounts], width: int) -> Iterator[Line]:
    if courses:
        yield Line("")
        yield Line(f"{title}, threads sample by sample", "bold")
    for course in courses[:_SHOWN]:
        counts = " ".join(map(str, course.counts[:20])) + (" …" if len(course.counts) > 20 else "")
        yield from wrap(f"{counts}: {_stack(course.frames)}", width, indent="  ", hang="    ")


def diff_head(report: Diff, width: int, *, names: tuple[str, str]) -> list[Line]:
    """Return both sides and their verdicts, for people. ``names``: of the two sides."""
    return list(_head(report, width, names))


def _head(report: Diff, width: int, names: tuple[str, str]) -> Iterator[Line]:
    for sign, name, side in (("-", names[0], report.before), ("+", names[1], report.after)):
        yield from wrap(f"{sign} {clean(name)}: {_side(side)}", width, hang="    ")
    if report.stuck:
        tids = ", ".join(map(str, report.stuck[:_TIDS]))
        more = f" and {len(report.stuck) - _TIDS} more" if len(report.stuck) > _TIDS else ""
        yield from wrap(f"= the same stack on both sides: {tids}{more}", width, hang="    ")


def diff_changes(report: Diff, width: int) -> list[Line]:
    """Return the stacks that are new, more, fewer and gone, for people."""
    lines: list[Line] = []
    for title, changes, style in (
        ("New", report.new, "green"),
        ("More", report.more, "green"),
        ("Fewer", report.fewer, "red"),
        ("Gone", report.gone, "red"),
    ):
        lines += _changes(title, changes, width, style)
    return lines or [Line(""), Line("No stack has more or fewer threads")]


def unread(items: Sequence[str], width: int) -> list[Line]:
    """Return what was not read, without repetitions."""
    if not items:
        return []
    lines = [Line(""), Line("Not read, or unknown", "bold")]
    for item in dict.fromkeys(items):
        lines += wrap(item, width, indent="  - ", hang="    ")
    return lines


def _side(side: Side) -> str:
    text = f"{_samples(side.samples)}, {side.threads:g} threads, {side.active:g} of them not idle; "
    found = [f"{name or 'an unknown stall'} in {count}" for name, count in side.verdicts]
    if side.quiet:
        found.append(f"no stall in {side.quiet}")
    return text + ", ".join(found)


def _changes(title: str, changes: Sequence[Change], width: int, style: str) -> Iterator[Line]:
    if changes:
        yield Line("")
        yield Line(title, "bold")
    for change in changes[:_SHOWN]:
        text = f"{change.delta:+g} ({change.before:g} to {change.after:g}): {_stack(change.frames)}"
        yield from wrap(text, width, indent="  ", hang="    ", style=style)
    if len(changes) > _SHOWN:
        yield Line(f"  … {len(changes) - _SHOWN} more (--json has all)")


def _samples(count: int) -> str:
    return "1 sample" if count == 1 else f"{count} samples"


def _stack(frames: Sequence[str]) -> str:
    shown = ", ".join(short_name(frame) for frame in frames[:_FRAMES])
    return shown + (", …" if len(frames) > _FRAMES else "")
