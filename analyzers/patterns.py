# SPDX-License-Identifier: Apache-2.0
"""The pattern language of signatures; docs/writing-signatures.md is its manual.

Each alternative of each pattern gets one bit. A frame's mask says which of them its name
satisfies, so that matching a stack is integer arithmetic, linear in its frames.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Generic, NamedTuple, TypeVar

import msgspec

from stallscope.analyzers.names import bare

__all__ = ["Index", "Match", "Pattern", "PatternError", "Step", "Vocabulary"]

T = TypeVar("T")

ANY = -1
"""Gap of a step: any number of frames may be in between."""

MAX_STEPS = 24
MAX_STARS = 3
_NAME_CACHE = 200_000


class PatternError(ValueError):
    """A pattern cannot be parsed; the text says why."""


class Step(msgspec.Struct, frozen=True):
    """One frame of a pattern: the bit of its alternatives, and the gap before it."""

    bit: int
    gap: int


class Match(NamedTuple):
    """Where a pattern matched a stack. ``price``: how many strange frames it skipped."""

    first: int
    last: int
    price: int


class Pattern(msgspec.Struct, frozen=True):
    """A sequence of frames, innermost first. ``anchored``: it starts where the waiting ends."""

    text: str
    steps: tuple[Step, ...]
    need: int
    without: int
    anchored: bool

    def match(
        self,
        masks: Sequence[int],
        helpers: Sequence[bool],
        strange: Sequence[bool] = (),
        slack: int = 0,
    ) -> Match | None:
        """Return where the frames matched, None where they do not.

        ``helpers`` says which frames only carry a wait out: they may stand between any two
        frames of a pattern, and before an anchored one. ``strange`` says which frames nothing is
        known of: so many as ``slack`` may stand there as well.
        """
        if self.without and any(mask & self.without for mask in masks):
            return None
        first = 1 << self.steps[0].bit
        at: dict[int, tuple[int, int]] = {}
        price = 0
        for index, mask in enumerate(masks):
            if mask & first:
                at[index] = price, index
            if self.anchored and not helpers[index]:
                if price == slack or not strange[index]:
                    break
                price += 1
        return self._rest(at, self.steps[1:], masks, helpers, strange, slack)

    def match_leafless(
        self,
        masks: Sequence[int],
        helpers: Sequence[bool],
        strange: Sequence[bool] = (),
        slack: int = 0,
    ) -> Match | None:
        """Match a stack that lost the functions of libc: without the step that stands for them."""
        if len(self.steps) < 2 or (self.without and any(mask & self.without for mask in masks)):
            return None
        step = self.steps[1]
        if step.gap == ANY:
            return None
        at = _advance({-1: (0, 0)}, step, masks, helpers, strange, slack)
        return self._rest(at, self.steps[2:], masks, helpers, strange, slack)

    def _rest(
        self,
        at: dict[int, tuple[int, int]],
        steps: Sequence[Step],
        masks: Sequence[int],
        helpers: Sequence[bool],
        strange: Sequence[bool],
        slack: int,
    ) -> Match | None:
        for step in steps:
            if not at:
                return None
            at = _advance(at, step, masks, helpers, strange, slack)
        if not at:
            return None
        end = min(at)
        price, start = at[end]
        return Match(start, end, price)


def _advance(
    at: dict[int, tuple[int, int]],
    step: Step,
    masks: Sequence[int],
    helpers: Sequence[bool],
    strange: Sequence[bool],
    slack: int,
) -> dict[int, tuple[int, int]]:
    """Return the places of the next step, each with the price and the start of its match."""
    bit = 1 << step.bit
    found: dict[int, tuple[int, int]] = {}
    if step.gap == ANY:
        earliest = min(at)
        for index in range(earliest + 1, len(masks)):
            if masks[index] & bit:
                found[index] = at[earliest]
        return found
    for place, (price, start) in at.items():
        left = slack - price
        skipped = passed = 0
        for index in range(place + 1, len(masks)):
            over = max(0, skipped + passed - step.gap)
            if masks[index] & bit and (index not in found or found[index][0] > price + over):
                found[index] = price + over, start
            if helpers[index]:
                continue
            if left and strange[index]:
                passed += 1
            else:
                skipped += 1
            if skipped > step.gap or skipped + passed > step.gap + left:
                break
    return found


class Index(Generic[T]):
    """Patterns by their outermost element: a stack is compared only with those that it can match.

    Each entry is a pattern and what it is a pattern of.
    """

    def __init__(self, entries: Iterable[tuple[Pattern, T]]) -> None:
        self.entries = tuple(entries)
        self._by_bit: dict[int, list[int]] = {}
        for number, (pattern, _) in enumerate(self.entries):
            self._by_bit.setdefault(1 << pattern.steps[-1].bit, []).append(number)

    def possible(self, present: int) -> list[tuple[Pattern, T]]:
        """Return the entries of which a stack has each element, or each but the innermost one."""
        numbers: list[int] = []
        rest = present
        while rest:
            bit = rest & -rest
            rest ^= bit
            numbers += self._by_bit.get(bit, ())
        numbers.sort()
        found = []
        for number in numbers:
            pattern = self.entries[number][0]
            missing = pattern.need & ~present
            if not missing or missing == 1 << pattern.steps[0].bit:
                found.append(self.entries[number])
        return found


class Vocabulary:
    """All alternatives of a catalog, and which of them match a name."""

    def __init__(self, sets: Mapping[str, Sequence[str]]) -> None:
        self._sets = {name: tuple(members) for name, members in sets.items()}
        self._bits: dict[tuple[str, ...], int] = {}
        self._exact: dict[str, int] = {}
        self._globs: dict[str, list[tuple[tuple[str, ...], bool, int]]] = {}
        self._short_globs: list[tuple[tuple[str, ...], bool, int]] = []
        self._unnamed = 0
        self._cache: dict[str | None, int] = {}

    def element(self, alternatives: Iterable[str]) -> int:
        """Return the bit of a list of names, globs and ``@sets``."""
        names = tuple(sorted(set(self._expand(alternatives, ()))))
        if not names:
            raise PatternError("no name between two commas")
        if names not in self._bits:
            bit = len(self._bits)
            self._bits[names] = bit
            for name in names:
                self._add(name, 1 << bit)
            self._cache.clear()
        return self._bits[names]

    def _expand(self, alternatives: Iterable[str], inside: tuple[str, ...]) -> Iterable[str]:
        for name in alternatives:
            name = name.strip()
            if not name.startswith("@"):
                _check_name(name)
                yield name
                continue
            if name[1:] not in self._sets:
                raise PatternError(f"no set is called {name}")
            if name in inside:
                raise PatternError(f"the set {name} contains itself")
            yield from self._expand(self._sets[name[1:]], (*inside, name))

    def _add(self, name: str, mask: int) -> None:
        if name == "??":
            self._unnamed |= mask
        elif "*" in name:
            parts = tuple(name.split("*"))
            entry = (parts, "<" in name, mask)
            if len(parts[0]) >= 2:
                self._globs.setdefault(parts[0][:2], []).append(entry)
            else:
                self._short_globs.append(entry)
        else:
            self._exact[name] = self._exact.get(name, 0) | mask

    def only(self, mask: int) -> int:
        """Return the bits of the elements of which each name satisfies one of these bits."""
        found = 0
        for names, bit in self._bits.items():
            if all(self.mask(name.replace("*", "")) & mask for name in names):
                found |= 1 << bit
        return found

    def mask(self, name: str | None) -> int:
        """Return the bits that a frame of this normalized name satisfies; None has no name."""
        known = self._cache.get(name)
        if known is not None:
            return known
        mask = self._unnamed if name is None else self._mask(name)
        if len(self._cache) > _NAME_CACHE:
            self._cache.clear()
        self._cache[name] = mask
        return mask

    def _mask(self, name: str) -> int:
        short = bare(name)
        mask = self._exact.get(name, 0)
        if short != name:
            mask |= self._exact.get(short, 0)
        for parts, templates, bit in (*self._globs.get(name[:2], ()), *self._short_globs):
            if _glob(parts, name if templates else short):
                mask |= bit
        return mask

    def pattern(self, text: str, *, anchored: bool) -> Pattern:
        """Compile ``a, b|c, ..., d ! e|f``; raises PatternError."""
        body, bang, without = text.partition("!")
        steps: list[Step] = []
        gap = 0
        for part in body.split(","):
            part = part.strip()
            if part.startswith("..."):
                if gap or not steps:
                    raise PatternError(f"{part!r} must be between two names")
                gap = _gap(part)
                continue
            steps.append(Step(bit=self.element(part.split("|")), gap=gap))
            gap = 0
        if gap:
            raise PatternError("it ends with '...'")
        if len(steps) > MAX_STEPS:
            raise PatternError(f"it has {len(steps)} frames, the limit is {MAX_STEPS}")
        need = 0
        for step in steps:
            need |= 1 << step.bit
        return Pattern(
            text=text,
            steps=tuple(steps),
            need=need,
            without=1 << self.element(without.split("|")) if bang else 0,
            anchored=anchored,
        )


def _gap(part: str) -> int:
    count = part[3:].strip()
    if not count:
        return ANY
    if not count.isdecimal() or not 1 <= int(count) <= 99:
        raise PatternError(f"{part!r}: '...' takes a number from 1 to 99, or none")
    return int(count)


def _check_name(name: str) -> None:
    if not name:
        raise PatternError("an empty name")
    if any(char.isspace() for char in name) and not name.startswith("operator"):
        raise PatternError(f"{name!r} has a blank in it: names are written without arguments")
    if "(" in name.replace("operator()", "").replace("(anonymous namespace)", ""):
        raise PatternError(f"{name!r} has arguments: names are written without them")
    if name.count("*") > MAX_STARS:
        raise PatternError(f"{name!r} has more than {MAX_STARS} '*'")
    if name.strip("*") == "":
        raise PatternError(f"{name!r} matches everything: '...' is the word for that")


def _glob(parts: tuple[str, ...], name: str) -> bool:
    """Match literal parts with anything between them; linear, since the first fit is enough."""
    if not name.startswith(parts[0]) or not name.endswith(parts[-1]):
        return False
    at = len(parts[0])
    end = len(name) - len(parts[-1])
    for part in parts[1:-1]:
        at = name.find(part, at, end)
        if at < 0:
            return False
        at += len(part)
    return at <= end
