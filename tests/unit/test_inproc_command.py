# SPDX-License-Identifier: Apache-2.0
"""``stallscope inproc`` on rings of living and of dead servers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from stallscope.base.errors import Exit
from stallscope.collectors import rings
from stallscope.main import main
from stallscope.model.rings import SUFFIX, Life
from tests.support.ringimages import made, of_this_process

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.needs("probe")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder in which rings are searched, instead of the machine's own."""
    monkeypatch.setenv("STALLSCOPE_RUNTIME_DIR", str(tmp_path))
    return tmp_path


def gone(folder: Path, **more: object) -> Path:
    """Make the ring of a process that was here and is not any more."""
    process = subprocess.Popen(["true"])
    process.wait()
    path = folder / f"{process.pid}-7{SUFFIX}"
    namespace = os.stat("/proc/self/ns/pid").st_ino
    return made(path, pid=process.pid, namespace=namespace, **more)  # type: ignore[arg-type]


def lives(folder: Path) -> dict[str, Life]:
    return {found.path.name: found.life for found in rings.everywhere()}


def test_whether_a_server_lives(folder: Path) -> None:
    alive = of_this_process(folder)
    dead = gone(folder)
    ended = gone(folder, ended=True)
    stat = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    namespace = os.stat("/proc/self/ns/pid").st_ino
    boot = made(
        folder / f"{os.getpid()}-1.ring",
        pid=os.getpid(),
        start_time=int(stat[19]),
        namespace=namespace,
        boot_id="00000000-0000-0000-0000-000000000000",
    )
    reused = made(
        folder / f"{os.getpid()}-2.ring",
        pid=os.getpid(),
        start_time=int(stat[19]) - 1,
        namespace=namespace,
    )
    executed = made(
        folder / f"{os.getpid()}-3.ring",
        pid=os.getpid(),
        start_time=int(stat[19]),
        start_stack=int(stat[25]) - 16,
        namespace=namespace,
        created_ns=6_000_000_000,  # the newest, and yet of the program before
    )
    assert lives(folder) == {
        alive.name: Life.ALIVE,
        dead.name: Life.LEFT,
        ended.name: Life.ENDED,
        boot.name: Life.LEFT,
        reused.name: Life.LEFT,
        executed.name: Life.LEFT,
    }


@pytest.mark.needs("namespaces")
def test_a_server_that_cannot_be_seen(folder: Path) -> None:
    foreign = made(folder / "1-1.ring", pid=1, namespace=12345)
    nameless = made(folder / "1-2.ring", pid=1, namespace=0)
    inside = ("unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-P", "-m")
    env = {**os.environ, "PYTHONPATH": str(ROOT)}

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*inside, "stallscope", "inproc", *words],
            capture_output=True,
            text=True,
            check=False,
            env=env,
        )

    answer = json.loads(run("status", "--json").stdout)
    assert {one["life"] for one in answer["rings"]} == {"unknown"}
    assert run("clean").returncode == Exit.PARTIAL
    assert foreign.exists()
    assert nameless.exists()


def test_the_ring_of_a_program_that_was_executed_before(folder: Path) -> None:
    old = of_this_process(folder, created_ns=5)
    new = of_this_process(folder, created_ns=6)
    assert lives(folder) == {old.name: Life.LEFT, new.name: Life.ALIVE}
    (found,) = rings.of_processes([os.getpid()])
    assert found.path == new


def test_the_ring_of_a_process(folder: Path) -> None:
    own = [os.getpid()]
    assert rings.of_processes(own) == []
    path = of_this_process(folder)
    gone(folder)
    (found,) = rings.of_processes(own * 2)
    assert (found.path, found.process) == (path, os.getpid())
    assert rings.of_processes([2**22 + 1]) == []


@pytest.mark.needs("root")
def test_a_file_of_somebody_else_is_not_believed(folder: Path) -> None:
    folder.chmod(0o1777)
    os.chown(of_this_process(folder), 54321, 54321)
    assert rings.of_processes([os.getpid()]) == []


@pytest.fixture
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, Path]]:
    """Start a process that has a folder of its own for its ring; yield both."""
    own = tmp_path_factory.mktemp("own")
    env = {**os.environ, "STALLSCOPE_RUNTIME_DIR": str(own)}
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, env=env) as process:
        assert process.stdin is not None
        while str(own).encode() not in Path(f"/proc/{process.pid}/environ").read_bytes():
            pass  # until it is executed
        yield process.pid, own
        process.stdin.close()


def test_the_folder_is_that_of_the_servers_environment(
    folder: Path, server: tuple[int, Path]
) -> None:
    pid, own = server
    stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    path = made(own / f"{pid}-9.ring", pid=pid, start_time=int(stat[19]))
    (found,) = rings.of_processes([pid])
    assert found.path == path


