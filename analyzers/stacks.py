# SPDX-License-Identifier: Apache-2.0
"""Stacks as analyzers see them: equal ones once, with names, patterns and waits worked out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import NamedTuple

import msgspec

from stallscope.analyzers import subsystems, waits
from stallscope.analyzers.catalog import Catalog, Idle, Signature
from stallscope.analyzers.names import display, normalize
from stallscope.analyzers.patterns import Match, Pattern
from stallscope.model.capture import Capture, Frame

__all__ = ["MAX_FRAMES", "Shape", "Shapes", "Stacks"]

MAX_FRAMES = 1024
"""The most frames of one stack that patterns are matched with."""


MOST_SLACK = waits.MOST_STRANGE
STRANGE_DEPTH = 16
"""A wait's own functions are among the innermost frames."""


class Shape(msgspec.Struct, frozen=True, eq=False):
    """One distinct stack, innermost first. ``names`` has None where there is no symbol."""

    names: tuple[str | None, ...]
    frames: tuple[str, ...]
    """The same for people."""
    masks: tuple[int, ...]
    present: int
    helpers: tuple[bool, ...]
    """What patterns pass over: frames that only carry a wait out, and all but the first of equal
    ones in a row, as overloads, inlining and recursion make them."""
    wait: waits.Wait | None
    depth: int
    """Index of the first frame that says what the thread wants, after those that carry the wait."""
    idle: Idle | None
    session: bool
    waiter_of: tuple[Signature, ...]
    """Signatures whose waiters have such a stack, in order of precedence."""
    vague: frozenset[str]
    """Those of them that it fits only where a holder is seen."""
    price: int
    """How many strange frames the patterns of the waiters skipped, and 1 for libc's own where
    they are missing."""
    leafless: bool
    """It begins with functions that only wait, and libc's, which they call, are missing."""
    holder_of: dict[str, tuple[int, ...]]
    """Signature id → indexes of its holder entries that fit."""

    def fits(self, patterns: Sequence[Pattern]) -> bool:
        """Return whether one of the patterns matches."""
        return _fits(patterns, self.present, self.masks, self.helpers)

    def site(self) -> str:
        """Return the frame that says what the thread wants, for people."""
        for name in self.names[self.depth :]:
            if name is not None:
                return name
        return self.frames[min(self.depth, len(self.frames) - 1)] if self.frames else "??"

    def significant(self, count: int = 4) -> tuple[str, ...]:
        """Return the frames that best show what the thread does, innermost first."""
        start = min(self.depth, max(0, len(self.frames) - 1))
        return self.frames[start : start + count]

    def excerpt(self, count: int = 4) -> str:
        """Return the same frames as text for a sentence."""
        return " < ".join(self.significant(count)) or "no frames"


class Shapes:
    """The shapes of all stacks that were asked for; several captures share them."""

    def __init__(self, catalog: Catalog) -> None:
        self.catalog = catalog
        self._names: dict[int, tuple[str | None, str]] = {}
        self._by_frames: dict[int, Shape] = {}
        self._by_key: dict[tuple[str, ...], Shape] = {}

    def __len__(self) -> int:
        return len(self._by_key)

    def distinct(self) -> Sequence[Shape]:
        """Return each shape once."""
        return tuple(self._by_key.values())

    def of(self, stack: tuple[Frame, ...]) -> Shape:
        """Return the shape of a stack of a capture that lives as long as this."""
        # Threads with one stack share the tuple of frames, and the capture keeps it alive.
        shape = self._by_frames.get(id(stack))
        if shape is None:
            pairs = [self.name(frame) for frame in stack]
            key = tuple(text for _, text in pairs)
            shape = self._by_key.get(key)
            if shape is None:
                shape = _shape(tuple(name for name, _ in pairs), key, self.catalog)
                self._by_key[key] = shape
            self._by_frames[id(stack)] = shape
        return shape

    def name(self, frame: Frame) -> tuple[str | None, str]:
        """Return the name of a frame, and the same for people."""
        pair = self._names.get(id(frame))
        if pair is None:
            name = normalize(frame.symbol) if frame.symbol else None
            pair = self._names[id(frame)] = (name, name or display(frame))
        return pair


class Stacks:
    """The shapes of all threads of a capture; ``shapes[i]`` belongs to ``capture.threads[i]``."""

    def __init__(self, capture: Capture, known: Shapes) -> None:
        self._known = known
        self.shapes = tuple(known.of(thread.frames) for thread in capture.threads)
        self._capture = capture

    @cached_property
    def releases(self) -> tuple[Shape, ...]:
        """The stacks of the releases: what only lets go or wakes is a helper in them."""
        catalog = self._known.catalog
        out = []
        for release in self._capture.releases:
            pairs = [self._known.name(frame) for frame in release.frames]
            names, frames = tuple(p[0] for p in pairs), tuple(p[1] for p in pairs)
            out.append(_shape(names, frames, catalog, catalog.wakes))
        return tuple(out)

    @cached_property
    def samples(self) -> tuple[Shape, ...]:
        """The stacks of the samples."""
        return tuple(self._known.of(sample.frames) for sample in self._capture.samples)

    def distinct(self) -> Sequence[Shape]:
        """Return each shape once; those of other captures of the burst are among them."""
        return self._known.distinct()


