# SPDX-License-Identifier: Apache-2.0
"""What was true, what the pager got, and whether the one was said in the other.

All times are seconds of the monotonic clock of this process, which makes the stalls, owns the
clients that wait, and receives the notifications.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from tests.bench.agent_faultpager import Post

__all__ = ["GOAL_SECONDS", "Judgement", "Span", "Truth", "judge", "outline"]

GOAL_SECONDS = 5.0
"""From the beginning or the end of a stall to its notification, where no fault is between."""
SEEN_SECONDS = 4.0
"""A stall of which less was visible at a time need not be alerted."""
OWN = {"server-ended": "down", "blind": "blind"}
"""Triggers of alerts that are of no stall, and of what they are."""
FOREVER = float("inf")


class Span(NamedTuple):
    """From when to when something was so."""

    begin: float
    end: float


class Truth(msgspec.Struct):
    """What happened, and when."""

    waits: list[Span] = []
    """A client waited, for a lock or for a server that hangs."""
    downs: list[Span] = []
    """The server had ended, until it answered again."""
    stops: list[Span] = []
    """Those of them in which its owner had shut it down."""
    unseen: list[Span] = []
    """The agent could not see, or was not there."""
    unheard: list[Span] = []
    """What it sends did not reach the pager."""
    blinds: list[Span] = []
    """It had seen nothing for longer than the threshold of the trigger ``blind``."""
    dim: list[Span] = []
    """It may have: not for much longer, or for about as long."""


class Judgement(msgspec.Struct, frozen=True):
    """What is right and wrong with one run."""

    wrong: tuple[str, ...]
    once: bool
    """Whether each stall was alerted exactly once."""
    only_when_over: bool
    """Whether each alert ended, and only when its stall was over."""
    ends_while_stalled: int
    begin_late: tuple[float, ...]
    """Seconds from when a stall could be notified to its notification."""
    end_late: tuple[float, ...]
    repeated: int


class _Alert(msgspec.Struct):
    """All notifications of one key."""

    key: str
    kind: str
    trigger: str
    opened: float
    ended: float = FOREVER
    severities: list[str] = []
    posts: int = 0

    def overlaps(self, span: Span) -> bool:
        return self.opened < span.end and self.ended > span.begin


def judge(truth: Truth, posts: Sequence[Post]) -> Judgement:
    """Compare what the pager got with what happened."""
    alerts = _alerts(posts)
    stalls = _stalls(truth)
    blocks = sorted([*truth.unseen, *truth.unheard])
    found = _Findings(truth, blocks)
    claimed: set[str] = set()
    for stall in stalls:
        mine = [one for one in alerts if one.kind == "stall" and found.is_of(one, stall, stalls)]
        claimed |= {one.key for one in mine}
        found.stall(stall, mine, stalls)
    for what, spans in (("down", truth.downs), ("blind", truth.blinds)):
        for span in spans:
            mine = [one for one in alerts if one.kind == what and found.is_of(one, span, spans)]
            claimed |= {one.key for one in mine}
            found.own(what, span, mine)
    for one in alerts:
        dim = one.kind == "blind" and any(map(one.overlaps, truth.dim))
        if one.key not in claimed and not dim:
            found.wrong.append(f"an alert of nothing: {one.trigger} at {one.opened:.1f}")
        if "critical" in one.severities and one.severities[-1] == "warning":
            found.wrong.append(f"{one.trigger}: from critical to warning")
    repeated = sum(one.posts for one in alerts) - len(alerts)
    repeated -= sum(one.ended < FOREVER for one in alerts)
    return found.judgement(repeated)


class _Findings:
    """Gathers what is wrong."""

    def __init__(self, truth: Truth, blocks: Sequence[Span]) -> None:
        self.truth = truth
        self.blocks = blocks
        self.wrong: list[str] = []
        self.once = True
        self.only_when_over = True
        self.ends_while_stalled = 0
        self.begin_late: list[float] = []
        self.end_late: list[float] = []

    def judgement(self, repeated: int) -> Judgement:
        return Judgement(
            tuple(self.wrong),
            self.once,
            self.only_when_over,
            self.ends_while_stalled,
            tuple(self.begin_late),
            tuple(self.end_late),
            repeated,
        )

    def free(self, at: float, downs: Sequence[Span] = ()) -> float:
        """Return from when on nothing was between the server and the pager, for as long as the goal
        allows. ``downs``: when there was no server that could be seen to be well."""
        for block in sorted([*self.blocks, *downs]):
            if block.begin < at + GOAL_SECONDS and block.end > at:
                at = block.end
        return at

    def is_of(self, alert: _Alert, span: Span, spans: Sequence[Span]) -> bool:
        """Return whether an alert is of this stall: not of an earlier one, whose end was in time,
        nor of a later one."""
        if alert.ended <= span.begin or alert.opened > self.free(span.end) + GOAL_SECONDS:
            return False
        begun = [one for one in spans if one.begin <= alert.opened]
        if not begun:
            return False
        first = begun[-1]
        if first == span:
            return True
        in_time = self.free(first.end) + GOAL_SECONDS
        return first.begin < span.begin and alert.ended > in_time

    def stall(self, stall: Span, mine: Sequence[_Alert], stalls: Sequence[Span]) -> None:
        if len(mine) != 1 and (mine or self._is_visible(stall)):
            self.once = False
            keys = ", ".join(f"{one.trigger} at {one.opened - stall.begin:.1f} s" for one in mine)
            keys = keys or f"of {stall.end - stall.begin:.1f} s"
            self.wrong.append(f"stall: {keys}: alerted {len(mine)} times")
        if mine:
            self._begin("stall", stall, min(one.opened for one in mine))
        for one in mine:
            if not self._goes_on(one, stall, stalls):
                self._end("stall", stall, one)

    def own(self, what: str, span: Span, mine: Sequence[_Alert]) -> None:
        if len(mine) != 1:
            self.once = False
            self.wrong.append(f"{what}: alerted {len(mine)} times")
        if mine:
            self._begin(what, span, min(one.opened for one in mine))
        for one in mine:
            self._end(what, span, one)
            if what == "down" and one.severities[0] not in self._severities(span):
                self.wrong.append(f"{what}: {one.severities[0]}")

    def _severities(self, down: Span) -> set[str]:
        """Return what the end of a server can be; an agent that was not there does not know how it
        ended."""
        if down not in self.truth.stops:
            return {"critical"}
        near = Span(down.begin - GOAL_SECONDS, down.begin + GOAL_SECONDS)
        away = any(one.begin < near.end and one.end > near.begin for one in self.truth.unseen)
        return {"warning", "critical"} if away else {"warning"}

    def _begin(self, what: str, span: Span, opened: float) -> None:
        late = max(0.0, opened - self.free(span.begin))
        self.begin_late.append(late)
        if late > GOAL_SECONDS:
            self.wrong.append(f"{what}: alerted {late:.1f} s late")

    def _end(self, what: str, span: Span, alert: _Alert) -> None:
        if alert.ended == FOREVER:
            self.only_when_over = False
            self.wrong.append(f"{what}: {alert.trigger}: never over")
            return
        if alert.ended < span.end:
            self.only_when_over = False
            self.ends_while_stalled += 1
            early = span.end - alert.ended
            self.wrong.append(f"{what}: over {early:.1f} s before it was ({alert.trigger})")
            return
        late = max(0.0, alert.ended - self.free(span.end, self.truth.downs))
        self.end_late.append(late)
        if late > GOAL_SECONDS:
            self.wrong.append(f"{what}: over {late:.1f} s late")

    def _goes_on(self, alert: _Alert, stall: Span, stalls: Sequence[Span]) -> bool:
        """Return whether another stall began before the end of this one had to be said."""
        in_time = self.free(stall.end) + GOAL_SECONDS
        return any(stall.end < one.begin < min(in_time, alert.ended) for one in stalls)

    def _is_visible(self, stall: Span) -> bool:
        """Return whether enough of a stall could be seen at a time."""
        at = stall.begin
        for block in [*sorted(self.truth.unseen), Span(stall.end, stall.end)]:
            if min(block.begin, stall.end) - at >= SEEN_SECONDS:
                return True
            at = max(at, block.end)
        return False


def _alerts(posts: Iterable[Post]) -> list[_Alert]:
    found: dict[str, _Alert] = {}
    for post in sorted(posts, key=lambda post: post.at):
        kind = OWN.get(post.trigger, "stall")
        one = found.setdefault(post.key, _Alert(post.key, kind, post.trigger, post.at))
        one.posts += 1
        one.severities.append(post.severity)
        if post.event == "end":
            one.ended = min(one.ended, post.at)
    return list(found.values())


def _stalls(truth: Truth) -> list[Span]:
    """Return the stalls: waits that overlap are one. One that its server's end ended is over when
    a server answers again."""
    merged: list[Span] = []
    for wait in sorted(truth.waits):
        end = wait.end
        for down in truth.downs:
            if wait.begin < down.begin < wait.end + 1.0:
                end = max(end, down.end)
        if merged and wait.begin <= merged[-1].end:
            merged[-1] = Span(merged[-1].begin, max(merged[-1].end, end))
        else:
            merged.append(Span(wait.begin, end))
    return merged


def outline(posts: Iterable[Post]) -> str:
    """Return what the pager got, in words: ``critical: metadata-lock; over: metadata-lock``."""
    names: dict[str, str] = {}
    severe: dict[str, str] = {}
    words: list[str] = []
    for post in sorted(posts, key=lambda post: post.at):
        name = names.setdefault(post.key, post.trigger)
        before = severe.setdefault(post.key, "")
        severe[post.key] = post.severity
        if post.event == "end" and f"over: {name}" not in words[-1:]:
            words.append(f"over: {name}")
        elif post.severity != before:
            words.append(f"{'now ' if before else ''}{post.severity}: {name}")
    return "; ".join(words) or "nothing"
