# SPDX-License-Identifier: Apache-2.0
"""A program that ``stallscope run`` has started: captured while it runs, and after its end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from stallscope.base.errors import Exit
from stallscope.collectors import probe
from stallscope.collectors import rings as find_rings
from stallscope.collectors.rings import RUNTIME_DIR, of_processes
from stallscope.main import main
from stallscope.model import capturefile
from stallscope.model.capture import Capture
from stallscope.model.rings import SUFFIX
from tests.needs import why_not
from tests.support import ringimages
from tests.support.servers import PATIENCE, wait_until
from tests.support.servers.inside import library_path, one_ring
from tests.support.targets import Fact, Target

CHECKOUT = Path(__file__).resolve().parents[2]
KINDS = ("mutex", "rwlock")

pytestmark = [pytest.mark.needs("probe", "library"), pytest.mark.large]

Ask = Callable[..., dict[str, Any]]


@pytest.fixture
def server(rings: Path) -> Iterator[Target]:
    """Yield a program whose threads wait for locks of every kind, as it knows itself."""
    wrapper = [sys.executable, "-P", "-m", "stallscope", "run"]
    wrapper += ["--ring-dir", str(rings), "--threshold", "50", "--threads", "64", "--"]
    env = {"PYTHONPATH": str(CHECKOUT), "STALLSCOPE_LIBRARY": str(library_path())}
    with Target("locks", wrapper=wrapper, env=env) as target:
        yield target


@pytest.fixture
def ring(server: Target, rings: Path) -> Path:
    """Return the ring of the server, when those of its threads that wait have written it."""
    path = one_ring(rings)
    wanted = len(waiters(server))
    wait_until(lambda: find_rings.read(path).waiting >= wanted, f"{wanted} threads in a wait")
    return path


@pytest.fixture
def ask(capsys: pytest.CaptureFixture[str]) -> Ask:
    """Return a function that runs a command and reads its JSON."""

    def run(*args: str) -> dict[str, Any]:
        code = main([*args])
        captured = capsys.readouterr()
        assert code in (Exit.DONE, Exit.PARTIAL), captured.err
        answer: dict[str, Any] = json.loads(captured.out.splitlines()[-1])
        return answer

    return run


def waiters(server: Target) -> list[Fact]:
    """Return what waits for a lock. One that was woken in a condition still counts for that."""
    facts = [fact for fact in server.facts if fact.kind in KINDS and fact.tid]
    return [fact for fact in facts if fact.symbol != "cond_back_mutex"]


def names(capture: Capture, tid: int) -> list[str]:
    (thread,) = [thread for thread in capture.threads if thread.tid == tid]
    return [str(frame) for frame in thread.frames]


def captured(server: Target, ask: Ask, saved: Path) -> Capture:
    """Take captures until every waiter has its stack, and has read its lock's owner with it.

    That is so when it has waited for 10 ms.
    """
    pid = str(server.pid)

    def whole() -> Capture | None:
        ask("snap", "-p", pid, "--backend", "inproc", "--json", "--force", "-o", str(saved))
        capture = capturefile.read(saved)
        return capture if all(names(capture, fact.tid) for fact in waiters(server)) else None

    found = wait_until(whole, "every waiter has written its stack")
    assert found is not None
    return found


def test_what_the_dead_leave(server: Target, ring: Path, ask: Ask, tmp_path: Path) -> None:
    captured(server, ask, tmp_path / "capture.jsonl")
    os.kill(server.pid, signal.SIGKILL)
    server.wait()
    (found,) = ask("inproc", "status", "--ring", str(ring), "--json")["rings"]
    assert found["life"] == "left"
    answer = ask("analyze", str(ring), "--json")
    assert answer["inputs"] == [{"path": str(ring), "format": "ring", "captures": 1}]
    assert answer["backend"] == "inproc"
    groups = [frame for group in answer["groups"] for frame in group["frames"]]
    assert "pthread_mutex_lock" in groups
    owners = {lock["owner_tid"] for finding in answer["findings"] for lock in finding["locks"]}
    known = {fact.owner for fact in waiters(server)}
    assert owners <= known | {None}
    assert main(["inproc", "clean", "--ring", str(ring)]) == Exit.DONE
    assert not ring.exists()


CHANGED: dict[str, dict[int, object]] = {
    "a newer one": {},
    "of another boot": {22: b"00000000-0000-0000-0000-000000000000"},
    "of an earlier process": {18: 1},
    "of another version": {1: 99},
    "that is cut": {3: 1 << 30},
}
"""Fields of the header (ringimages.CONSTANT)."""


@pytest.mark.parametrize("which", CHANGED)
def test_captures_and_waits_and_lists_agree_whose_a_ring_is(
    server: Target, ring: Path, monkeypatch: pytest.MonkeyPatch, which: str
) -> None:
    data = bytearray(ring.read_bytes())
    fields = list(ringimages.CONSTANT.unpack_from(data))
    fields[20] += 1  # it was made later
    for field, value in CHANGED[which].items():
        fields[field] = value
    ringimages.CONSTANT.pack_into(data, 0, *fields)
    other = ring.with_name(f"{server.pid}-{fields[20]:x}{SUFFIX}")
    other.write_bytes(data)
    expected = ring if CHANGED[which] else other
    monkeypatch.setenv(RUNTIME_DIR, str(ring.parent))
    (found,) = of_processes([server.pid])
    assert found.path == expected
    args = ["waits", "--backend", "inproc", "--pid", str(server.pid), "--duration", "0.1"]
    done = subprocess.run([probe.find(), *args], capture_output=True, check=True, timeout=PATIENCE)
    lines = [json.loads(text) for text in done.stdout.splitlines()]
    rings = [one for line in lines for one in line.get("programs", ()) if one["name"] == "ring"]
    assert [one["attach"] for one in rings] == [str(expected)]


def test_the_web_page_names_the_ring(
    server: Target, ring: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reason = why_not("web")
    if reason is not None:
        pytest.skip(f"web: {reason}")
    page = tmp_path / "page.html"
    assert main(["report", str(ring), "-o", str(page)]) in (Exit.DONE, Exit.PARTIAL)
    text = page.read_text()
    assert "backend: inproc" in text
    assert "the last moment in the ring" in text
