# SPDX-License-Identifier: Apache-2.0
"""From an analysis to what rows have of it. It loads the analyzers: the agent's loop must not."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from stallscope.analyzers import subsystems
from stallscope.analyzers.analysis import Analysis, Blocker, Finding
from stallscope.analyzers.names import bare, is_libc, normalize
from stallscope.fleet import clip, likeness
from stallscope.fleet.facts import (
    MAX_FRAMES,
    MAX_GROUPS,
    MAX_NAME,
    Facts,
    NamedStack,
    bounded,
    cut,
)
from stallscope.fleet.tables import FindingPart, ThreadPart
from stallscope.model.incident import UNKNOWN

__all__ = ["facts_of", "functions_of", "shape_functions"]

_BLOCKER = "blocker"
_WAITER = "waiter"
_OTHER = "other"
_ROLES = (_BLOCKER, _WAITER, _OTHER)
_LAST = ("idle", "unseen")
_ADDRESS = re.compile(r"0x[0-9a-f]+|\?\?")
_UNNAMED = re.compile(r"\?\?|\[|<|0x|.*\+0x|.*[./](?:so|c|cc|cpp|h|go|py)\b")
_CARRIERS = frozenset(
    (
        *("pthread", "libc", "malloc", "unwind", "cpp-libraries", "file-io", "memory-io"),
        *("kernel", "sync", "os", "mysys"),
    )
)
"""Subsystems whose functions carry out what others want: they differ from version to version."""
WAITER_FUNCTIONS = 12
"""Of each waiter's stack, the innermost ones: behind them are the statement's own."""
BLOCKER_FUNCTIONS = 2
"""What it does just now differs from incident to incident, and more of it with each frame."""
_START = re.compile(
    r"_?_?start(?:_thread)?|clone3?|_*libc_start\w*|(?:my)?s?q?l?d?_?main|pfs_spawn_thread"
    r"|handle_one_connection|handle_connection\w*|do_handle_one_connection|do_command"
    r"|dispatch_\w+|mysql_parse|mysql_execute_command|mysql_stmt_execute|mysqld_stmt_execute"
    r"|Prepared_statement::\w+|threadpool_\w+|worker_main|tp_callback|process_\w*event\w*"
    r"|std::.*|void std::.*|Runnable::operator\(\)|run_task_to_completion"
    r"|PostmasterMain|ServerLoop|BackendStartup|BackendRun|BackendMain|PostgresMain"
    r"|postmaster_\w+|exec_\w+|Portal\w+|ProcessUtility\w*|standard_\w+|pgss_\w+"
)
"""Outermost functions that all sessions, or all threads, have."""


def facts_of(analysis: Analysis) -> Facts:
    """Return what a fleet keeps of an analysis."""
    stalled, stacks = _groups(analysis)
    main = analysis.findings[0] if analysis.findings else None
    lock_name, lock_kind = ("", "") if main is None else _lock(main)
    functions: tuple[str, ...] = ()
    if main is not None and main.signature is None:
        functions = shape_functions(analysis, main)
    facts = Facts(
        server=analysis.server or "",
        version=analysis.version or "",
        findings=tuple(_finding(analysis, one) for one in analysis.findings),
        stalled=stalled,
        stacks=stacks,
        lock_name=lock_name,
        lock_kind=lock_kind,
        shape=likeness.shape_of(functions),
        shape_functions=functions,
    )
    return cut(bounded(facts))


def _finding(analysis: Analysis, finding: Finding) -> FindingPart:
    lock_name, lock_kind = _lock(finding)
    blocker = finding.blocker
    said = None if blocker is None else blocker.sql
    if finding is analysis.findings[0] and blocker is not None and blocker.thread is not None:
        # The threads of other findings may be those of another capture.
        said = analysis.capture.threads[blocker.thread].query or said
    return FindingPart(
        signature=finding.signature or UNKNOWN,
        title=finding.title,
        kind=finding.impact.kind,
        confidence=finding.confidence,
        threads=finding.threads,
        share=finding.impact.share,
        blocker=_who(blocker),
        statement=clip.statement(said),
        lock_name=lock_name,
        lock_kind=lock_kind,
        victim_of=finding.victim_of or "",
        waited_s=finding.impact.time_s,
    )


def _who(blocker: Blocker | None) -> str:
    """Return name and outermost own function: the same on each server that has the same stall."""
    if blocker is None:
        return ""
    frames = [bare(name) for name in blocker.frames if not _UNNAMED.match(name)]
    own = (name for name in reversed(frames) if not _START.fullmatch(name))
    return clip.text(": ".join(filter(None, (blocker.name, next(own, "")))))


def _lock(finding: Finding) -> tuple[str, str]:
    """Return name and kind of the lock that most wait for."""
    named = [lock for lock in finding.locks if lock.symbol] or list(finding.locks)
    if not named:
        return "", ""
    lock = max(named, key=lambda one: one.waiters)
    return lock.symbol or "", str(lock.kind)


def _groups(analysis: Analysis) -> tuple[tuple[ThreadPart, ...], tuple[NamedStack, ...]]:
    """Return the groups, those of the verdict first and idle ones last, and their stacks."""
    roles = _roles(analysis)
    family = analysis.server or ""
    found: Counter[tuple[int, str, str]] = Counter()
    frames = [_frames(group.frames) for group in analysis.groups]
    keys = [clip.digest((family, *names)) for names in frames]
    for number, group in enumerate(analysis.groups):
        for index in group.threads:
            role = roles.get(index, _OTHER)
            found[number, group.state, role] += analysis.capture.threads[index].count
    order = sorted(
        found, key=lambda one: (_ROLES.index(one[2]), one[1] in _LAST, -found[one], one[0])
    )[:MAX_GROUPS]
    stalled = tuple(
        ThreadPart(keys[number], found[number, state, role], state, role)
        for number, state, role in order
    )
    stacks = {keys[number]: NamedStack(keys[number], frames[number]) for number, _, _ in order}
    return stalled, tuple(stacks.values())


def _roles(analysis: Analysis) -> dict[int, str]:
    if not analysis.findings:
        return {}
    main = analysis.findings[0]
    roles = dict.fromkeys(main.members, _WAITER)
    if main.blocker is not None and main.blocker.thread is not None:
        roles[main.blocker.thread] = _BLOCKER
    return roles


def _frames(names: Sequence[str]) -> tuple[str, ...]:
    """Return the frames of a stack as all servers name them: addresses differ from host to host."""
    return tuple(map(_frame, names[:MAX_FRAMES]))


def _frame(name: str) -> str:
    if _ADDRESS.fullmatch(name):
        return "??"
    # In brackets is what a server says of a thread without a stack.
    return clip.unquoted(name, MAX_NAME) if name.startswith("[") else clip.text(name, MAX_NAME)


def shape_functions(analysis: Analysis, finding: Finding) -> tuple[str, ...]:
    """Return what makes the shape of a stall: functions of its waiters and of its blocker."""
    where = {index: group.frames for group in analysis.groups for index in group.threads}
    counts: Counter[tuple[str, ...]] = Counter()
    for index in finding.members:
        counts[where.get(index, ())] += analysis.capture.threads[index].count
    blocker = () if finding.blocker is None else finding.blocker.frames
    waiters = (functions_of(frames)[:WAITER_FUNCTIONS] for frames, _ in counts.most_common())
    return likeness.marked(waiters, functions_of(blocker)[:BLOCKER_FUNCTIONS])


def functions_of(frames: Iterable[str]) -> tuple[str, ...]:
    """Return the functions of the server in a stack, innermost first, each once: without those of
    libraries and of the kernel, without what all sessions have, and without templates."""
    return tuple(dict.fromkeys(_own(frames)))


def _own(frames: Iterable[str]) -> Iterator[str]:
    known = subsystems.load()
    for frame in frames:
        if _UNNAMED.match(frame):
            continue
        name = bare(normalize(frame))
        if is_libc(name) or known.of(name) in _CARRIERS or _START.fullmatch(name):
            continue
        yield name
