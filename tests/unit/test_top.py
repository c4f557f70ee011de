# SPDX-License-Identifier: Apache-2.0
"""The live view on recorded events: its screens as text, its keys, and text that is hostile.

``STALLSCOPE_UPDATE_GOLDEN=1 pytest tests/unit/test_top.py`` writes the screens: check them.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import re
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from textual._context import visible_screen_stack
from textual.pilot import Pilot
from textual.strip import Strip

from stallscope.main import main
from stallscope.model.waitlines import ClassWaits
from stallscope.screens import panes
from stallscope.screens.app import Top, View, capture_path
from stallscope.screens.events import (
    Analyzed,
    Ended,
    Event,
    IncidentsListed,
    Rates,
    Saved,
    SourceState,
    WaitsSeen,
)
from stallscope.screens.rows import Rows
from stallscope.screens.state import State, load
from stallscope.store import listing
from tests.support.servers import PATIENCE
from tests.unit.top_scenes import FakeSource, analysis, events, recorded, wait_lines

pytestmark = pytest.mark.large

GOLDEN = Path(__file__).parent.parent / "data" / "top"
SIZES = {"80x24": (80, 24), "120x40": (120, 40), "200x60": (200, 60)}
HOSTILE = "[red]x[/red]\x1b[2J\x1b]0;owned\x07\u202egnp.exe\n"

Steps = Callable[[Pilot[None], Top], Awaitable[None]]


@pytest.fixture(autouse=True)
def one_time_zone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "UTC")
    monkeypatch.delenv("NO_COLOR", raising=False)
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def test_bytes_written_by_class() -> None:
    """A second's, the most first; what hostile names do is nothing."""
    classes = tuple(
        ClassWaits(3, 1.0, 1.0, kind=kind, file_class=name, bytes=count)
        for kind, name, count in (
            ("write", "redo", 2 << 20),
            ("write", "data\x1b[1m", 6 << 20),
            ("read", "undo", 9 << 20),
            ("write", "binlog", 0),
        )
    )
    state = State("mysqld")
    state.line = msgspec.structs.replace(wait_lines()[0], classes=classes, seconds=2.0)
    assert panes.waits(state, 80, None)[0].text == "written/s: data\\x1b[1m 3 MiB, redo 1 MiB"
    state.line = msgspec.structs.replace(state.line, classes=classes[2:])
    assert panes.waits(state, 80, None)[0].text.startswith("lock or file")


def drive(
    steps: Steps, source: FakeSource | None = None, size: tuple[int, int] = (80, 24)
) -> FakeSource:
    """Run the view without a terminal, and take the steps once all has been said."""
    source = source or FakeSource()

    async def run() -> None:
        top = Top(source, State(", ".join(source.titles)), Path("/tmp"))
        async with top.run_test(size=size) as pilot:
            await pilot.pause()
            if source.said:
                await until(pilot, lambda: top.state.analysis is not None and filled(top))
            await steps(pilot, top)

    asyncio.run(run())
    return source


def filled(top: Top) -> bool:
    return "waiting for the first" not in text(top) and "Who waits on what" in text(top)


async def until(pilot: Pilot[None], condition: Callable[[], bool]) -> None:
    """Let the view work until a condition holds.

    A key that was pressed, or an event that was put, need not have had its effect by then: a pause
    of Textual's is over when the process has used no CPU time for a moment, also where it got none.
    """
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, text_of(pilot)
        await pilot.pause()


def text_of(pilot: Pilot[None]) -> str:
    assert isinstance(pilot.app, Top)
    return text(pilot.app)


async def opens(pilot: Pilot[None], key: str, what: str) -> None:
    """Press a key that opens a list, and wait until keys go to it."""
    await pilot.press(key)
    await shows(pilot, what)
    await focused(pilot, "list")


async def focused(pilot: Pilot[None], name: str) -> None:
    """Wait until keys go to this widget."""
    await until(pilot, lambda: pilot.app.focused is not None and pilot.app.focused.id == name)


