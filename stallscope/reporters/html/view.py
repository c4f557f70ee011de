# SPDX-License-Identifier: Apache-2.0
"""The plain HTML of a capture, readable without the page's script."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from stallscope.analyzers.analysis import Analysis, Finding, Group
from stallscope.analyzers.subsystems import Subsystems
from stallscope.model.capture import Capture, Frame, Thread
from stallscope.reporters import facts, firstlines
from stallscope.reporters.connection import connection_query
from stallscope.reporters.counts import blocker_thread, count_states, trust
from stallscope.reporters.html import pack
from stallscope.reporters.html.pack import MAX_QUERY, Entry, shown
from stallscope.reporters.sentence import Speaker, remedies
from stallscope.reporters.sessions import frequent_statements, has_ended, who
from stallscope.reporters.trigger import why

__all__ = ["BlockerView", "EndingView", "FrameView", "GroupView", "View", "groups", "utc", "view"]

MAX_LOCKS = 20
MAX_OTHERS = 8
MAX_GROUPS = 300
MAX_WAITERS = 4
MAX_STATEMENTS = 5
MAX_STATEMENT = 300
_REASONS = {
    "trigger": "a trigger fired",
    "burst": "burst after a trigger",
    "manual": "on request",
    "before": "before",
    "after": "after",
}


class FrameView(msgspec.Struct, frozen=True):
    """One frame; ``where``: its module or source line."""

    name: str
    where: str = ""
    colour: str = "grey"


class BlockerView(msgspec.Struct, frozen=True):
    """The thread that the others wait for."""

    thread: str
    tid: int
    state: str
    source: str
    certain: bool
    query: str
    ended: bool
    """It is the last statement, and none runs now."""
    facts: tuple[tuple[str, str], ...]
    frames: tuple[FrameView, ...]
    kernel: tuple[str, ...]
    doubts: str
    find: str
    """The SQL that finds its connection."""


class GroupView(msgspec.Struct, frozen=True):
    """Threads with the same stack."""

    count: int
    state: str
    place: str
    """The frames that show what it waits for or does."""
    doubts: str
    frames: tuple[FrameView, ...]


class EndingView(msgspec.Struct, frozen=True):
    """A statement to paste, and what it does."""

    statement: str
    effect: str
    certain: bool
    in_shell: bool
    asks: bool


class View(msgspec.Struct, frozen=True):
    """One capture. Every text in it is escaped."""

    number: int
    label: str
    time: str
    reason: str
    verdict: str
    headline: str
    stall: bool
    calm: bool
    title: str
    signature: str
    confidence: float
    impact: str
    threads: int
    total: int
    waiting: int
    running: int
    idle: int
    meaning: str
    lasted: str
    """How long the stall has lasted; empty: not known."""
    who: str
    """The blocker as a connection; empty: not known."""
    endings: tuple[EndingView, ...]
    lines: str
    """What ``snap`` prints."""
    blocker: BlockerView | None
    locks: tuple[str, ...]
    chain: tuple[str, ...]
    cycles: tuple[str, ...]
    evidence: tuple[str, ...]
    profile: tuple[str, ...]
    """What the holders of the lock did, with the share of each."""
    cpu: tuple[str, ...]
    """What the server ran, with the share of each."""
    against: tuple[str, ...]
    remedies: tuple[str, ...]
    references: tuple[str, ...]
    others: tuple[str, ...]
    waiters: tuple[GroupView, ...]
    statements: tuple[tuple[int, str], ...]
    """(threads, text) of waiting threads, the most frequent first."""
    facts: tuple[str, ...]
    unread: tuple[str, ...]


def utc(time_ns: int | None) -> str:
    """Return a time for people; empty where it is outside of the calendar."""
    if time_ns is None:
        return ""
    try:
        time = datetime.datetime.fromtimestamp(time_ns / 1e9, datetime.UTC)
    except (OverflowError, ValueError, OSError):
        return ""
    return f"{time:%Y-%m-%d %H:%M:%S}.{time.microsecond // 1000:03d} UTC"


def view(
    analysis: Analysis,
    entry: Entry,
    number: int,
    subsystems: Subsystems,
    files: Mapping[int, str],
) -> View:
    """Return the view of one capture; ``number`` is its place on the page, ``files`` says what its
    threads waited for, by their TIDs."""
    say = Speaker(analysis)
    capture = analysis.capture
    states = count_states(analysis)
    first = analysis.findings[0] if analysis.findings else None
    holder = _who(analysis, first)
    return View(
        number=number,
        label=shown(entry.label),
        time=utc(capture.time_ns),
        reason=_REASONS.get(entry.reason, ""),
        verdict=shown(say.verdict(), MAX_QUERY),
        headline=shown(_headline(say, first, has_who=bool(holder)), MAX_QUERY),
        stall=first is not None,
        calm=say.calm,
        title=shown(first.title) if first else shown(_nothing(say)),
        signature=shown(first.signature) if first else "",
        confidence=round(first.confidence, 3) if first else 0.0,
        impact=shown(say.impact(first.impact)) if first else "",
        threads=first.threads if first else 0,
        total=say.total,
        waiting=states["waiting"],
        running=states["running"],
        idle=states["idle"],
        meaning=shown(first.meaning, MAX_QUERY) if first else "",
        lasted=firstlines.age_text(analysis.age) if analysis.age is not None else "",
        who=holder,
        endings=tuple(
            EndingView(
                shown(ending.statement, MAX_QUERY),
                shown(firstlines.effect_text(analysis, ending), MAX_QUERY),
                ending.certain,
                ending.in_shell,
                ending.asks,
            )
            for ending in analysis.endings
        ),
        lines="\n".join(
            shown(line.text, MAX_QUERY) for line in firstlines.render(analysis, firstlines.COLUMNS)
        ),
        blocker=_blocker(analysis, say, first, subsystems, files) if first else None,
        locks=_several(map(say.lock, first.locks[:MAX_LOCKS])) if first else (),
        chain=_several(map(say.link, first.chain)) if first and len(first.chain) > 1 else (),
        cycles=_several(" → ".join(map(str, (*cycle, cycle[0]))) for cycle in analysis.cycles),
        evidence=_several(first.evidence) if first else (),
        profile=_profile(first),
        cpu=_cpu(analysis),
        against=_several(first.against) if first else (),
        remedies=_several(remedies(analysis)),
        references=_several(first.references) if first else (),
        others=_others(analysis, say),
        waiters=_waiters(analysis, first, subsystems) if first else (),
        statements=_statements(capture, first) if first else (),
        facts=_several(_facts(analysis)),
        unread=_several(facts.unread(capture)),
    )


def _who(analysis: Analysis, first: Finding | None) -> str:
    blocker = first.blocker if first is not None else None
    if blocker is None or blocker.thread is None:
        return ""
    return shown(who(analysis.capture.threads[blocker.thread]), MAX_QUERY)


def _headline(say: Speaker, first: Finding | None, *, has_who: bool) -> str:
    """Return the verdict as a short headline."""
    if not say.total:
        return "It contains no threads."
    return f"{_finding(say, first, has_who=has_who)}{say.lost}"


def _finding(say: Speaker, first: Finding | None, *, has_who: bool) -> str:
    if first is None:
        return f"{_nothing(say)}: {say.states()}."
    what = first.title if first.signature is not None else first.title.rstrip(".")
    text = f"{first.threads} of {say.total} threads: {what}"
    if has_who:
        return f"{text}."
    if first.blocker is None:
        return f"{text}. The blocker is unknown."
    who = "Blocked by" if first.blocker.certain else "Likely blocked by"
    return f"{text}. {who} {say.thread(first.blocker.tid)}, {first.blocker.state}."


def _nothing(say: Speaker) -> str:
    text = say.nothing()
    return text[0].upper() + text[1:]


def _several(items: Iterable[str]) -> tuple[str, ...]:
    return tuple(shown(item, MAX_QUERY) for item in items)


def _profile(first: Finding | None) -> tuple[str, ...]:
    if first is None or first.seen is None:
        return ()
    return _several(f"{share:.0%} {where}" for where, share in first.seen.profile)


def _cpu(analysis: Analysis) -> tuple[str, ...]:
    if analysis.cpu is None:
        return ()
    return _several(
        f"{item.share:.0%} {item.where}" + (f" [{item.signature}]" if item.signature else "")
        for item in analysis.cpu.shares
    )


def _others(analysis: Analysis, say: Speaker) -> tuple[str, ...]:
    chained = {link.signature for found in analysis.findings[:1] for link in found.chain}
    rest = [f for f in analysis.findings[1:] if f.signature not in chained]
    return _several(map(say.finding, rest[:MAX_OTHERS]))


def _waiters(analysis: Analysis, finding: Finding, subsystems: Subsystems) -> tuple[GroupView, ...]:
    """Return the largest stacks of the finding's threads."""
    members = frozenset(finding.members)
    found = []
    for item in analysis.groups:
        inside = tuple(index for index in item.threads if index in members)
        if inside:
            count = sum(analysis.capture.threads[index].count for index in inside)
            found.append(msgspec.structs.replace(item, count=count, threads=inside))
    found.sort(key=lambda item: -item.count)
    return tuple(_group(analysis, item, subsystems) for item in found[:MAX_WAITERS])


