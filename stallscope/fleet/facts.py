# SPDX-License-Identifier: Apache-2.0
"""What the analysis of an incident's captures says, as rows have it: the process that names
captures makes it (fleet/analysis.py), and the agent, which loads no analyzers, ships it."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from stallscope.fleet import clip
from stallscope.fleet.tables import FindingPart, ThreadPart

__all__ = ["MAX_BYTES", "Facts", "NamedStack", "bounded", "cut"]

MAX_BYTES = 512 << 10
"""Of facts as JSON: of larger ones stacks are left out, those of most threads last."""
MAX_FINDINGS = 20
MAX_GROUPS = 200
LEAST_GROUPS = 20
"""Are left whatever their size is: the blocker and the waiters come first."""
MAX_FRAMES = 200
MAX_NAME = 300
MAX_FUNCTIONS = 64


class NamedStack(msgspec.Struct, frozen=True):
    """A stack and its hash; frames innermost first."""

    hash: str
    frames: tuple[str, ...]


class Facts(msgspec.Struct, frozen=True):
    """Of all captures of an incident together."""

    server: str = ""
    version: str = ""
    findings: tuple[FindingPart, ...] = ()
    stalled: tuple[ThreadPart, ...] = ()
    stacks: tuple[NamedStack, ...] = ()
    lock_name: str = ""
    lock_kind: str = ""
    shape: str = ""
    shape_functions: tuple[str, ...] = ()


def bounded(facts: Facts) -> Facts:
    """Return the same within bounds, each text one printable line, without literals."""
    stalled = tuple(
        ThreadPart(
            stack=clip.text(one.stack, 16),
            count=clip.integer(one.count),
            state=clip.text(one.state, 20),
            role=clip.text(one.role, 20),
        )
        for one in facts.stalled[:MAX_GROUPS]
    )
    return Facts(
        server=clip.text(facts.server, 40),
        version=clip.text(facts.version, 100),
        findings=tuple(map(_finding, facts.findings[:MAX_FINDINGS])),
        stalled=stalled,
        stacks=_used(facts.stacks, stalled),
        lock_name=clip.unquoted(facts.lock_name),
        lock_kind=clip.text(facts.lock_kind, 40),
        shape=clip.text(facts.shape, 16),
        shape_functions=tuple(
            clip.text(one, MAX_NAME) for one in facts.shape_functions[:MAX_FUNCTIONS]
        ),
    )


def cut(facts: Facts, most: int = MAX_BYTES) -> Facts:
    """Return the same with fewer groups and frames, until it has at most so many bytes as JSON."""
    frames = MAX_FRAMES
    while len(msgspec.json.encode(facts)) > most:
        groups = len(facts.stalled) // 2
        if groups >= LEAST_GROUPS:
            stalled = facts.stalled[:groups]
            stacks = _used(facts.stacks, stalled)
        elif frames > 1:
            frames //= 2
            stalled = facts.stalled
            stacks = tuple(NamedStack(one.hash, one.frames[:frames]) for one in facts.stacks)
        else:
            return Facts(facts.server, facts.version)
        facts = msgspec.structs.replace(facts, stalled=stalled, stacks=stacks)
    return facts


def _used(stacks: Sequence[NamedStack], stalled: Sequence[ThreadPart]) -> tuple[NamedStack, ...]:
    """Return each stack once that groups have, in bounds."""
    asked = {one.stack for one in stalled}
    known: dict[str, NamedStack] = {}
    for one in stacks:
        key = clip.text(one.hash, 16)
        if key in asked and key not in known:
            frames = tuple(clip.text(name, MAX_NAME) for name in one.frames[:MAX_FRAMES])
            known[key] = NamedStack(key, frames)
    return tuple(known.values())


def _finding(one: FindingPart) -> FindingPart:
    return FindingPart(
        signature=clip.text(one.signature, 100),
        title=clip.text(one.title),
        kind=clip.text(one.kind, 20),
        confidence=clip.number(one.confidence, 3),
        threads=clip.integer(one.threads),
        share=clip.number(one.share, 3),
        blocker=clip.text(one.blocker),
        statement=clip.statement(one.statement),
        lock_name=clip.unquoted(one.lock_name),
        lock_kind=clip.text(one.lock_kind, 40),
        victim_of=clip.text(one.victim_of, 100),
        waited_s=clip.number_or_none(one.waited_s, 3),
    )