async def asks(pilot: Pilot[None], *keys: str) -> None:
    """Ask for a filter, type it, and wait until keys go to the list again."""
    await pilot.press("slash")
    await focused(pilot, "ask")
    await pilot.press(*keys)
    await focused(pilot, "list")


async def shows(pilot: Pilot[None], what: str) -> None:
    await until(pilot, lambda: what in text_of(pilot))


def drawn(top: Top) -> list[Strip]:
    """Draw the screen.

    Textual keeps what was drawn. A box drawn first from here, before Textual has drawn it, would
    stay on an empty screen where nobody says which screens lie below it.
    """
    visible_screen_stack.set(top._background_screens)
    return top.screen._compositor.render_strips(top.size)


def text(top: Top) -> str:
    """Return the screen as it is seen, line by line."""
    strips = drawn(top)
    lines = ["".join(segment.text for segment in strip).rstrip() for strip in strips]
    return "\n".join(lines) + "\n"


async def check(name: str, pilot: Pilot[None]) -> None:
    """Wait until the screen is that of the file."""
    path = GOLDEN / f"{name}.txt"
    if os.environ.get("STALLSCOPE_UPDATE_GOLDEN"):
        path.write_text(text_of(pilot), encoding="utf-8")
    wanted = path.read_text(encoding="utf-8")
    await until(pilot, lambda: text_of(pilot) == wanted)


@pytest.mark.parametrize(
    ("name", "keys", "sign", "size"),
    [
        ("overview", "", "15:31:40 no verdict", "80x24"),
        ("overview", "", "15:31:40 no verdict", "200x60"),
        ("threads", "t", "statement, or where it is", "80x24"),
        ("threads", "t", "statement, or where it is", "120x40"),
        ("confirm", "down down down k", "send nothing", "80x24"),
        ("confirm", "down down down k", "send nothing", "120x40"),
        ("blocker", "b", "#1 ", "80x24"),
        ("blocker", "b", "#1 ", "120x40"),
        ("help", "question_mark", "is stopped", "80x24"),
        ("help", "question_mark", "is stopped", "120x40"),
    ],
)
def test_screens(name: str, keys: str, sign: str, size: str) -> None:
    async def steps(pilot: Pilot[None], top: Top) -> None:
        await pilot.press(*keys.split())
        await shows(pilot, sign)
        await pilot.pause()
        await check(f"{name}-{size}", pilot)

    drive(steps, size=SIZES[size])


def fits(screen: str, width: int, height: int) -> bool:
    lines = screen.splitlines()
    return len(lines) <= height and all(len(line) <= width for line in lines)


def test_the_screen_fits_and_fills_any_size() -> None:
    async def steps(pilot: Pilot[None], top: Top) -> None:
        for width, height in ((140, 40), (60, 15), (200, 60), (40, 10), (80, 24)):
            await pilot.resize_terminal(width, height)
            await until(pilot, lambda width=width: top.size.width == width)  # type: ignore[misc]
            await until(pilot, lambda: "stallscope top" in text(top).splitlines()[0])
            await until(pilot, lambda: fits(text(top), width, height))  # noqa: B023 - awaited here
        await shows(pilot, "metadata-lock shop.orders")

    drive(steps)


def test_what_comes_when_all_screens_are_closed_draws_nothing() -> None:
    seen: list[Top] = []

    async def steps(_: Pilot[None], top: Top) -> None:
        seen.append(top)

    drive(steps)
    assert seen[0].screen_stack == []
    seen[0]._check_size()
    seen[0].follow()


def test_the_screen_is_resized_late_where_the_process_got_no_cpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Textual's timers read a clock that has gone on by 10 ms each time."""
    reads = itertools.count()
    monkeypatch.setattr("textual._time.get_time", lambda: time.monotonic() + next(reads) / 100)

    async def steps(pilot: Pilot[None], top: Top) -> None:
        for size in ((140, 40), (100, 30)):
            await pilot.resize_terminal(*size)
            await until(pilot, lambda size=size: top.screen.outer_size == size)  # type: ignore[misc]

    drive(steps)