def _fits(
    patterns: Sequence[Pattern], present: int, masks: Sequence[int], helpers: Sequence[bool]
) -> bool:
    for pattern in patterns:  # a generator would double the time that stacks take
        if pattern.need & present == pattern.need and pattern.match(masks, helpers):
            return True
    return False


class _Look(NamedTuple):
    """A stack as patterns see it."""

    present: int
    masks: Sequence[int]
    helpers: Sequence[bool]
    strange: Sequence[bool]
    leafless: bool
    carriers: int
    sessions: int

    def fits(self, patterns: Sequence[Pattern], slack: int) -> bool:
        """Return whether one of the patterns matches at this price."""
        if not slack:
            return _fits(patterns, self.present, self.masks, self.helpers)
        for pattern in patterns:
            missing = pattern.need & ~self.present
            if missing and (not self.leafless or missing & (missing - 1)):
                continue
            if not missing:
                match = pattern.match(self.masks, self.helpers, self.strange, slack)
                if match is not None and self.says(pattern, match):
                    return True
            if self.leafless and pattern.anchored and self.carriers >> pattern.steps[0].bit & 1:
                if missing & ~(1 << pattern.steps[0].bit):
                    continue
                if pattern.match_leafless(self.masks, self.helpers, self.strange, slack - 1):
                    return True
        return False

    def says(self, pattern: Pattern, match: Match) -> bool:
        """Return whether a match says more than that a session waits behind a strange frame."""
        if not match.price or not pattern.anchored or len(pattern.steps) > 2:
            return True
        return not self.masks[match.last] & self.sessions


def _shape(
    names: tuple[str | None, ...], frames: tuple[str, ...], catalog: Catalog, wakes: int = 0
) -> Shape:
    vocabulary = catalog.vocabulary
    masks = tuple(vocabulary.mask(name) for name in names[:MAX_FRAMES])
    present = 0
    for mask in masks:
        present |= mask
    helpers = [bool(mask & (catalog.helpers | wakes)) for mask in masks]
    for index in range(waits.skip_unnamed(names, helpers)):
        helpers[index] = True
    strange = [_is_strange(name, mask) for name, mask in zip(names, masks, strict=False)]
    if True in strange[:STRANGE_DEPTH]:
        for index in waits.skip_strange(masks, helpers, strange, catalog.waiting):
            helpers[index] = True
    wait, depth = waits.find(names, masks, helpers, catalog)
    for index in range(1, len(masks)):
        if names[index] is not None and names[index] == names[index - 1]:
            helpers[index] = True

    leafless = depth > 0 and not present & catalog.leaves
    look = _Look(present, masks, helpers, strange, leafless, catalog.carriers, catalog.sessions)
    most = MOST_SLACK if leafless or True in strange else 0
    price = 0
    idle = _nameless(names, masks, depth, wait, catalog)
    idles = catalog.idles.possible(present)
    waiters = catalog.waiters.possible(present)
    waiter_of: list[Signature] = []
    while True:
        if idle is None:
            idle = next((item for pattern, item in idles if look.fits((pattern,), price)), None)
        waiter_of = _owners(s for pattern, s in waiters if look.fits((pattern,), price))
        if idle is not None or waiter_of or price == most:
            break
        price += 1
    vague = {
        s.id for s in waiter_of if len(s.sure) != len(s.waiters) and not look.fits(s.sure, price)
    }
    holder_of: dict[str, tuple[int, ...]] = {}
    slack = MOST_SLACK if True in strange else 0
    for pattern, (signature, number) in catalog.holders.possible(present):
        before = holder_of.get(signature.id, ())
        if number in before:
            continue
        if look.fits((pattern,), 0) or (slack and look.fits((pattern,), slack)):
            holder_of[signature.id] = (*before, number)
    return Shape(
        names=names,
        frames=frames,
        masks=masks,
        present=present,
        helpers=tuple(helpers),
        wait=wait,
        depth=depth,
        idle=idle,
        session=bool(present & catalog.sessions),
        waiter_of=tuple(waiter_of),
        vague=frozenset(vague),
        price=price if waiter_of else 0,
        leafless=leafless and bool(waiter_of),
        holder_of=holder_of,
    )


def _owners(signatures: Iterable[Signature]) -> list[Signature]:
    """Return each signature once, in their order."""
    return list({signature.id: signature for signature in signatures}.values())


def _is_strange(name: str | None, mask: int) -> bool:
    """Return whether nothing is known of a frame: no signature and no subsystem has its name."""
    return name is None or (not mask and subsystems.load().of(name) == subsystems.OTHER)


def _nameless(
    names: Sequence[str | None],
    masks: Sequence[int],
    depth: int,
    wait: waits.Wait | None,
    catalog: Catalog,
) -> Idle | None:
    """Return the idle entry of a thread that waits, and of which nothing else has a name."""
    if wait is None or wait.contends or wait.kind in waits.DISK or catalog.nameless is None:
        return None
    for name, mask in zip(names[depth:], masks[depth:], strict=False):
        if name is not None and not mask & catalog.thread_start:
            return None
    return catalog.nameless
