# SPDX-License-Identifier: Apache-2.0
"""Whenever a writer is killed, nothing is torn and no announced incident is lost."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from stallscope.store import Retention, Store
from tests.unit.storelife import FakeTimes, Said, check, life, memory_folder

KILLS = 60
"""At random moments; test_store_power tries each moment between two writes."""
STEP = 300
SECONDS = 240
"""Only what fails takes as long."""
_AGENT = "import sys; from tests.unit import test_store_kill; test_store_kill.agent(*sys.argv[1:])"
_KILLS = "import sys; from tests.unit import test_store_kill; test_store_kill.kills(*sys.argv[1:])"


def agent(dest: str, first: str, keep: str) -> None:
    """Live, and say on standard output, unbuffered, what is done."""
    life(Path(dest), int(first), _say, keep=int(keep))


def _say(said: Said) -> None:
    os.write(1, json.dumps(said).encode() + b"\n")


def _forked(dest: Path, first: int) -> tuple[int, int]:
    """Start an agent that lives on and on; return its pid and the pipe it talks to."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writer)
        return pid, reader
    try:
        os.dup2(writer, 1)
        os.write(1, b"\n")
        for number in range(first, first + STEP, 3):
            agent(str(dest), str(number), "3")
    finally:
        os._exit(1)


def _rest(reader: int) -> list[Said]:
    with os.fdopen(reader, "rb") as pipe:
        return [tuple(json.loads(line)) for line in pipe.read().splitlines() if line]


@pytest.mark.slow
def test_killed_at_any_moment() -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    # In a process of its own: it forks, which is quick and safe where little is loaded, and no
    # other thread runs.
    with memory_folder() as folder:
        subprocess.run([sys.executable, "-c", _KILLS, str(folder), str(seed)], check=True)


def kills(name: str, seed: str) -> None:
    """Kill agents of one store at random moments, and check the store after each."""
    folder, chance = Path(name), random.Random(int(seed))
    dest = folder / "store"
    life(folder / "first", 0, lambda _: None)  # with all that is loaded only once
    start = time.monotonic()
    life(folder / "second", 0, lambda _: None)
    seconds = time.monotonic() - start
    announced = 0
    said: list[Said] = []
    number = 0
    # How many come as far as an incident depends on how long a fork takes here: go on till enough.
    while number < KILLS or announced <= KILLS // 2:
        assert number < 5 * KILLS, f"{announced} incidents in {number} lives"
        pid, reader = _forked(dest, number * STEP)
        assert os.read(reader, 1) == b"\n"
        time.sleep(chance.random() * seconds)  # the moment is what is tried here
        os.kill(pid, signal.SIGKILL)
        new = _rest(reader)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
        announced += sum(what == "announced" for what, _, _ in new)
        said = _still_there(said) + new
        check(dest, said)
        number += 1
    print(f"{number} lives, {announced} incidents announced")
    _after(dest)


def _still_there(said: list[Said]) -> list[Said]:
    """Leave out what retention had removed before."""
    going = {name for what, name, _ in said if what == "going"}
    return [one for one in said if one[1] not in going]


def _after(dest: Path) -> None:
    """A last agent clears up what all the others left."""
    store = Store.open(dest)
    store.recover()
    assert all(s.interrupted or s.end_ns for s in store.listing().incidents)
    later = time.time_ns() + 2 * 3600 * 10**9
    Store(dest, FakeTimes(later)).prune(Retention(days=None, count=1))
    assert len(store.listing().incidents) == 1
    assert len(os.listdir(dest / "incidents")) == 1


def test_two_agents_at_once(tmp_path: Path) -> None:
    """They begin incidents of the same id at the same time; each keeps its own."""
    dest = tmp_path / "store"
    command = [sys.executable, "-c", _AGENT, str(dest), "0", "100"]
    agents = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(2)]
    outputs = [one.communicate(timeout=SECONDS)[0] for one in agents]
    assert [one.returncode for one in agents] == [0, 0]
    said: list[Said] = [tuple(json.loads(line)) for out in outputs for line in out.splitlines()]
    check(dest, said)
    names = [name for what, name, _ in said if what == "announced"]
    assert len(set(names)) == len(names) == 6
    assert {summary.id for summary in Store.open(dest).listing().incidents} == set(names)