def test_the_keys() -> None:
    async def steps(pilot: Pilot[None], top: Top) -> None:
        await until(pilot, lambda: top.state.now == wait_lines()[-1].ts)
        await pilot.press("space")
        await until(pilot, lambda: top.paused)
        await shows(pilot, "PAUSED")
        before = top.state.now
        later = msgspec.structs.replace(wait_lines()[-1], ts=before + 5)
        top._put(WaitsSeen(later))
        await until(pilot, lambda: len(top._waiting) == 1)
        assert top.state.now == before
        await pilot.press("space")
        await until(pilot, lambda: top.state.now == before + 5)
        await pilot.press("c")
        await shows(pilot, "(0600)")
        await opens(pilot, "t", "ALTER TABLE")
        await pilot.press("down")
        await opens(pilot, "enter", "#1 ")
        await shows(pilot, "MDL_wait::timed_wait")
        await pilot.press("escape")
        await until(pilot, lambda: len(top.screen_stack) == 2)
        await pilot.press("escape")
        await shows(pilot, "Who waits on what")
        await pilot.press("tab")
        await focused(pilot, "waits")
        await pilot.press("q")

    source = drive(steps)
    assert [path.name.startswith("stallscope-mariadbd-") for path in source.asked] == [True]
    assert not source.paused


@pytest.mark.parametrize("keys", [("t",), ("t", "enter")])
def test_every_screen_says_what_a_key_brought_about(keys: tuple[str, ...]) -> None:
    async def steps(pilot: Pilot[None], top: Top) -> None:
        for key, what in zip(keys, ("ALTER TABLE", "#1 "), strict=False):
            await opens(pilot, key, what)
        await pilot.press("c")
        await shows(pilot, "(0600)")

    assert len(drive(steps).asked) == 1


def test_enter_in_the_tree_shows_a_stack() -> None:
    async def steps(pilot: Pilot[None], top: Top) -> None:
        await pilot.press("down", "down", "down")
        await opens(pilot, "enter", "#1 ")
        await shows(pilot, "thread 20266, waiting")

    drive(steps)


def statements(top: Top) -> list[str]:
    """Return the rows below the heading."""
    return [row.text for row in top.screen.query_one("#list", Rows).rows[1:]]


def test_threads_are_sorted_by_keys_and_by_their_heading() -> None:
    async def steps(pilot: Pilot[None], top: Top) -> None:
        await opens(pilot, "t", "ALTER TABLE")
        by_state = statements(top)
        await pilot.press("s")
        await shows(pilot, "time▼")
        await pilot.press("s")
        await shows(pilot, "conn▼")
        numbers = [int(row.split()[0]) for row in statements(top)]
        assert numbers == sorted(numbers)
        await pilot.press("r")
        await until(pilot, lambda: [int(r.split()[0]) for r in statements(top)] == numbers[::-1])
        await pilot.click("#list", offset=(1, 1))
        await shows(pilot, "conn▼")
        top.sort_by("state")
        await until(pilot, lambda: statements(top) == by_state)

    drive(steps)


def test_a_kill_is_confirmed() -> None:
    async def steps(pilot: Pilot[None], top: Top) -> None:
        await opens(pilot, "t", "ALTER TABLE")
        await pilot.press("k")
        await shows(pilot, "KILL QUERY 6;")
        await pilot.press("escape")
        await until(pilot, lambda: "KILL QUERY 6;" not in text(top))
        assert isinstance(top.source, FakeSource)
        assert top.source.killed == []
        await pilot.press("k")
        await shows(pilot, "KILL QUERY 6;")
        await pilot.press("1")
        await until(pilot, lambda: top.state.note == "sent: KILL QUERY 6;")

    assert drive(steps).killed == ["KILL QUERY 6;"]