def _statements(capture: Capture, finding: Finding) -> tuple[tuple[int, str], ...]:
    found = frequent_statements(capture.threads[index] for index in finding.members)
    return tuple((count, shown(text, MAX_STATEMENT)) for count, text in found[:MAX_STATEMENTS])


def _frames(names: Sequence[str], subsystems: Subsystems) -> tuple[FrameView, ...]:
    return tuple(FrameView(shown(name), "", subsystems.colour(name)) for name in names)


def _blocker(
    analysis: Analysis,
    say: Speaker,
    finding: Finding,
    subsystems: Subsystems,
    files: Mapping[int, str],
) -> BlockerView | None:
    blocker = finding.blocker
    if blocker is None:
        return None
    thread = blocker_thread(analysis, blocker)
    find = connection_query(analysis, thread) if thread is not None else None
    return BlockerView(
        thread=shown(say.thread(blocker.tid)),
        tid=blocker.tid,
        state=shown(blocker.state),
        source=shown(blocker.source),
        certain=blocker.certain,
        query=shown(blocker.sql or (thread.query if thread else None), MAX_QUERY),
        ended=has_ended(thread),
        facts=_thread_facts(thread, files.get(thread.tid)) if thread is not None else (),
        frames=_frames(blocker.frames, subsystems),
        kernel=() if thread is None else tuple(shown(str(f)) for f in thread.kernel_frames[:12]),
        doubts="" if thread is None else shown(trust([thread])),
        find=shown(find, MAX_QUERY),
    )


