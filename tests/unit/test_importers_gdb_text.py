# SPDX-License-Identifier: Apache-2.0
"""gdb's text where frames are missing or have no arguments, and where many threads are alike."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Iterator

import pytest

from stallscope.analyzers import importers
from stallscope.analyzers.importers import gdb_scan
from stallscope.model.capture import Capture, Thread

HEAD = "Thread 1 (Thread 0x7f3f601b5700 (LWP 11)):\n"


def one(text: str) -> Capture:
    (capture,) = importers.load(text.encode(), "dump.txt")
    return capture


def symbols(thread: Thread) -> list[str | None]:
    return [frame.symbol for frame in thread.frames]


def frames(*numbers: int) -> str:
    return "".join(f"#{number:<2} 0x{number + 1:016x} in f{number} ()\n" for number in numbers)


@pytest.mark.parametrize(
    ("numbers", "unwind"),
    [
        ((0, 1, 2), "complete"),
        (tuple(range(120)), "complete"),
        ((0, 1, 1, 2), "complete"),  # inlined functions with the number of their frame
        ((0, 1, 3), "lost"),
        ((0, 1, 1, 3), "lost"),
        ((1, 2, 3), "lost"),
        ((0, *range(9, 14)), "lost"),
        (tuple(n for n in range(120) if n != 101), "lost"),
    ],
)
@pytest.mark.parametrize("indent", ["", "  "])
def test_numbers_that_skip_are_lost_frames(
    numbers: tuple[int, ...], unwind: str, indent: str
) -> None:
    lines = frames(*numbers).splitlines(keepends=True)
    (thread,) = one(HEAD + "".join(indent + line for line in lines)).threads
    assert len(thread.frames) == len(numbers)
    assert thread.unwind == unwind


def test_every_thread_with_the_same_gap_is_lost() -> None:
    threads = [f"Thread {n} (LWP {n + 10}):\n{frames(0, 1, 3)}\n" for n in (3, 2, 1)]
    assert [thread.unwind for thread in one("".join(threads)).threads] == ["lost"] * 3


def test_the_start_of_a_stack_that_is_not_there() -> None:
    (thread,) = one(frames(3, 4, 5)).threads
    assert thread.unwind == "lost"


def test_a_known_end_stays() -> None:
    text = HEAD + frames(0, 2) + "Backtrace stopped: previous frame inner to this frame\n"
    assert one(text).threads[0].unwind == "bad-cfi"


@pytest.mark.parametrize("line", ["#1  ^^^ ??? !!", "  #1  0x", "#1  do the next step. ()"])
def test_a_frame_that_cannot_be_read_is_not_dropped_in_silence(line: str) -> None:
    text = f"{HEAD}#0  0x01 in poll ()\n{line}\n#1  0x02 in main ()\n"
    scan = gdb_scan.scan(text)
    assert line in scan.rest.split("\n")
    (thread,) = one(text).threads
    assert symbols(thread) == ["poll", "main"]
    assert thread.unwind == "lost"


def test_a_number_in_the_text_after_a_dump_is_no_lost_frame() -> None:
    text = f"{HEAD}{frames(0, 1)}\nThe server hangs.\n#12 is the same bug.\n"
    assert one(text).threads[0].unwind == "complete"


@pytest.mark.parametrize(
    ("line", "symbol", "source", "module"),
    [
        ("#1 mysql_insert", "mysql_insert", None, None),
        ("#1  ha_innobase::open", "ha_innobase::open", None, None),
        ("#1  0x00007f0102030405 in mysql_insert", "mysql_insert", None, None),
        ("#1 row_ins at row/row0ins.cc:3104", "row_ins", "row/row0ins.cc:3104", None),
        ("#1  0x0102 in row_ins at row0ins.cc:31", "row_ins", "row0ins.cc:31", None),
        ("#1 poll from /lib64/libc.so.6", "poll", None, "/lib64/libc.so.6"),
        ("#1 open_table(THD*, TABLE_LIST*)", "open_table(THD*, TABLE_LIST*)", None, None),
        ("#1  Pool<a, b>::get at pool.h:7", "Pool<a, b>::get", "pool.h:7", None),
        ("#1 Guard::operator bool", "Guard::operator bool", None, None),
        ("#1 pthread_cond_wait@@GLIBC_2.3.2", "pthread_cond_wait@@GLIBC_2.3.2", None, None),
        ("#1 ??", None, None, None),
        ("\t#1 mysql_insert", "mysql_insert", None, None),
    ],
)
def test_frames_without_arguments(
    line: str, symbol: str | None, source: str | None, module: str | None
) -> None:
    (thread,) = one(f"{HEAD}#0 poll\n{line}\n#2 start_thread\n").threads
    frame = thread.frames[1]
    path = frame.module.path if frame.module else None
    assert (frame.symbol, frame.source, path) == (symbol, source, module)
    assert len(thread.frames) == 3
    assert thread.unwind == "complete"


def test_names_alone_begin_a_stack_where_a_second_follows() -> None:
    (thread,) = one("#0 poll\n#1 do_command\n#2 main\n").threads
    assert symbols(thread) == ["poll", "do_command", "main"]
    with pytest.raises(importers.UnknownFormat):
        importers.load(b"#0 poll\nand nothing else\n", "x")


def test_one_blank_after_the_number_keeps_the_first_letter() -> None:
    (thread,) = one(f"{HEAD}#0 read (a=1) at x.c:1\n#1 tread (a=1) at x.c:1\n").threads
    assert symbols(thread) == ["read", "tread"]


def test_threads_that_differ_in_arguments_keep_their_locks() -> None:
    body = (
        "#0  0x01 in __lll_lock_wait (futex=futex@entry=0x{0:x}, private=0) at lock.c:52\n"
        '#1  0x02 in pthread_mutex_lock (mutex=0x{0:x} <LOCK_a>) at "lock.c"\n'
        '#2  0x03 in run (id={1}, query=0x{0:x} "SELECT (\\"{1}\\", {1})") at run.cc:{2}\n\n'
    )
    text = "".join(
        f"Thread {n} (Thread 0x7f{n:04x} (LWP {n + 100})):\n{body.format(address, n, line)}"
        for n, address, line in [(1, 0x5500, 7), (2, 0x6600, 7), (3, 0, 7), (4, 0x5500, 8)]
    )
    capture = one(text)
    held = [None if t.lock is None else capture.locks[t.lock].address for t in capture.threads]
    assert held == [0x5500, 0x6600, None, 0x5500]
    assert [thread.frames[2].source for thread in capture.threads] == [
        *["run.cc:7"] * 3,
        "run.cc:8",
    ]
    assert capture.threads[0].frames is capture.threads[1].frames
    assert [thread.tid for thread in capture.threads] == [101, 102, 103, 104]


def test_variables_of_many_threads() -> None:
    body = (
        "#0  0x01 in poll (fds=0x{0:x}) at poll.c:29\n        sc_ret = -{0}\n"
        "        err = <error: Cannot access memory at address 0x{0:x}>\nNo locals.\n"
        "#1  0x02 in main () at main.c:3\n        thd = 0x7f{0:04x}\n"
    )
    text = "".join(f"Thread {n} (LWP {n}):\n{body.format(n * 999)}\n" for n in range(1, 9))
    capture = one(text)
    assert [symbols(thread) for thread in capture.threads] == [["poll", "main"]] * 8
    assert {thread.unwind for thread in capture.threads} == {"no-memory"}


def test_other_text_between_equal_threads_stays() -> None:
    text = f"{HEAD}{frames(0, 1)}note\n\n{HEAD.replace('11', '12')}{frames(0, 1)}note\n\n"
    scan = gdb_scan.scan(text.replace("Thread 1 ", "Thread 2 ", 1))
    assert scan.rest.split("\n").count("note") == 2
    assert len(scan.items) == 2


@pytest.mark.parametrize(
    "unit", ['x=1 "a', 'x=1 "\\\\a', "x=1 (", 'x="', "at a:1 ", "f<", " from /a", "aa"]
)
def test_long_lines_that_never_end_take_linear_time(unit: str) -> None:
    body = f'#0  poll ()\n#1  main (a=0x1 "{unit * 20_000}\n#2 f {unit * 20_000}\n'
    start = time.process_time()
    gdb_scan.scan("".join(f"Thread {n} (LWP {n}):\n{body}" for n in (1, 2)))
    assert time.process_time() - start < 5


def test_memory_does_not_grow_with_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importers, "PIECE", 1 << 14)

    def dumps(count: int) -> Iterator[bytes]:
        for number in range(count):
            yield b"Attaching to process %d\n" % (number + 1)
            for tid in range(40):
                head = b"Thread %d (Thread 0x7f01 (LWP %d)):\n" % (tid + 1, tid + 7)
                yield head + b"#0  0x01 in poll (fds=0x%x)\n#1  0x02 in main ()\n\n" % number

    def peak(count: int) -> int:
        tracemalloc.start()
        try:
            threads = sum(len(c.threads) for c in importers.read(dumps(count), "x"))
            assert threads == 40 * count
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    peak(10)
    assert peak(200) < 1.5 * peak(50)
