# SPDX-License-Identifier: Apache-2.0
"""The growth of a target's memory: known functions grow by known sizes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from stallscope.analyzers import memory as analyzer
from stallscope.base.errors import StallscopeError
from stallscope.collectors import memory
from stallscope.model.memory import Growth, MemoryReport
from tests.root.support import run_probe
from tests.support.servers import PATIENCE
from tests.support.targets import Target, trouble_left

__all__: list[str] = []

pytestmark = pytest.mark.needs("root", "bpf")

MIB = 1 << 20
SLACK = 512 << 10
"""Pages beside the known ones: the allocator's, the loader's."""


@contextmanager
def growing() -> Iterator[Target]:
    with Target("growth") as target:
        yield target
        assert target.running()
        assert not trouble_left(target.pid)
        assert target.ask("mmap 4096")  # it still answers
    assert target.close() == 0


def recorded(target: Target, act: Callable[[], object], stacks: int | None = None) -> Growth:
    """Record while ``act`` is done."""
    ready, over = threading.Event(), threading.Event()
    found: list[Growth | BaseException] = []

    def record() -> None:
        try:
            wanted = memory.Options(seconds=PATIENCE, stacks=stacks)
            found.append(memory.record(target.pid, wanted, ready=ready.set, ended=over.is_set))
        except BaseException as error:
            found.append(error)
            ready.set()

    thread = threading.Thread(target=record)
    thread.start()
    try:
        assert ready.wait(PATIENCE)
        if not found:
            act()
    finally:
        over.set()
        thread.join()
    (result,) = found
    if isinstance(result, BaseException):
        raise result
    return result


def grown(target: Target, *commands: str, stacks: int | None = None) -> MemoryReport:
    growth = recorded(target, lambda: [target.ask(command) for command in commands], stacks)
    return analyzer.report(growth, {})


def under(report: MemoryReport, function: str) -> int:
    return sum(stack.bytes for stack in report.stacks if function in stack.frames)


def check(report: MemoryReport, function: str, size: int) -> None:
    """Check that this function holds so much, and that stacks explain all."""
    assert abs(under(report, function) - size) <= SLACK, report.stacks[:3]
    assert report.growth_bytes is not None
    assert abs(report.growth_bytes - size) <= SLACK
    assert report.attributed_share is not None
    assert 0.97 <= report.attributed_share <= 1.03
    assert report.complete, report.notes


@pytest.mark.kernels("bpf")
@pytest.mark.parametrize(
    ("command", "function"),
    [
        ("malloc", "grow_malloc"),
        ("pieces", "grow_pieces"),
        ("mmap", "grow_mmap"),
        ("brk", "grow_brk"),
        ("read", "grow_read"),
    ],
)
def test_a_function_has_the_bytes_that_it_takes(command: str, function: str) -> None:
    size = 24 * MIB
    with growing() as target:
        report = grown(target, f"{command} {size}")
        if command == "pieces":  # each has a head of 16 bytes
            size = size // 1000 * 1008
        check(report, function, size)
        assert function in report.heaviest or function in report.stacks[0].place


def test_each_of_several_has_its_own_share() -> None:
    with growing() as target:
        report = grown(target, f"mmap {20 * MIB}", f"malloc {10 * MIB}", f"brk {5 * MIB}")
        assert abs(under(report, "grow_mmap") - 20 * MIB) <= SLACK
        assert abs(under(report, "grow_malloc") - 10 * MIB) <= SLACK
        assert abs(under(report, "grow_brk") - 5 * MIB) <= SLACK
        sizes = [stack.bytes for stack in report.stacks if stack.frames]
        assert sizes == sorted(sizes, reverse=True)


def test_a_few_stacks_a_second_are_enough_for_the_sums() -> None:
    """A fault without a stack of its own gets that of another one at the same place."""
    with growing() as target:
        report = grown(target, f"mmap {40 * MIB}", f"malloc {20 * MIB}", stacks=100)
        assert abs(under(report, "grow_mmap") - 40 * MIB) <= 2 * MIB
        assert abs(under(report, "grow_malloc") - 20 * MIB) <= 2 * MIB


def test_a_thread_and_its_stack() -> None:
    size = 16 * MIB
    with growing() as target:
        report = grown(target, f"in-thread stack {size}", f"in-thread mmap {8 * MIB}")
        assert abs(under(report, "grow_stack") - size) <= SLACK
        assert {stack.kind for stack in report.stacks if "grow_stack" in stack.frames} == {"stack"}
        assert report.thread_stack_bytes is not None
        assert abs(report.thread_stack_bytes - size) <= SLACK
        stacker, mapper = report.threads[:2]
        assert abs(stacker.bytes - size) <= SLACK
        assert abs(mapper.bytes - 8 * MIB) <= SLACK
        assert {stacker.tid, mapper.tid}.isdisjoint({target.pid})


def test_huge_pages_count_whole() -> None:
    size = 64 * MIB
    with growing() as target:
        report = grown(target, f"huge {size}")
        check(report, "grow_huge", size)
        enabled = Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text()
        assert report.after is not None
        if "[never]" not in enabled and report.after.huge:
            assert sum(report.faults.values()) < size // 4096


def test_pages_that_the_kernel_makes_have_their_call() -> None:
    size = 16 * MIB
    with growing() as target:
        growth = recorded(target, lambda: target.ask(f"populate {size}"))
        works = {program.name: program.works for program in growth.programs}
        report = analyzer.report(growth, {})
        assert report.added_bytes is not None
        assert abs(report.added_bytes - size) <= SLACK
        if works["rss_stat"]:
            check(report, "grow_populate", size)
            assert report.estimated
        else:
            assert any("direct I/O" in note for note in report.notes)


def test_what_is_given_back_does_not_count() -> None:
    with growing() as target:
        target.ask(f"mmap {32 * MIB}")
        report = grown(target, f"back {32 * MIB}", f"malloc {8 * MIB}")
        assert report.growth_bytes is not None
        assert abs(report.growth_bytes + 24 * MIB) <= SLACK
        assert report.freed_bytes is not None
        assert abs(report.freed_bytes - 32 * MIB) <= SLACK
        assert abs(under(report, "grow_malloc") - 8 * MIB) <= SLACK
        assert report.attributed_share is not None
        assert 0.97 <= report.attributed_share <= 1.03


def test_memory_that_is_touched_again_counts_once() -> None:
    size = 16 * MIB
    with growing() as target:
        report = grown(target, f"twice {size}")
        check(report, "grow_twice", size)
        assert report.faults["touch"] >= 2 * size // 4096


def test_reads_of_untouched_memory_are_no_growth() -> None:
    with growing() as target:
        report = grown(target, f"untouched {32 * MIB}")
        assert report.growth_bytes is not None
        assert abs(report.growth_bytes) <= SLACK
        assert under(report, "read_untouched") <= SLACK
        assert report.attributed_share is None


def test_hugetlb() -> None:
    pages = Path("/proc/sys/vm/nr_hugepages")
    before = pages.read_text()
    try:
        pages.write_text(str(int(before) + 8))
        if int(pages.read_text()) < int(before) + 8:
            pytest.skip("the kernel has no room for huge pages")
        with growing() as target:
            report = grown(target, f"hugetlb {8 * MIB}")
            assert report.after is not None
            assert report.after.hugetlb == 8 * MIB
            check(report, "grow_hugetlb", 8 * MIB)
            assert report.stacks[0].kind == "hugetlb"
    finally:
        pages.write_text(before)


def test_a_process_that_ends_leaves_what_it_touched() -> None:
    with Target("growth") as target:

        def act() -> None:
            target.ask(f"mmap {8 * MIB}")
            os.kill(target.pid, signal.SIGKILL)
            target.wait()

        ready = threading.Event()
        found: list[Growth] = []
        thread = threading.Thread(
            target=lambda: found.append(
                memory.record(target.pid, memory.Options(seconds=PATIENCE), ready=ready.set)
            )
        )
        thread.start()
        assert ready.wait(PATIENCE)
        act()
        thread.join()
    report = analyzer.report(found[0], {})
    assert report.growth_bytes is None
    assert report.attributed_share is None
    assert not report.complete
    assert under(report, "grow_mmap") >= 7 * MIB


def test_without_symbols_there_are_offsets(tmp_path: Path) -> None:
    stripped = tmp_path / "target-growth"
    with Target("growth") as plain:
        subprocess.run(["strip", "-o", stripped, plain.executable], check=True)
    with Target("growth", executable=stripped) as target:
        report = grown(target, f"mmap {8 * MIB}")
        assert report.attributed_share is not None
        assert report.attributed_share > 0.97
        assert any(frame.startswith("target-growth+0x") for frame in report.stacks[0].frames)


def test_no_such_process_is_one_line() -> None:
    done = run_probe("growth", "--pid", str(2**30))
    assert done.code == 1
    assert done.stderr.count("\n") == 1


def test_the_probe_ends_on_request() -> None:
    with growing() as target:
        growth = recorded(target, lambda: None)
        assert growth.seconds < PATIENCE
        assert json.dumps(growth.lost)
    with pytest.raises(StallscopeError):
        memory.record(2**30, memory.Options(seconds=1))


def test_the_heaps_of_a_hostile_process_have_a_deadline() -> None:
    """To follow each of its lists to the limit would take minutes."""
    with growing() as target:
        target.ask("arenas 2000")
        growth = recorded(target, lambda: None)
    assert growth.malloc is not None
    assert growth.malloc.unknown == "the arenas of glibc's malloc were not found in time"