def _thread_facts(thread: Thread, file: str | None) -> tuple[tuple[str, str], ...]:
    call = thread.syscall
    found = (
        ("connection", None if thread.connection is None else str(thread.connection)),
        ("user", thread.user),
        ("client", thread.host),
        ("database", thread.database),
        ("command", thread.command),
        ("doing", thread.activity),
        ("system call", None if call is None else call.name or str(call.nr)),
        ("waits for", file),
        ("state", None if thread.state == "?" else thread.state),
        ("waited", None if thread.waited_ns is None else f"{thread.waited_ns / 1e9:.1f} s"),
    )
    return tuple((name, shown(text)) for name, text in found if text)


def groups(analysis: Analysis, subsystems: Subsystems) -> tuple[GroupView, ...]:
    """Return the threads by stack, as in ``stallscope analyze --json``."""
    return tuple(_group(analysis, item, subsystems) for item in analysis.groups[:MAX_GROUPS])


def _group(analysis: Analysis, item: Group, subsystems: Subsystems) -> GroupView:
    threads = [analysis.capture.threads[index] for index in item.threads]
    raw: Sequence[Frame] = threads[0].frames if threads else ()
    whole = len(raw) == len(item.frames)
    return GroupView(
        count=item.count,
        state=shown(item.state),
        place=pack.place(analysis, item.threads[0]) if item.threads else "",
        doubts=shown(trust(threads)),
        frames=tuple(
            FrameView(
                shown(str(raw[i]) if whole else name),
                shown(pack.where(raw[i])) if whole else "",
                subsystems.colour(name),
            )
            for i, name in enumerate(item.frames[: pack.MAX_FRAMES])
        ),
    )


def _facts(analysis: Analysis) -> Iterator[str]:
    capture = analysis.capture
    host = " ".join(str(capture.host[k]) for k in ("name", "kernel", "arch") if k in capture.host)
    if host:
        yield f"host: {host}"
    if capture.time_ns is not None:
        yield f"time: {utc(capture.time_ns)}"
    if capture.trigger is not None:
        yield why(capture.trigger)
    yield from facts.taken(analysis)
