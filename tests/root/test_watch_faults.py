# SPDX-License-Identifier: Apache-2.0
"""What goes wrong around the wait programs: no rights, no BTF, targets that end or change,
storms."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from stallscope.collectors import probe
from tests.root.support import ONE_LINE, assert_unharmed, run_probe
from tests.support import bpf_objects
from tests.support.known_waits import known_waits, make
from tests.support.servers import PATIENCE, wait_until
from tests.support.targets import Target, target_path
from tests.support.watching import Line, Watcher, watcher

__all__: list[str] = []

pytestmark = pytest.mark.needs("root", "waits")

EVENTS = ("--events", "--threshold", "20")
MAX_RSS_KB = 300 << 10
"""Of the probe in a storm: its tables and ring are 60 MB, its arenas and symbols the rest."""
WITHOUT_BTF = ("unshare", "-m", "sh", "-c", 'mount -t tmpfs none /sys/kernel/btf && exec "$@"', "-")


def in_flight(event: Line) -> bool:
    return bool(event["kind"] == "mutex" and event["in_flight"])


def rss_kb(pid: int) -> int:
    """Return the most memory that a process has had."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1])
    raise AssertionError(f"no VmHWM of {pid}")


def test_without_capabilities(tmp_path: Path) -> None:
    """One line that names them; captures by other backends go on."""
    drop = ("setpriv", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs")
    with known_waits(tmp_path) as target:
        taken = run_probe(
            "serve", "--pid", str(target.pid), "--backend", "proc", "--watch", prefix=drop
        )
        assert taken.code == 1
        assert ONE_LINE.match(taken.stderr), taken.stderr
        assert "CAP_" in taken.stderr
        assert_unharmed(target.pid)


def test_without_btf_all_else_works(tmp_path: Path) -> None:
    with known_waits(tmp_path) as target:
        argv = [*WITHOUT_BTF, str(probe.find()), "serve", "--pid", str(target.pid)]
        commands = f"watch on\nsnap {tmp_path / 'one.jsonl'}\nwaits\nquit\n"
        done = subprocess.run(
            argv, input=commands.encode(), capture_output=True, timeout=PATIENCE, check=False
        )
        assert done.returncode == 0, done.stderr
        lines = done.stdout.decode().splitlines()
        assert lines[0] == '{"type":"ready"}'
        assert lines[1] == '{"type":"watch","on":true}'
        assert lines[2].startswith('{"type":"written"')
        line = json.loads(lines[3])
        assert (line["source"], line["sampled"]) == ("poll", True)
        why_not = {found["name"]: found["why_not"] for found in line["programs"]}
        assert "BTF" in why_not["wait programs"]
        assert "sampled" in why_not["wait programs"]
        taken = run_probe("waits", "--pid", str(target.pid), "--backend", "bpf", prefix=WITHOUT_BTF)
        assert taken.code == 1
        assert ONE_LINE.match(taken.stderr), taken.stderr


def test_features_without_btf() -> None:
    taken = run_probe("features", prefix=WITHOUT_BTF)
    assert taken.code == 0
    assert b'"wait-programs":{"ok":false,"why":"' in taken.stdout
    assert b'"wait-arrays":{"ok":true}' in taken.stdout
    assert b'"proc":{"ok":true}' in taken.stdout


def test_target_dies(tmp_path: Path) -> None:
    with (
        Target("known_waits", str(tmp_path), "--waiters", "2") as target,
        watcher(target.pid, options=EVENTS) as watch,
    ):
        make(target, "hold mutex 2")
        watch.event(in_flight, "event")
        os.kill(target.pid, signal.SIGKILL)
        line = watch.line(lambda line: line["type"] == "error", "word of its end")
        assert str(target.pid) in line["message"]
        assert watch.process.wait(PATIENCE) == 1


def test_restart_under_a_new_pid(tmp_path: Path) -> None:
    """With --follow both captures and probes take the next process up."""
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    options = (*EVENTS, "--follow", "--capture-threshold", "mutex=40", "--capture-interval", "1000")
    with known_waits(first, 2) as old, watcher(old.pid, options=options) as watch:
        make(old, "hold mutex 2")
        watch.capture(0)
        os.kill(old.pid, signal.SIGKILL)
        old.wait()
        watch.line(lambda line: line["type"] == "ended", "word of its end")
        assert watch.ask("snap", "error")["type"] == "error"
        with known_waits(second, 2) as new:
            answer = watch.ask(f"target {new.pid}", "target", "error")
            assert answer == {"type": "target", "pid": new.pid}
            watch.say("capture-threshold mutex 30")
            watch.ask("watch on", "watch")
            seen = len(watch.captures)
            wait_until(lambda: taken_of(watch, new, seen), "a capture of the new one")
            assert_unharmed(new.pid)
            capture = watch.captures[-1]
            assert [process.pid for process in capture.processes] == [new.pid]
            assert capture.trigger is not None
            assert capture.trigger.name == "the_mutex"


def taken_of(watch: Watcher, target: Target, seen: int) -> bool:
    """Have the target wait once more, until that takes a capture: they come at an interval."""
    make(target, "mutex 1 60")
    return len(watch.captures) > seen


def test_target_execs_and_forks(tmp_path: Path) -> None:
    """The probe goes on with whatever the process is now, and does not watch its children."""
    other = str(target_path("execer2"))
    with (
        Target("execer", "3000", other, listens=False) as target,
        watcher(target.pid, options=("--events", "--threshold", "1")) as watch,
    ):
        for _ in range(20):
            line = watch.ask("waits", "waits", "error")
            assert line["type"] == "waits"
            assert {one["pid"] for one in line["targets"]} == {target.pid}
        assert target.running()
        assert_unharmed(target.pid)


def test_storm() -> None:
    """What is too much is counted by its cause, and memory stays bounded."""
    options = ("--events", "--threshold", "0.01", "--interval", "200")
    with Target("storm", "8", "1000", "1000") as target:
        alone = target.ask("run 1000")["operations"]
        with watcher(target.pid, options=options) as watch:
            asleep = target.ask("run 3000")["voluntary"]
            most = rss_kb(watch.pid)
            assert watch.quit() == 0
        final = watch.lines[-1]
        assert final["final"] is True
        mutex = final["kinds"]["mutex"]
        waits = mutex["count"] + final["kinds"]["futex"]["count"]
        print(f"{alone} operations a second alone; {waits} waits in 3 s, lost {final['lost']}")
        # How many there are is up to the scheduler. Threads go to sleep for the mutex alone, and
        # a call that finds the word changed does not sleep.
        assert waits >= asleep > 0
        assert all(isinstance(count, int) and count >= 0 for count in final["lost"].values())
        assert most < MAX_RSS_KB, f"{most} kB"
        assert_unharmed(target.pid)


def test_killed_probe_leaves_nothing_attached(tmp_path: Path) -> None:
    with known_waits(tmp_path, 3) as target:
        with watcher(target.pid, options=EVENTS) as watch:
            probes = bpf_objects.held(watch.pid)
            assert len(probes) > 5
            make(target, "hold mutex 3")
            watch.event(in_flight, "event")
            os.kill(watch.pid, signal.SIGKILL)
            assert watch.process.wait(PATIENCE) == -signal.SIGKILL
            wait_until(
                lambda: not probes & bpf_objects.loaded(), "nothing of it is left in the kernel"
            )
        assert len(make(target, "release").calls) == 3
        assert len(make(target, "mutex 1 5").calls) == 1
        assert_unharmed(target.pid)
