# SPDX-License-Identifier: Apache-2.0
"""The referee of faults: what it takes for right, and for wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench.agent_faultmoments import BEGIN, END, KINDS
from tests.bench.agent_faultpager import Post
from tests.bench.agent_faultreferee import Span, Truth, judge, outline

__all__: list[str] = []

STALL = Span(100.0, 110.0)
DOWN = Span(105.0, 108.0)


def post(
    at: float,
    event: str = "stall",
    key: str = "a",
    severity: str = "critical",
    trigger: str = "metadata-lock",
) -> Post:
    return Post(at, event, key, severity, trigger, "", taken=True, refused=False)


def ended(at: float, key: str = "b") -> Post:
    return post(at, key=key, trigger="server-ended")


RIGHT: dict[str, tuple[Truth, list[Post]]] = {
    "an ordinary stall": (Truth([STALL]), [post(102.0), post(113.0, "end")]),
    "its severity rises": (
        Truth([STALL]),
        [post(102.0, severity="warning"), post(104.0), post(113.0, "end")],
    ),
    "late, since the pager was down": (
        Truth([STALL], unheard=[Span(101.0, 120.0)]),
        [post(123.0), post(124.0, "end")],
    ),
    "never seen, since the agent was blind": (
        Truth([STALL], unseen=[Span(102.0, 112.0)]),
        [],
    ),
    "the next one begins before the end of the first is known": (
        Truth([STALL, Span(112.0, 120.0)]),
        [post(102.0), post(113.0, "end"), post(114.0, key="b"), post(123.0, "end", "b")],
    ),
    "one alert of two that are close": (
        Truth([STALL, Span(112.0, 120.0)]),
        [post(102.0), post(123.0, "end")],
    ),
    "the server ended in it": (
        Truth([Span(100.0, 105.0)], downs=[DOWN]),
        [post(102.0), ended(106.0), post(111.0, "end"), post(111.0, "end", "b")],
    ),
    "the server ended before it was seen to be over": (
        Truth([STALL], downs=[Span(112.0, 116.0)]),
        [post(102.0), ended(113.0), post(119.0, "end", "b"), post(120.0, "end")],
    ),
    "a hang in it": (
        Truth([STALL, Span(108.0, 115.0)]),
        [post(102.0), post(118.0, "end")],
    ),
}
WRONG: dict[str, tuple[str, Truth, list[Post]]] = {
    "not alerted": ("alerted 0 times", Truth([STALL]), []),
    "alerted twice": (
        "alerted 2 times",
        Truth([STALL]),
        [post(102.0), post(104.0, key="b"), post(113.0, "end"), post(113.0, "end", "b")],
    ),
    "over while a client waits": (
        "over 2.0 s before it was",
        Truth([STALL]),
        [post(102.0), post(108.0, "end")],
    ),
    "over before a server answers again": (
        "over 1.0 s before it was",
        Truth([Span(100.0, 105.0)], downs=[DOWN]),
        [post(102.0), ended(106.0), post(107.0, "end"), post(111.0, "end", "b")],
    ),
    "never over": ("never over", Truth([STALL]), [post(102.0)]),
    "late": ("alerted 6.0 s late", Truth([STALL]), [post(106.0), post(113.0, "end")]),
    "over late": ("over 7.0 s late", Truth([STALL]), [post(102.0), post(117.0, "end")]),
    "nothing stalled": ("an alert of nothing", Truth(), [post(102.0), post(103.0, "end")]),
    "its severity falls": (
        "from critical to warning",
        Truth([STALL]),
        [post(102.0), post(113.0, "end", severity="warning")],
    ),
    "nobody says that the server ended": (
        "down: alerted 0 times",
        Truth([Span(100.0, 105.0)], downs=[DOWN]),
        [post(102.0), post(111.0, "end")],
    ),
    "an end of the server by its owner is critical": (
        "down: critical",
        Truth(downs=[DOWN], stops=[DOWN]),
        [ended(106.0), post(111.0, "end", "b")],
    ),
    "the second of two is not alerted": (
        "alerted 0 times",
        Truth([STALL, Span(120.0, 130.0)]),
        [post(102.0), post(113.0, "end")],
    ),
}


@pytest.mark.parametrize("name", RIGHT)
def test_what_is_right(name: str) -> None:
    truth, posts = RIGHT[name]
    found = judge(truth, posts)
    assert found.wrong == ()
    assert (found.once, found.only_when_over, found.ends_while_stalled) == (True, True, 0)


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong(name: str) -> None:
    wanted, truth, posts = WRONG[name]
    (wrong,) = judge(truth, posts).wrong
    assert wanted in wrong


def test_what_the_pager_got_in_words() -> None:
    posts = [post(1.0, severity="warning"), post(2.0), post(2.5), ended(3.0)]
    assert outline([*posts, post(4.0, "end", "b"), post(5.0, "end")]) == (
        "warning: metadata-lock; now critical: metadata-lock; critical: server-ended;"
        " over: server-ended; over: metadata-lock"
    )


def test_the_table_of_the_page_has_each_kind() -> None:
    page = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()
    table = page.partition(BEGIN)[2].partition(END)[0]
    assert table
    for kind in KINDS.values():
        assert f"| {kind.what} | {kind.promise} |" in table
