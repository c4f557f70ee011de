# SPDX-License-Identifier: Apache-2.0
"""Capture targets whose stacks change all the time, and say of each stack whether it can be right.

A target prints every chain of functions that a thread of it can be in. A stack is wrong that is no
unbroken part of one of them, which is what a copy of two moments gives.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from stallscope.model import capturefile
from stallscope.model.capture import Label, Thread
from tests.support.servers import Late, wait_until
from tests.support.serving import ask, serving
from tests.support.targets import (
    Target,
    TargetError,
    own_frames,
    target_path,
    trouble_left,
    without_plt,
)

__all__ = ["KINDS", "Kind", "Seen", "available", "capture_stacks"]

MORE_STACK = re.compile(r"__(generic_)?(more|release)stack|allocate_segment|release_memory")
"""GCC's functions that get the next piece of a split stack; they are linked into the target."""
LEVELS = [f"level_{nr}" for nr in range(5, -1, -1)]
MAX_EXAMPLES = 5


@dataclass(frozen=True)
class Kind:
    """A target, and how it is captured. ``chains`` are those that it does not print itself."""

    name: str
    target: str
    arguments: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    listens: bool = True
    chains: tuple[tuple[str, ...], ...] = ()
    others: tuple[str, ...] = ()
    """Other programs than the target that the process may have executed."""
    reason: str = "live-reads"
    """Why stacks of threads that slept are raced, where that has to be seen; or empty."""
    sampled: bool = True
    """Samples of threads on a CPU are right: nobody else writes to their stacks meanwhile."""


def execer_chains() -> tuple[tuple[str, ...], ...]:
    threads = [("wait_pause", *LEVELS, root) for root in ("execer_thread", "other_thread")]
    mains = [(name, "main") for name in ("target_thread", "target_ready", "target_die")]
    # What the C library's start-up files add, some of it without unwind information.
    starts = [("_init",), ("register_tm_clones", "frame_dummy")]
    return (*threads, *mains, *starts)


CHURN_CHAINS = (
    ("churn_work", *LEVELS, "churn_main"),
    ("wait_mutex", *LEVELS, "stay_main"),
    ("maker_main",),
    ("target_read_command", "target_serve", "main"),
)
NAP_NS = "50000"
"""So long that other processes get a CPU, and not so long that a capture is over before."""
SMALL_COPY = ("--max-stack", "4096")

KINDS = {
    kind.name: kind
    for kind in (
        Kind("signal", "stacks", ("signal", "4", NAP_NS)),
        Kind("segments", "stacks", ("segments", "4", NAP_NS)),
        Kind("coroutine", "stacks", ("coroutine", "4", NAP_NS)),
        Kind("split", "split", ("4", NAP_NS)),
        Kind("long", "flip", ("4", NAP_NS), SMALL_COPY),
        Kind("vfork", "stacks", ("vfork", "4", NAP_NS), reason="vfork", sampled=False),
        Kind("exit", "stacks", ("exit", "4", NAP_NS), reason="exit"),
        Kind("clone", "churn", ("2000", "4"), chains=CHURN_CHAINS, reason=""),
        Kind(
            "exec",
            "execer",
            ("4000", "{execer2}"),
            listens=False,
            chains=execer_chains(),
            others=("execer2",),
            reason="",
        ),
    )
}


@dataclass
class Seen:
    """What captures of a target held: stacks by label and by whether they can be right."""

    captures: int = 0
    refused: int = 0
    """Answers that say that the program changed meanwhile."""
    stacks: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    """Why stacks of threads that slept are raced."""
    live: int = 0
    """Stacks that are verified or truncated although some of it was read later."""
    harm: list[str] = field(default_factory=list)
    elapsed_ms: list[float] = field(default_factory=list)
    exact: int = 0
    """Stacks that are said to be exact, and can be right."""
    wrong_count: int = 0
    """Stacks that are said to be exact, and are wrong."""
    wrong: list[str] = field(default_factory=list)
    """The first few of those."""

    def count(self, label: Label, verdict: str) -> int:
        return self.stacks[f"{label} {verdict}"]


def available(kind: Kind) -> str | None:
    """Return why the target is not here; None: it is."""
    try:
        target_path(kind.target)
    except TargetError as error:
        return str(error)
    return None


