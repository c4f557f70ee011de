# SPDX-License-Identifier: Apache-2.0
"""What a program sees of the library that was loaded into it: nothing. What the ring says of it:
what it did.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stallscope.model.waitkinds import THRESHOLDS
from tests.support.chance import SEED
from tests.support.known_waits import known_waits, make
from tests.support.servers import PATIENCE
from tests.support.servers.inside import RINGS, library_path, one_ring, preloaded
from tests.support.targets import Target, target_path

pytestmark = [pytest.mark.needs("library"), pytest.mark.large]

CHECKOUT = Path(__file__).resolve().parents[2]
THRESHOLD_MS = 10
# enum stall_ring_call, enum stall_wait_record_type
MUTEX_LOCK, RDLOCK, WRLOCK, COND_WAIT, MUTEX_UNLOCK, RWLOCK_UNLOCK, SIGNAL, BROADCAST = range(1, 9)
END, IN_FLIGHT, WAKER = range(1, 4)

OPERATIONS = (
    *("fsync", "fdatasync", "sync_file_range", "msync", "syncfs", "fallocate", "ftruncate"),
    *("extend", "unlink", "rename", "write", "read"),
)

Facts = dict[str, list[dict[str, Any]]]


def kept(rings: Path, **variables: str) -> dict[str, str]:
    """Return the environment of a process whose ring stays when it ends."""
    return preloaded(rings, STALLSCOPE_KEEP_RING="1", **variables)


def run(
    *command: str | Path, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        env={**os.environ, **(env or {})},
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
        stdin=subprocess.DEVNULL,
    )


def facts_of(ring: Path) -> Facts:
    """Return what a ring says, by kind of fact."""
    done = run(target_path("ring_facts"), ring)
    assert done.returncode == 0, done.stderr
    facts: Facts = {"stat": [], "slot": [], "record": []}
    for line in done.stdout.splitlines():
        fact = msgspec.json.decode(line, type=dict[str, Any])
        facts.setdefault(fact.pop("fact"), []).append(fact)
    return facts


def test_every_call_returns_what_it_would_without(tmp_path: Path, rings: Path) -> None:
    answers = []
    for name, env in {
        "without": {},
        "with": kept(rings, STALLSCOPE_THRESHOLD="0"),
        "off": kept(rings, STALLSCOPE_OFF="1"),
    }.items():
        folder = tmp_path / name
        folder.mkdir()
        done = run(target_path("semantics"), folder, env=env)
        assert (done.returncode, done.stderr) == (0, "")
        answers.append(done.stdout.splitlines())
    assert len(answers[0]) > 500
    assert answers[1] == answers[0]
    assert answers[2] == answers[0]
    assert len(list(rings.glob(RINGS))) >= 1


def test_every_kind_of_lock_names_who_released_it(tmp_path: Path, rings: Path) -> None:
    """Those that are waited for in one piece, too: robust ones, those with a protocol, ..."""
    env = kept(rings, STALLSCOPE_THRESHOLD=f"lock={THRESHOLD_MS}")
    done = run(target_path("semantics"), tmp_path, "staged", env=env)
    assert (done.returncode, done.stderr) == (0, "")
    held = {"mutex": 0, "rwlock": 0}
    for line in done.stdout.splitlines():
        if line.split()[0] in held:
            # Of an ordinary thread one with a ceiling cannot be had.
            held[line.split()[0]] += os.geteuid() == 0 or "protect" not in line
    # A child of it that died with a lock has left a ring of its own, perhaps.
    wakers = [
        record
        for ring in rings.glob(RINGS)
        for record in facts_of(ring)["record"]
        if record["type"] == WAKER
    ]
    for kind, operation in (("mutex", MUTEX_UNLOCK), ("rwlock", RWLOCK_UNLOCK)):
        objects = {waker["id"] for waker in wakers if waker["operation"] == operation}
        assert len(objects) == held[kind] > 0


@pytest.mark.parametrize("operation", OPERATIONS)
def test_waits_for_files_are_counted(tmp_path: Path, rings: Path, operation: str) -> None:
    # Each has a record: END, with the stack of the call.
    env = kept(rings, STALLSCOPE_THRESHOLD="0")
    with known_waits(tmp_path, env=env) as target:
        made = make(target, f"{operation} 7 20480")
        facts = facts_of(one_ring(rings))
    number = THRESHOLDS.index(operation)
    stats = [stat for stat in facts["stat"] if stat["kind"] == number]
    # Those that ready the file are of the same kinds.
    ours = [record for record in facts["record"] if record["kind"] == number]
    assert sum(stat["count"] for stat in stats) >= 7
    assert len(ours) >= 7
    assert all(record["stack"] > 0 and record["type"] == END for record in ours)
    assert {record["tid"] for record in ours} == {call.tid for call in made.calls}


@pytest.mark.parametrize(
    ("kind", "count"),
    [("cancel", 60), ("fork", 200), ("signal", 3000), ("jump", 500), ("churn", 10_000)],
)
def test_nothing_that_interrupts_a_wait_leaves_anything_behind(
    tmp_path: Path, rings: Path, kind: str, count: int
) -> None:
    env = kept(rings, STALLSCOPE_THRESHOLD="1")
    command = (target_path("upheavals"), tmp_path, kind, str(count), str(SEED))
    with subprocess.Popen(
        command, env={**os.environ, **env}, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        out, said = process.communicate(timeout=PATIENCE)
    assert (process.returncode, said) == (0, b"")
    printed = msgspec.json.decode(out)
    assert printed["rounds"] > 0
    (ring,) = rings.glob(f"{process.pid}-*")
    facts = facts_of(ring)
    # 4 fighters, 16 at a time, the main thread; a slot is free when its thread has ended.
    assert facts["ring"][0]["slots_used"] <= 2 * 21
    assert facts["ring"][0]["waits"] > 100 * min(1, printed["rounds"] / count)
    assert [slot["tid"] for slot in facts["slot"]] == [process.pid]
    assert [slot for slot in facts["slot"] if slot["waits"]] == []
    assert [stat for stat in facts["stat"] if stat["marked"]] == []


@pytest.mark.needs("ptrace")
def test_a_handler_may_leave_the_library_around_each_of_its_calls(
    tmp_path: Path, rings: Path
) -> None:
    """From the first call of a process, in which the ring is made and the slot is taken."""
    env = kept(rings, STALLSCOPE_THRESHOLD="0")
    done = run(target_path("upheavals"), tmp_path, "steps", "1000", str(SEED), env=env)
    assert (done.returncode, done.stderr) == (0, "")
    children = {int(ring.name.removeprefix("kept-")): ring for ring in rings.glob("kept-*")}
    assert len(children) >= 3 * msgspec.json.decode(done.stdout)["rounds"]
    for pid, ring in children.items():
        facts = facts_of(ring)
        assert [(slot["tid"], slot["waits"]) for slot in facts["slot"]] == [(pid, 0)]
        # What it does after the jump is recorded.
        assert {COND_WAIT} <= {one["operation"] for one in facts["record"]}


def test_it_can_be_opened_later(rings: Path) -> None:
    """Open it by dlopen(3), call it by its handle, close it: what is called alone is recorded."""
    script = (
        "import ctypes, os, _ctypes; "
        f"library = ctypes.CDLL({str(library_path())!r}, mode=ctypes.RTLD_GLOBAL); "
        "fd = os.memfd_create('x'); assert library.fsync(fd) == 0; "
        "_ctypes.dlclose(library._handle); os.fsync(fd); print('well')"
    )
    env = kept(rings)
    del env["LD_PRELOAD"]
    done = run("/usr/bin/python3", "-c", script, env=env)
    assert (done.returncode, done.stdout, done.stderr) == (0, "well\n", "")
    assert [stat["count"] for stat in facts_of(one_ring(rings))["stat"]] == [1]


def test_a_lock_that_is_free_says_nothing(rings: Path) -> None:
    with Target("lock_costs", env=kept(rings)) as target:
        target.ask("mutex 50")
        target.ask("rdlock 50")
        target.ask("wrlock 50")
        # Two threads waited for each other before it was ready.
        facts = facts_of(one_ring(rings))
    assert facts["ring"][0]["waits"] <= 5


def test_waits_without_a_timer_lose_no_wake(rings: Path) -> None:
    """Every competitor gets its mutexes in the end, of each kind, and no two hold one at a time."""
    passes = 5000
    done = run(target_path("hot"), str(passes), env=kept(rings))
    assert (done.returncode, done.stderr) == (0, "")
    held = " ".join([str(6 * passes)] * 4)
    assert done.stdout == f"{held} turns {6 * passes} wrong 0\n"
    assert facts_of(one_ring(rings))["ring"][0]["waits"] > 100


def sanitized(folder: Path, name: str, *options: str) -> Path:
    """Compile a target with a sanitizer."""
    if shutil.which("gcc") is None:
        pytest.skip("no gcc here")
    program = folder / name
    source = CHECKOUT / "tests" / "targets" / "upheavals.c"
    command = ("gcc", "-w", "-O1", "-g", "-D_GNU_SOURCE", "-pthread", f"-fsanitize={name}")
    done = run(*command, *options, "-o", program, source)
    if done.returncode:
        pytest.skip(f"gcc has no {name} sanitizer here: {done.stderr.splitlines()[-1]}")
    return program


def runtime_of(name: str) -> str:
    return run("gcc", f"-print-file-name=lib{name}.so").stdout.strip()


@pytest.mark.parametrize("runtime", ["first", "unchecked", "static"])
def test_a_program_with_address_sanitizer(tmp_path: Path, rings: Path, runtime: str) -> None:
    """Its runtime insists on being the first library, where it is a library."""
    program = sanitized(tmp_path, "address", *(["-static-libasan"] if runtime == "static" else []))
    env = kept(rings)
    if runtime == "first":
        env["LD_PRELOAD"] = f"{runtime_of('asan')} {env['LD_PRELOAD']}"
    elif runtime == "unchecked":
        env["ASAN_OPTIONS"] = "verify_asan_link_order=0"
    done = run(program, tmp_path, "churn", "500", "1", env=env)
    assert (done.returncode, done.stderr) == (0, "")
    assert facts_of(one_ring(rings))["ring"][0]["waits"] > 500


@pytest.mark.parametrize("runtime", ["behind", "first", "static"])
def test_a_program_with_thread_sanitizer(tmp_path: Path, rings: Path, runtime: str) -> None:
    """Where it stands behind the library it is left to see every call, and nothing is recorded."""
    program = sanitized(tmp_path, "thread", *(["-static-libtsan"] if runtime == "static" else []))
    env = kept(rings)
    if runtime == "first":
        env["LD_PRELOAD"] = f"{runtime_of('tsan')} {env['LD_PRELOAD']}"
    done = run(program, tmp_path, "churn", "500", "1", env=env)
    assert (done.returncode, done.stderr) == (0, "")
    if runtime == "behind":
        assert list(rings.iterdir()) == []
    else:
        assert facts_of(one_ring(rings))["ring"][0]["waits"] > 500
