# SPDX-License-Identifier: Apache-2.0
"""The pattern language: adjacency, gaps, helpers, exclusions, anchors, globs, sets, mistakes."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stallscope.analyzers.patterns import PatternError, Vocabulary
from tests.unit.costs import cpu_seconds

HELPERS = ("futex", "pthread_mutex_lock")


def matches(pattern: str, stack: str, *, anchored: bool = False) -> bool:
    vocabulary = Vocabulary({"helper": HELPERS, "page": ("buf_page_*", "mtr_t::page_lock")})
    compiled = vocabulary.pattern(pattern, anchored=anchored)
    names = [None if name == "??" else name for name in stack.split(", ")]
    masks = [vocabulary.mask(name) for name in names]
    return compiled.match(masks, [name in HELPERS for name in names]) is not None


@pytest.mark.parametrize(
    ("pattern", "stack", "expected"),
    [
        ("a", "x, a, y", True),
        ("a", "x, y", False),
        ("a, b", "a, b", True),
        ("a, b", "a, x, b", False),
        ("a, b", "b, a", False),
        ("a, b", "a, futex, pthread_mutex_lock, b", True),
        ("a, ..., b", "a, x, y, z, b", True),
        ("a, ..., b", "a, b", True),
        ("a, ..., b", "b, x, a", False),
        ("a, ...2, b", "a, x, y, b", True),
        ("a, ...2, b", "a, x, y, z, b", False),
        ("a, ...1, b", "a, futex, x, futex, b", True),
        ("a|b, c", "b, c", True),
        ("a, ..., b, c", "a, b, x, b, c", True),
        ("a, a", "a, a", True),
        ("a, a", "a, x", False),
        ("r, ..., o", "r, r, r, o", True),
        ("a ! z", "a, b", True),
        ("a ! z", "z, x, a", False),
        ("a ! z|b", "a, b", False),
        ("a, ??, b", "a, ??, b", True),
        ("a, ??, b", "a, x, b", False),
        ("@page", "buf_page_get_gen", True),
        ("@page|a", "a", True),
        ("@page", "bufpage", False),
        ("lock_*_wait", "lock_rec_wait", True),
        ("lock_*_wait", "lock_wait", False),
        ("*::enter", "Mutex::enter", True),
        ("M::enter", "M<A<B>>::enter", True),
        ("M<true>::enter", "M<true>::enter", True),
        ("M<true>::enter", "M<false>::enter", False),
        ("M<*>::enter", "M<false>::enter", True),
        ("operator new", "operator new", True),
        ("helper, x", "helper, x", True),
    ],
)
def test_matching(pattern: str, stack: str, expected: bool) -> None:
    assert matches(pattern, stack) is expected


@pytest.mark.parametrize(
    ("pattern", "stack", "expected"),
    [
        ("open_table", "futex, pthread_mutex_lock, open_table", True),
        ("pthread_mutex_lock, open_table", "futex, pthread_mutex_lock, open_table", True),
        ("open_table", "futex, my_malloc, open_table", False),
        ("open_table", "open_table", True),
        ("my_malloc, open_table", "futex, my_malloc, open_table", True),
    ],
)
def test_an_anchored_pattern_starts_where_the_waiting_ends(
    pattern: str, stack: str, expected: bool
) -> None:
    assert matches(pattern, stack, anchored=True) is expected


def test_the_place_of_the_match() -> None:
    vocabulary = Vocabulary({})
    compiled = vocabulary.pattern("b, ..., d", anchored=False)
    masks = [vocabulary.mask(name) for name in ("a", "b", "c", "d", "e")]
    assert compiled.match(masks, [False] * 5) == (1, 3, 0)


@pytest.mark.parametrize(
    ("pattern", "stack", "slack", "price"),
    [
        ("a, b", "futex, a, zorn, b", 1, 1),
        ("a, b", "futex, zorn, a, b", 1, 1),
        ("a, b", "futex, zorn, a, quib, b", 2, 2),
        ("a, b", "futex, zorn, a, quib, b", 1, None),
        ("a, b", "futex, a, zorn, quib, flam, b", 2, None),
        ("a, b", "futex, a, other, b", 2, None),
        ("a, ...1, b", "futex, a, other, zorn, b", 1, 1),
        ("a, ...1, b", "futex, a, zorn, b", 2, 0),
        ("a, ..., b", "futex, a, zorn, quib, flam, b", 0, 0),
        ("a, b ! other", "futex, a, zorn, b, other", 2, None),
    ],
)
def test_strange_frames_have_a_price(
    pattern: str, stack: str, slack: int, price: int | None
) -> None:
    vocabulary = Vocabulary({})
    compiled = vocabulary.pattern(pattern, anchored=True)
    names = stack.split(", ")
    masks = [vocabulary.mask(name) for name in names]
    helpers = [name == "futex" for name in names]
    strange = [name in ("zorn", "quib", "flam") for name in names]
    match = compiled.match(masks, helpers, strange, slack)
    assert (None if match is None else match.price) == price


@pytest.mark.parametrize(
    ("pattern", "stack", "found"),
    [
        ("wait, a, b", "event, a, b", True),
        ("wait, a, b", "a, b", True),
        ("wait, a, b", "x, a, b", False),
        ("wait", "event", False),
        ("wait, ..., a", "event, a", False),
    ],
)
def test_a_stack_without_its_leaf(pattern: str, stack: str, found: bool) -> None:
    vocabulary = Vocabulary({})
    compiled = vocabulary.pattern(pattern, anchored=True)
    masks = [vocabulary.mask(name) for name in stack.split(", ")]
    helpers = [name == "event" for name in stack.split(", ")]
    assert (compiled.match_leafless(masks, helpers) is not None) is found


@pytest.mark.parametrize(
    ("pattern", "complaint"),
    [
        ("", "an empty name"),
        ("a,,b", "an empty name"),
        ("a, ...", "ends with"),
        ("..., a", "between two names"),
        ("a, ..., ..., b", "between two names"),
        ("a, ...x, b", "takes a number"),
        ("a, ...0, b", "takes a number"),
        ("a, ...100, b", "takes a number"),
        ("a b", "blank"),
        ("a(int)", "arguments"),
        ("*", "matches everything"),
        ("a*b*c*d*e", "more than 3"),
        ("@nowhere", "no set"),
        ("@loop", "contains itself"),
        ("a !", "an empty name"),
        (", ".join("abcdefghijklmnopqrstuvwxyz"), "the limit is"),
    ],
)
def test_mistakes_are_explained(pattern: str, complaint: str) -> None:
    vocabulary = Vocabulary({"loop": ("a", "@loop")})
    with pytest.raises(PatternError, match=complaint):
        vocabulary.pattern(pattern, anchored=False)


def test_a_pattern_added_later_matches_names_met_before() -> None:
    vocabulary = Vocabulary({})
    assert vocabulary.mask("late") == 0
    bit = vocabulary.element(["late"])
    assert vocabulary.mask("late") == 1 << bit


@settings(max_examples=200)
@given(st.text(alphabet="ab|,.@!* ?9<>()", max_size=60))
def test_any_text_is_a_pattern_or_a_mistake(text: str) -> None:
    vocabulary = Vocabulary({})
    try:
        pattern = vocabulary.pattern(text, anchored=True)
    except PatternError:
        return
    pattern.match([vocabulary.mask("a"), vocabulary.mask("b")], [False, False])


def test_long_stacks_do_not_explode() -> None:
    vocabulary = Vocabulary({})
    pattern = vocabulary.pattern("a, ..., a, ..., a, ..., a, ..., a, ..., b", anchored=False)
    masks = [vocabulary.mask("a")] * 1000

    def match() -> None:
        assert pattern.match(masks, [False] * 1000) is None
        assert pattern.match(masks, [True] * 1000) is None

    assert cpu_seconds(match, 2.0) < 2.0