def test_status_for_people(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    of_this_process(folder, lost=(0, 3), comm=b"my\x1bsqld")
    gone(folder, enabled=False)
    assert main(["inproc", "status"]) == Exit.DONE
    out = capsys.readouterr().out
    assert f"my\\x1bsqld (pid {os.getpid()}), user" in out
    assert "recorded since" in out
    assert "on; threshold 100 ms" in out
    assert "2 threads of at most 8, 1 in a wait; 987 waits, 17 records" in out
    assert "lost: 3 slots-full" in out
    assert "has ended and left its ring" in out
    assert "off: nothing is recorded" in out


def test_status_as_json(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = of_this_process(folder, comm=b"\xff\xfe")
    (folder / "99-1.ring").write_bytes(b"nothing")
    assert main(["inproc", "status", "--json"]) == Exit.PARTIAL
    answer = json.loads(capsys.readouterr().out)
    assert answer["schema"] == "stallscope.inproc/1"
    ring, broken = sorted(answer["rings"], key=lambda one: "error" in one)
    assert (ring["file"], ring["life"], ring["process"]) == (str(path), "alive", os.getpid())
    assert ring["thresholds_ms"]["fsync"] == 100
    assert (ring["threads"], ring["waiting"], ring["slots"]) == (2, 1, 8)
    assert ring["lost"] == {}
    assert broken["life"] == "unknown"
    assert "not a ring" in broken["error"]


def test_no_ring_at_all(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "notes.txt").write_text("x")
    assert main(["inproc", "status"]) == Exit.DONE
    assert f"No ring of a server in {folder}." in " ".join(capsys.readouterr().out.split())
    assert main(["inproc", "clean"]) == Exit.DONE
    assert main(["inproc", "status", "-p", str(os.getpid())]) == Exit.FAILED
    err = capsys.readouterr().err
    assert "has no ring of libstallscope.so" in err
    assert "stallscope run" in err


def test_on_off_and_thresholds(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = of_this_process(folder)
    own = str(os.getpid())
    assert main(["inproc", "off", "-p", own]) == Exit.DONE
    assert not rings.read(path).enabled
    assert "recording is off" in capsys.readouterr().out
    assert main(["inproc", "on", "--ring", str(path)]) == Exit.DONE
    assert rings.read(path).enabled
    assert main(["inproc", "threshold", "30", "sync=5", "mutex=0.5", "-p", own]) == Exit.DONE
    assert "threshold 30 ms; lock 500 µs; fsync 5 ms;" in capsys.readouterr().out
    found = rings.read(path).thresholds_ms
    assert (found["lock"], found["fsync"], found["msync"], found["write"]) == (0.5, 5, 5, 30)


def test_nothing_is_written_for_a_server_that_is_gone(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = gone(folder)
    before = path.read_bytes()
    assert main(["inproc", "off", "--ring", str(path)]) == Exit.FAILED
    assert "has ended" in capsys.readouterr().err
    assert path.read_bytes() == before


def test_clean_takes_the_dead_and_leaves_the_living(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    alive = of_this_process(folder)
    dead, ended = gone(folder), gone(folder, ended=True)
    (folder / "README.ring").write_text("somebody's own")
    assert main(["inproc", "clean", "--ring", str(alive)]) == Exit.FAILED
    assert "its server still runs" in capsys.readouterr().err
    assert main(["inproc", "clean"]) == Exit.DONE
    out = capsys.readouterr().out
    assert str(dead) in out
    assert str(ended) in out
    assert sorted(path.name for path in folder.iterdir()) == sorted([alive.name, "README.ring"])


def test_clean_leaves_what_it_cannot_read(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "99-1.ring").write_bytes(b"nothing")
    assert main(["inproc", "clean"]) == Exit.PARTIAL
    assert "not removed" in capsys.readouterr().err
    assert (folder / "99-1.ring").exists()


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ([], "required"),
        (["restart"], "invalid choice"),
        (["on"], "which server"),
        (["off", "5", "-p", "1"], "takes no threshold"),
        (["threshold", "-p", "1"], "which threshold"),
        (["threshold", "fast", "-p", "1"], "milliseconds"),
        (["threshold", "nonsense=5", "-p", "1"], "milliseconds"),
        (["on", "--json", "-p", "1"], "--json goes with status"),
        (["status", "-p", "1", "--ring", "x"], "-p or --ring"),
        (["clean", "-p", "1"], "removes only rings of dead servers"),
    ],
)
def test_usage_errors(capsys: pytest.CaptureFixture[str], args: list[str], said: str) -> None:
    assert main(["inproc", *args]) == Exit.USAGE
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert said in err


def test_a_ring_that_is_not_there(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for action in ("status", "on", "clean"):
        assert main(["inproc", action, "--ring", str(folder / "no.ring")]) == Exit.FAILED
        captured = capsys.readouterr()
        assert "No such file" in captured.out + captured.err