def test_nothing_is_sent_where_that_is_off_or_nobody_is_chosen() -> None:
    async def steps(pilot: Pilot[None], top: Top) -> None:
        await pilot.press("k")
        await shows(pilot, "--read-only")

    source = FakeSource()

    async def run() -> None:
        top = Top(source, State("x"), Path("/tmp"), read_only=True)
        async with top.run_test(size=(80, 24)) as pilot:
            await until(pilot, lambda: top.state.analysis is not None and filled(top))
            await steps(pilot, top)

    asyncio.run(run())
    assert source.killed == []

    async def no_thread(pilot: Pilot[None], top: Top) -> None:
        await pilot.press("tab", "tab")
        await focused(pilot, "incidents")
        await pilot.press("k")
        await shows(pilot, "no thread under the cursor")

    assert drive(no_thread).killed == []


def test_an_incident_is_opened_from_the_list(tmp_path: Path) -> None:
    from tests.unit.reports import store_incident

    stored = store_incident(tmp_path / "store", [recorded()])
    known = IncidentsListed(tuple(listing(tmp_path / "store").incidents))
    others = [event for event in events() if not isinstance(event, IncidentsListed)]
    source = FakeSource([known, *others])

    async def run() -> None:
        top = Top(source, State("x"), Path("/tmp"), dest=tmp_path / "store")
        async with top.run_test(size=(100, 40)) as pilot:
            await until(pilot, lambda: top.state.analysis is not None and filled(top))
            await pilot.press("tab", "tab")
            await focused(pilot, "incidents")
            await opens(pilot, "enter", f"Incident {stored.name}")
            await shows(pilot, "Timeline")
            await pilot.press("escape")
            await shows(pilot, "Who waits on what")

    asyncio.run(run())


@pytest.mark.parametrize("key", ["f1", "h", "question_mark"])
def test_help_leaves_the_screen_below_it(key: str) -> None:
    async def steps(pilot: Pilot[None], top: Top) -> None:
        await pilot.press(key)
        await shows(pilot, "sort the threads")
        assert "stallscope top" in text(top).splitlines()[0], "the screen below is seen"
        await pilot.press("escape")
        await shows(pilot, "Who waits on what")

    drive(steps)


def test_queries_a_second_are_a_chart() -> None:
    state = State("x")
    for second in range(5):
        state.take(Rates(1000.0 + second, 500.0 * second, second))
    rows = [row.text for row in panes.chart(state, 60)]
    assert rows[3].startswith("queries/s         500 ")
    assert rows[4].startswith("Threads_running     4 ")
    # A server that has begun again has counted less.
    state.take(Rates(1006.0, 3.0, 1))
    assert state.rates[-1].queries == 500.0


def test_colours_are_those_of_the_terminal() -> None:
    """16 colours are enough, and light and dark terminals have their own of each name."""

    async def steps(pilot: Pilot[None], top: Top) -> None:
        strips = drawn(top)
        styles = [segment.style for strip in strips for segment in strip if segment.style]
        colours = {c for style in styles for c in (style.color, style.bgcolor) if c is not None}
        assert {colour.type.name for colour in colours} <= {"DEFAULT", "STANDARD"}

    drive(steps)


def test_the_filter() -> None:
    async def steps(pilot: Pilot[None], top: Top) -> None:
        await opens(pilot, "t", "ALTER TABLE")
        await asks(pilot, *"upgrade_shared", "enter")
        await shows(pilot, "/upgrade_shared/")
        await until(pilot, lambda: len(top.screen.query_one("#list", Rows).rows) == 2)
        await asks(pilot, "escape")
        assert top.pattern is not None
        await asks(pilot, *["backspace"] * 20, *"(", "enter")
        await until(pilot, lambda: "is not a regular expression" in top.state.note)
        await asks(pilot, *["backspace"] * 20, "enter")
        await until(pilot, lambda: top.pattern is None)

    drive(steps)


