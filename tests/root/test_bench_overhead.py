# SPDX-License-Identifier: Apache-2.0
"""What scripts/bench overhead measures beside: it is attached meanwhile, and gone afterwards."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.bench.overhead_variants import is_stopped, stopped
from tests.support.bpf_objects import attached, held, loaded
from tests.support.empty_programs import empty_programs
from tests.support.known_waits import known_waits, make
from tests.support.servers import wait_until
from tests.support.targets import Target

__all__: list[str] = []

pytestmark = [pytest.mark.needs("root", "bpf")]


def test_empty_programs_are_attached_and_leave_nothing() -> None:
    own = os.getpid()
    before = held(own)
    with empty_programs():
        more = held(own) - before
        assert sorted(name.split()[0] for name in more) == ["link", "link", "prog", "prog"]
        assert attached([own]) == 2
    assert held(own) == before
    wait_until(lambda: not more & loaded(), "the kernel has removed the empty programs")


def test_a_stopped_process_continues() -> None:
    with Target("costs") as target:
        with stopped([target.pid]):
            assert is_stopped(target.pid)
        assert target.ask("getppid 1")["ns"] > 0


def test_an_operation_is_repeated_in_the_file_that_is_there(tmp_path: Path) -> None:
    with known_waits(tmp_path) as target:
        first = make(target, "fallocate 1 65536")
        assert first.path is not None
        size = os.stat(first.path)
        again = make(target, "again fallocate 2 65536")
        assert (again.path, len(again.calls)) == (first.path, 2)
        assert os.stat(first.path).st_ino == size.st_ino
        assert os.stat(first.path).st_size == 2 * 65536