def is_part(names: Sequence[str], chain: Sequence[str], complete: bool) -> bool:
    """Return whether these are frames of the chain in a row, and where it is complete to its
    end."""
    length = len(names)
    places = range(len(chain) - length + 1)
    if complete:
        places = places[-1:]
    return any(list(chain[at : at + length]) == list(names) for at in places)


class Judge:
    """Says of a stack whether it can be right."""

    def __init__(self, kind: Kind, chains: Sequence[Sequence[str]]) -> None:
        self.chains = [*kind.chains, *chains]
        self.modules = [f"target-{name}" for name in (kind.target, *kind.others)]
        self.begins = bool(kind.others)
        self.exact = {Label.VERIFIED, Label.TRUNCATED}
        if kind.sampled:
            self.exact.add(Label.RUNNING)

    def verdict(self, thread: Thread) -> str:
        """Return ``right``, ``wrong`` or, without any frame of the target, ``none``."""
        unknown = [frame.module is None for frame in thread.frames if not frame.kernel]
        # A program that has just begun runs code that was not mapped yet when its maps were read.
        short = self.begins and thread.unwind == "no-cfi" and not any(unknown[:-1])
        if any(unknown) and not short:
            return "wrong"
        names = [
            name
            for name in without_plt(own_frames(thread, *self.modules))
            if not MORE_STACK.search(name)
        ]
        if not names:
            return "none"
        complete = thread.unwind == "complete"
        return "right" if any(is_part(names, c, complete) for c in self.chains) else "wrong"


def describe(thread: Thread) -> str:
    call = thread.syscall.nr if thread.syscall else "-"
    frames = " < ".join(str(frame) for frame in thread.frames)
    return (
        f"{thread.label} {thread.state} call {call} {thread.unwind},"
        f" {thread.live_reads} live reads: {frames}"
    )


def look_at(judge: Judge, threads: Sequence[Thread], seen: Seen) -> None:
    for thread in threads:
        verdict = judge.verdict(thread)
        seen.stacks[f"{thread.label} {verdict}"] += 1
        if thread.label_reason is not None:
            seen.reasons[thread.label_reason] += 1
        if thread.label not in judge.exact:
            continue
        seen.live += thread.live_reads > 0
        seen.exact += verdict == "right"
        seen.wrong_count += verdict == "wrong"
        if verdict == "wrong" and len(seen.wrong) < MAX_EXAMPLES:
            seen.wrong.append(describe(thread))


def check_unharmed(target: Target, before: dict[str, int], seen: Seen) -> None:
    """Note what the captures did to the target."""
    if not target.running():
        seen.harm.append("it has ended")
        return
    seen.harm += trouble_left(target.pid)
    if not target.listens:
        return

    def has_turned() -> bool:
        after = target.ask("turns")
        return all(after[name] > before[name] for name in ("turns", "made") if name in after)

    # On a busy machine a turn can take longer than all captures.
    with contextlib.suppress(Late):
        wait_until(has_turned, "its threads have turned")
    after = target.ask("turns")
    for name in ("turns", "made"):
        if name in after and after[name] <= before[name]:
            seen.harm.append(f"it stands still: {before} and {after}")
    if after.get("interrupted"):
        seen.harm.append(f"{after['interrupted']} calls were interrupted")


def capture_stacks(
    kind: Kind,
    backend: str,
    captures: int,
    progress: Callable[[int], None] | None = None,
) -> Seen:
    """Capture a target so often with one serving probe, and check each stack."""
    seen = Seen()
    paths = {name: str(target_path(name)) for name in kind.others}
    arguments = [argument.format(**paths) for argument in kind.arguments]
    with Target(kind.target, *arguments, listens=kind.listens) as target:
        judge = Judge(kind, [f.frames or () for f in target.facts if f.fact == "chain"])
        before = target.ask("turns") if kind.listens else {}
        with serving(target.pid, backend, *kind.options) as process:
            for nr in range(captures):
                if progress:
                    progress(nr + 1)
                lines = ask(process, "snap")
                seen.captures += 1
                if json.loads(lines[-1])["type"] == "error":
                    seen.refused += 1
                    continue
                capture = capturefile.loads(b"".join(lines), "serve")
                seen.elapsed_ms.append((capture.elapsed_ns or 0) / 1e6)
                look_at(judge, capture.threads, seen)
        check_unharmed(target, before, seen)
    return seen
