# SPDX-License-Identifier: Apache-2.0
"""Screens of waits: a line in, exactly this text out.

``STALLSCOPE_UPDATE_GOLDEN=1 pytest tests/unit/test_waits_report.py`` writes the files: read
the difference before you keep it.
"""

from __future__ import annotations

import os
import re

import msgspec
import pytest

from stallscope.analyzers import catalog
from stallscope.analyzers.excerpts import Excerpts
from stallscope.model.waitlines import (
    ROW_LOCK_FUNCTIONS,
    Event,
    Hits,
    Key,
    KindWaits,
    ProgramState,
    Target,
    WaiterStack,
    WaitLine,
)
from stallscope.reporters import waits
from tests.unit.waitsamples import DATA, NAMES, line_of

OPTIONS = waits.Options(server="mysqld (pid 4711)", watched=14.0)


@pytest.fixture(scope="module")
def excerpts() -> Excerpts:
    return Excerpts(catalog.load())


@pytest.mark.parametrize("name", NAMES)
def test_golden(name: str, excerpts: Excerpts) -> None:
    line = line_of(name)
    options = msgspec.structs.replace(OPTIONS, programs=line.programs, clock="03:00:01")
    screen = waits.render(line, options, excerpts)
    text = "".join(f"{row.text}\n" for row in screen)
    path = DATA / f"{name}.txt"
    if os.environ.get("STALLSCOPE_UPDATE_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


@pytest.mark.parametrize("width", [40, 60, 80, 132, 200])
@pytest.mark.parametrize("name", NAMES)
def test_lines_fit_and_steer_no_terminal(name: str, width: int, excerpts: Excerpts) -> None:
    line = line_of(name)
    options = msgspec.structs.replace(OPTIONS, width=width, programs=line.programs)
    for row in waits.render(line, options, excerpts):
        assert row.text.isprintable()
        # Of the table of kinds alone the columns are fixed.
        assert len(row.text) <= max(width, 78)


def text(line: WaitLine, excerpts: Excerpts, options: waits.Options = OPTIONS) -> str:
    return "\n".join(row.text for row in waits.render(line, options, excerpts))


def kind(count: int = 0, total: float = 0.0, in_flight: int = 0, over: int = 0) -> KindWaits:
    return KindWaits(count, total, total, over, threshold_ms=10.0, in_flight=in_flight)


def key(name: str, total: float, in_flight: int = 0, longest: float = 0.0) -> Key:
    return Key(
        1, total, total, kind="mutex", name=name, in_flight=in_flight, longest_in_flight_ms=longest
    )


def interval(kinds: dict[str, KindWaits], *keys: Key) -> WaitLine:
    return WaitLine("stallscope.waits/1", 0.0, 1.0, kinds, keys, {"ring-full": 0})


def test_a_wait_that_goes_on_counts_before_it_has_ended(excerpts: Excerpts) -> None:
    line = interval({"mutex": kind(in_flight=40)}, key("A", 900.0), key("B", 0.0, 40, 950.0))
    shown = text(line, excerpts)
    assert shown.startswith("mysqld (pid 4711): 40 threads wait for mutex B now")
    assert shown.index("mutex B\n") < shown.index("mutex A")


def test_waits_without_a_line_can_be_longer(excerpts: Excerpts) -> None:
    line = interval({"mutex": kind(in_flight=40)}, key("A", 0.0, 1, 900.0))
    shown = text(line, excerpts)
    assert "40 threads wait for mutex now, the longest for at least 900 ms." in " ".join(
        shown.split()
    )


def test_what_has_no_name_says_so(excerpts: Excerpts) -> None:
    line = interval(
        {"row-lock": kind(in_flight=7)},
        msgspec.structs.replace(key("row-locks", 5.0, 7, 50.0), kind="row-lock"),
    )
    assert "7 threads wait for row-lock (name unknown) now" in text(line, excerpts)


def test_a_deadlock_is_an_event(excerpts: Excerpts) -> None:
    event = Event("server", "trx_weight_ge", tid=7, comm="mysqld")
    line = msgspec.structs.replace(interval({}), events=(event,))
    assert 'thread 7 "mysqld", in trx_weight_ge: deadlock detected' in text(line, excerpts)


def test_stacks_that_read_the_same_are_one(excerpts: Excerpts) -> None:
    inner = (["__lll_lock_wait", "pthread_mutex_lock"], ["futex_wait", "pthread_mutex_lock"])
    stacks = tuple(
        WaiterStack(5, (*frames, "open_table(THD*)", "open_tables"), 50.0) for frames in inner
    )
    long = msgspec.structs.replace(key("A", 100.0), waiters=stacks)
    assert (
        "      10 waits, 100 ms, in open_table < open_tables\n"
        in text(interval({}, long), excerpts) + "\n"
    )


def test_many_short_waits_are_no_stall(excerpts: Excerpts) -> None:
    line = interval({"mutex": kind(5000, 300.0)}, key("A", 300.0, 40, 9.9))
    assert "no wait that is seen here exceeded its threshold" in text(line, excerpts)


def test_threads_that_wait_for_work_are_no_stall(excerpts: Excerpts) -> None:
    line = interval(
        {"cond": kind(100, 1e6, 50, 100)},
        msgspec.structs.replace(key("0x1", 1e6, 50, 1e6), kind="cond"),
    )
    shown = text(line, excerpts)
    assert "no wait that is seen here exceeded its threshold" in shown
    assert "cond (idle)" in shown


def test_kinds_come_by_time_and_the_main_ones_always(excerpts: Excerpts) -> None:
    kinds = {name: kind() for name in ("mutex", "fsync", "fallocate", "unlink")}
    line = interval({**kinds, "read": kind(1, 1.0), "write": kind(1, 2.0)})
    table = text(line, excerpts).partition("\nWaits ")[2].partition("\n\n")[0]
    rows = [row.split()[0] for row in table.splitlines()[1:]]
    assert rows[: rows.index("how")] == ["write", "read", "fallocate", "fsync", "mutex"]


def test_the_rest_is_counted(excerpts: Excerpts) -> None:
    line = interval({}, *(key(f"L{i}", 100.0 - i) for i in range(12)))
    shown = text(line, excerpts, msgspec.structs.replace(OPTIONS, top=10))
    assert "mutex L9" in shown
    assert "mutex L10" not in shown
    assert "… 2 more (--top 12 shows them)" in shown


def test_processes_are_distinguished_where_there_are_several(excerpts: Excerpts) -> None:
    two = (
        msgspec.structs.replace(key("A", 2.0), pid=5),
        msgspec.structs.replace(key("A", 1.0), pid=6),
    )
    assert "(pid 6)" in text(interval({}, *two), excerpts)
    assert "(pid 5)" not in text(interval({}, two[0]), excerpts)


def test_ascii_where_nothing_else_can_be_written(excerpts: Excerpts) -> None:
    line = line_of("stalled")
    shown = text(line, excerpts, msgspec.structs.replace(OPTIONS, blocks=False))
    assert not set(shown) & set("▁▂▃▄▅▆▇█·")


def test_a_screen_is_cut_to_its_terminal(excerpts: Excerpts) -> None:
    rows = waits.render(line_of("stalled"), OPTIONS, excerpts)
    assert waits.fit(rows, len(rows)) == rows
    cut = waits.fit(rows, 12)
    assert len(cut) == 12
    assert cut[-1].text.startswith(f"… {len(rows) - 11} more lines")


def test_a_program_that_works_is_not_mentioned(excerpts: Excerpts) -> None:
    fine = (ProgramState("sys_enter", True),)
    shown = text(interval({}), excerpts, msgspec.structs.replace(OPTIONS, programs=fine))
    assert "Not watched" not in shown


def of_server(exe: str, *functions: str) -> WaitLine:
    line = interval({"row-lock": kind(), "mutex": kind()})
    return msgspec.structs.replace(
        line,
        targets=(Target(1, "x", exe),),
        server={name: Hits(0) for name in functions},
    )


@pytest.mark.parametrize(
    ("exe", "functions", "hidden"),
    [
        ("/usr/sbin/mariadbd", ("MDL_wait::timed_wait",), True),
        ("/usr/sbin/mysqld", (), True),
        ("/usr/sbin/mysqld", ("lock_wait_suspend_thread",), False),
        ("/usr/lib/postgresql/15/bin/postgres", (), False),
    ],
)
def test_row_locks_that_look_idle_are_not_skipped(
    exe: str, functions: tuple[str, ...], hidden: bool, excerpts: Excerpts
) -> None:
    line = of_server(exe, *functions)
    assert ("wait for a row look idle" in " ".join(text(line, excerpts).split())) == hidden
    without = msgspec.structs.replace(OPTIONS, uprobes=False)
    assert "Not watched" not in text(line, excerpts, without)


def test_the_uprobes_are_at_these_functions() -> None:
    source = (DATA.parents[2] / "pmp" / "waits" / "server_wait.c").read_text()
    found = re.findall(
        r'\.name = "([^"]+)",[^{}]*\{[^}]*\},\s*\.role = STALL_ROLE_ROW_LOCK', source
    )
    assert set(found) == set(ROW_LOCK_FUNCTIONS)


def test_a_lock_that_many_want_for_a_moment_is_no_calm(excerpts: Excerpts) -> None:
    line = interval({"mutex": kind(50_000, 61_000.0)}, key("A", 61_000.0, 0, 9.9))
    shown = " ".join(text(line, excerpts).split())
    assert "61 threads at a time wait for mutex A" in shown
    assert "no wait" not in shown.partition("none above")[0]


@pytest.mark.parametrize(
    ("exe", "expected"),
    [("/usr/sbin/mysqld", "rows, metadata locks"), ("/usr/lib/postgresql/15/bin/postgres", "rows")],
)
def test_it_says_what_it_cannot_see(excerpts: Excerpts, exe: str, expected: str) -> None:
    line = interval({"cond": kind(100, 1e6, 40, 100)})
    line = msgspec.structs.replace(line, targets=(Target(4711, None, exe),))
    shown = " ".join(text(line, excerpts).split())
    assert "40 threads sleep in conditions" in shown
    assert f"Not seen here: waits for {expected}" in shown
    assert "`stallscope snap -p 4711`" in shown