def hostile() -> list[Event]:
    """Return events in which everything that a target can choose is hostile."""
    base = recorded()
    threads = tuple(
        msgspec.structs.replace(t, name=HOSTILE, query=HOSTILE, user=HOSTILE, activity=HOSTILE)
        for t in base.threads
    )
    found = analysis(msgspec.structs.replace(base, threads=threads))
    line = wait_lines()[-1]
    keys = tuple(msgspec.structs.replace(key, name=HOSTILE, kind="mutex") for key in line.keys)
    said: list[Event] = [
        SourceState("sql", HOSTILE),
        Saved(error=HOSTILE),
        Analyzed(found, line.ts),
    ]
    return [*said, WaitsSeen(msgspec.structs.replace(line, keys=keys))]


@pytest.mark.parametrize("keys", ["", "t", "b"])
def test_untrusted_text_is_inert(keys: str) -> None:
    async def steps(pilot: Pilot[None], top: Top) -> None:
        if keys:
            await pilot.press(keys)
            await until(pilot, lambda: len(top.screen_stack) == 2)
        await shows(pilot, "[red]x[/red]")  # as text: no markup was read
        shown = text(top)
        assert all(line.isprintable() for line in shown.splitlines())

    drive(steps, FakeSource(hostile()))


def test_what_is_degraded_is_one_line() -> None:
    said: list[Event] = [
        SourceState("waits", "no waits: no BPF"),
        SourceState("sql", "no SQL: refused"),
    ]
    said += [event for event in events() if isinstance(event, Analyzed)]

    async def steps(pilot: Pilot[None], top: Top) -> None:
        await shows(pilot, "no waits: no BPF; no SQL: refused")
        await shows(pilot, "Who waits on what")
        top._put(SourceState("sql"))
        await until(pilot, lambda: "no SQL" not in text(top))
        top._put(Ended("the server has ended"))
        await shows(pilot, "ENDED")
        await shows(pilot, "the server has ended")

    drive(steps, FakeSource(said))


