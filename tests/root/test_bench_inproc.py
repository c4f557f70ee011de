# SPDX-License-Identifier: Apache-2.0
"""What scripts/bench inproc measures by a target, in small."""

from __future__ import annotations

import pytest

from tests.bench.inproc_load import Loaded, Plan, loaded
from tests.bench.inproc_locks import (
    FREE,
    NOISE,
    OFF,
    PROGRAMS,
    WITH,
    Sizes,
    free_section,
    in_turns,
    pass_section,
    storm_section,
)
from tests.bench.inproc_need import Sizes as NeedSizes
from tests.bench.inproc_need import memory_section
from tests.bench.inproc_share import leaves
from tests.bench.inproc_stack import CALLS, DEPTHS, TRANSFERS, stack_section, transfer_section
from tests.bench.stats import Figure
from tests.support.servers import MariaDB
from tests.support.targets import target_path

__all__: list[str] = []

pytestmark = pytest.mark.needs("library")

SMALL = Sizes(rounds=2, batches=20, seconds=0.5)


def test_every_state_comes_at_every_place() -> None:
    states = ["a", "b", "c"]
    orders = [in_turns(states, number) for number in range(6)]
    assert {tuple(sorted(order)) for order in orders} == {("a", "b", "c")}
    for place in range(3):
        assert {order[place] for order in orders} == set(states)


def test_free_locks_are_timed_with_and_without() -> None:
    section = free_section(SMALL)
    assert len(section.rows) == len(FREE)
    for row in section.rows:
        assert list(row.cells) == ["without", *(f"added by {one}" for one in (WITH, OFF, NOISE))]


def test_transfers_are_timed_in_a_process_that_has_the_library() -> None:
    section = transfer_section(SMALL)
    assert [row.name for row in section.rows] == list(TRANSFERS.values())
    for row in section.rows:
        assert list(row.cells) == ["without", f"added by {WITH}", f"added by {OFF}"]


@pytest.mark.skipif(not target_path("stack_costs").exists(), reason="libunwind-dev is missing")
def test_a_copy_of_a_stack_takes_no_lock_of_the_loader() -> None:
    section = stack_section(SMALL)
    assert len(section.rows) == len(DEPTHS)
    assert len(section.notes) == len(CALLS)
    assert section.notes[0].startswith("the library's copy returned")


@pytest.mark.needs("root", "waits")
def test_every_lock_of_two_threads_that_chase_each_other_waits() -> None:
    section = pass_section(SMALL)
    for row in section.rows:
        waits = row.cells["waits"]
        assert isinstance(waits, Figure)
        assert 1.9 < waits.low <= waits.high <= 2.1
    assert [row.name for row in section.rows][1:] == [NOISE, WITH, OFF, PROGRAMS]


@pytest.mark.needs("root", "waits")
def test_threads_that_fight_for_a_mutex_wait_in_every_state() -> None:
    section = storm_section(SMALL)
    assert [row.name for row in section.rows][1:] == [NOISE, WITH, PROGRAMS]


def test_a_sample_is_of_the_code_that_ran_or_made_the_system_call() -> None:
    script = """
        ffffffffa1 ([kernel.kallsyms])
            7f01 (/tmp/libstallscope.so)
            5501 (/usr/sbin/mariadbd)

            7f02 (/lib/libc.so.6)
            7f01 (/tmp/libstallscope.so)

        ffffffffa1 ([kernel.kallsyms])
        ffffffffa2 (/lib/modules/6.1/ext4.ko)

            7ffe ([vdso])
"""
    found = list(leaves(script.splitlines()))
    assert found == ["libstallscope.so", "libc.so.6", "kernel", "[vdso]"]


def test_the_memory_of_waiting_threads_is_in_the_ring() -> None:
    section = memory_section(NeedSizes(threads=50))
    assert len(section.rows) == 4


@pytest.mark.needs("root", "mariadb", "sysbench")
def test_a_load_that_is_stopped_does_nothing_until_its_window() -> None:
    plan = Plan(servers=1, pairs=1, seconds=0.2, threads=2)
    with MariaDB() as server, loaded(server, "oltp_point_select", plan) as load:
        assert isinstance(load, Loaded)
        assert load.window(plan).rate > 0
        before = server.status("Questions")
        assert server.status("Questions") - before < 10