def test_no_colour(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")

    async def steps(pilot: Pilot[None], top: Top) -> None:
        assert top.no_color
        await shows(pilot, "metadata-lock")

    drive(steps)


def test_only_what_changed_is_drawn() -> None:
    drawn = ["everything"]

    async def steps(pilot: Pilot[None], top: Top) -> None:
        line = wait_lines()[-1]
        await until(pilot, lambda: top.state.now == line.ts)
        for widget in top.screen.query(Rows):
            name = widget.id or ""
            original = widget.refresh

            def refresh(*args: Any, name: str = name, original: Any = original, **more: Any) -> Any:
                drawn.append(name)
                return original(*args, **more)

            widget.refresh = refresh  # type: ignore[method-assign]
        await until(pilot, lambda: nothing_new(top))
        top._put(WaitsSeen(msgspec.structs.replace(line, ts=line.ts + 1)))
        await until(pilot, lambda: "head" in drawn)
        assert top.state.now == line.ts + 1
        assert "tree" not in drawn

    def nothing_new(top: Top) -> bool:
        """Return whether nothing was drawn any more, nor is when the screen is followed again."""
        quiet = not drawn
        drawn.clear()
        assert isinstance(top.screen, View)
        top.screen.follow()
        return quiet and not drawn

    drive(steps)


def test_an_error_within_ends_it_and_is_kept() -> None:
    async def run() -> Top:
        source = FakeSource([])
        top = Top(source, State("x"), Path("/tmp"))

        def broken() -> None:
            raise ValueError("broken")

        async with top.run_test() as pilot:
            top.call_later(broken)
            await pilot.pause()
        return top

    with pytest.raises(ValueError, match="broken"):
        asyncio.run(run())


def test_the_state() -> None:
    state = State("x")
    for event in events():
        state.take(event)
    assert state.moments[0].waiting >= 20
    assert state.busiest()[0].key.name == "shop.orders"
    key = wait_lines()[0].keys[0]
    assert load(msgspec.structs.replace(key, count=2, total_ms=500, in_flight=0), 1.0) == 0.5
    assert load(msgspec.structs.replace(key, count=1, total_ms=9e6, in_flight=3), 1.0) == 4.0
    assert load(msgspec.structs.replace(key, in_flight=3), 0.0) == 3.0


def test_what_threads_do_is_in_few_rows() -> None:
    state = State("x")
    assert panes.doing(state, 80, 3) == []
    assert panes._cost(state, 80) == ""
    for event in events():
        state.take(event)
    rows = panes.doing(state, 80, 3)
    assert [row.text.split()[:2] for row in rows] == [
        ["running", "2"],
        ["metadata-lock", "20"],
        ["fsync", "1"],
    ]
    assert all(len(row.text) < 80 for row in rows)
    assert len(panes.doing(state, 80, 2)) == 2
    state.now += 30
    (row,) = panes.doing(state, 40, 3)
    assert row.text.split() == ["running"], "samples that are too old are not shown"


@pytest.mark.parametrize(
    ("source", "added", "wanted"),
    [
        ("bpf", 44.8, "+45 ns a system call"),
        ("bpf", 0.1, "+<1 ns a system call"),
        ("bpf", None, "slows system calls"),
        ("poll", None, ""),
        ("inproc", None, ""),
    ],
)
def test_the_first_line_says_what_it_costs(source: str, added: float | None, wanted: str) -> None:
    state = State("x")
    line = msgspec.structs.replace(wait_lines()[0], source=source, call_added_ns=added)
    state.take(WaitsSeen(line))
    for width in (60, 80, 200):
        text = panes.head(state, width, paused=True, pattern=None).text
        assert len(text) <= width
        assert "stallscope top  x" in text
        assert width > 80 or wanted in text


def test_sparklines() -> None:
    assert panes.sparkline([None, 0, 1, 10], 10) == " ▁▃█"
    assert panes.sparkline([0, 0], 0) == "▁▁"


def test_two_thousand_threads_are_many_rows_and_no_more() -> None:
    base = recorded()
    many = tuple(
        msgspec.structs.replace(base.threads[i % len(base.threads)], tid=100_000 + i)
        for i in range(2000)
    )
    found = analysis(msgspec.structs.replace(base, threads=many))
    rows = panes.threads(found, 80, None)
    assert len(rows) == 2001, "with a heading"
    assert all(len(row.text) <= 80 for row in rows)
    assert len(panes.threads(found, 80, re.compile("^100000 "))) == 2

    async def steps(pilot: Pilot[None], top: Top) -> None:
        await opens(pilot, "t", "waiting")
        await pilot.press("end")
        await until(pilot, lambda: top.screen.query_one("#list", Rows).cursor == 2000)

    drive(steps, FakeSource([Analyzed(found, 1.0)]))


def test_names_of_captures() -> None:
    path = capture_path(Path("/d"), "../../evil\x1b (pid 1)")
    assert re.fullmatch(r"/d/stallscope-evil-\d{8}T\d{6}Z\.jsonl\.zst", str(path))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["-p", "1", "--replay", "x"], "-p or --replay"),
        (["-p", "1", "--capture-dir", "/no/such"], "is not a directory"),
        (["-p", "1"], "top needs a terminal"),
        (["--interval", "0"], "is not a time"),
    ],
)
def test_usage_errors(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", *words]) == 2
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1


def test_rates_take_no_row_of_a_low_screen() -> None:
    state = State("x")
    assert len(panes.chart(state, 60, 3)) == 3
    for second in range(3):
        state.take(Rates(1000.0 + second, 500.0 * second, second))
    names = [row.text.split()[0] for row in panes.chart(state, 60, 3)]
    assert names == ["waiting", "running", "queries/s"]
