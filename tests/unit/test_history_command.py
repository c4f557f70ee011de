# SPDX-License-Identifier: Apache-2.0
"""``stallscope history``: of the agent's files, or of a program in the place of the probe."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from stallscope.base.errors import Exit
from stallscope.main import main
from stallscope.model import threadhistory
from stallscope.model.waitlines import ThreadRow, ThreadSample
from stallscope.reporters import threads
from stallscope.store import Store
from stallscope.store.history import HistoryWriter
from tests.unit.programs import python_program
from tests.unit.threadlines import COND, FSYNC, IDLE, MUTEX, RUNNING, line, sample

NS = 10**9
START = 1_795_273_675 * NS
HERE = os.getpid()
PROBE = """\
import json, os, sys
folder = os.path.dirname(os.path.abspath(sys.argv[0]))
with open(folder + "/arguments", "w") as file:
    json.dump(sys.argv[1:], file)
os.write(1, open(folder + "/lines", "rb").read())
"""

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def run_it(*args: str | Path) -> tuple[int, str, str]:
        code = main(["history", "-p", str(HERE), *map(str, args)])
        out, err = capsys.readouterr()
        return code, out, err

    return run_it


@pytest.fixture
def dest(tmp_path: Path) -> Path:
    return Store.open(tmp_path / "store").dest


@pytest.fixture
def kept(dest: Path) -> Iterator[Path]:
    """Return a store in which an agent, this process, watches this process."""
    now = time.time_ns()
    writer = HistoryWriter(dest)
    calm = [sample(now - (120 - n) * NS, IDLE, COND, RUNNING) for n in range(60)]
    busy = [sample(now - (60 - n) * NS, IDLE, MUTEX, FSYNC, RUNNING) for n in range(60)]
    writer.append("mariadbd", (HERE,), [*calm, *busy])
    yield dest
    writer.close()


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that makes a probe which says lines with these samples."""

    def make(*samples: ThreadSample) -> None:
        said = [{"type": "waits", **msgspec.to_builtins(line(one))} for one in samples]
        final = {"type": "waits", **msgspec.to_builtins(line()), "final": True}
        data = b"".join(json.dumps(one).encode() + b"\n" for one in (*said, final))
        (tmp_path / "lines").write_bytes(data)
        monkeypatch.setenv("STALLSCOPE_PROBE", str(python_program(tmp_path / "probe", PROBE)))

    return make


def test_the_agents_history(run: Run, kept: Path) -> None:
    code, out, err = run("--dest", kept)
    assert (code, err) == (Exit.DONE, "")
    head, rest = out.split("\n\n", 1)
    assert f"history of the agent (pid {HERE}); 120 samples over" in " ".join(head.split())
    assert max(map(len, out.splitlines())) <= 80
    table = rest.split("\n\n")[0].splitlines()
    assert table[1].split() == ["time", "threads", "active", "running", "mutex", "fsync"]
    assert 12 <= len(table) <= 23
    assert table[-1].split()[1:] == ["397", "17", "2", "12", "3"]
    rows = rest.split("\n\n")[1].splitlines()
    assert "mutex buf_pool->mutex (futex), in futex_wait_queue" in rows[1]
    assert rows[1].split()[:3] == ["6", "12", "50%"]
    assert "running" in rows[2]
    assert "fsync redo, in jbd2_log_wait_commit" in rows[3]
    assert "idle in ppoll, in do_sys_poll" in rows[4]


def test_since(run: Run, kept: Path) -> None:
    _, out, _ = run("--dest", kept, "--since", "30s", "--top", 1)
    assert "30 samples" in out or "29 samples" in out
    assert "3 other rows" in out
    code, out, _ = run("--dest", kept, "--since", "2999-01-01")
    assert code == Exit.DONE
    assert "no samples since then" in out


def test_json_has_every_sample(run: Run, kept: Path) -> None:
    _, out, _ = run("--dest", kept, "--json", "--since", "50s")
    value = json.loads(out)
    assert (value["schema"], value["source"], value["agent"]) == (
        "stallscope.history/1",
        "agent",
        HERE,
    )
    assert value["target"]["pid"] == HERE
    last = value["samples"][-1]
    assert (last["threads"], last["active"]) == (397, 17)
    assert last["activity"] == {"running": 2, "mutex": 12, "fsync": 3, "idle": 380}
    assert last["rows"][1] == {
        "count": 12,
        "state": "S",
        "call": "futex",
        "kind": "mutex",
        "name": "buf_pool->mutex",
        "channel": "futex_wait_queue",
    }


def test_without_an_agent_it_samples(
    run: Run, dest: Path, fake: Callable[..., None], tmp_path: Path
) -> None:
    fake(sample(START, MUTEX), sample(START + NS, MUTEX))
    code, out, err = run("--dest", dest, "--duration", 3)
    assert code == Exit.DONE
    assert "no agent watches it; sampled live; 2 samples over 1 s" in " ".join(out.split())
    assert err == "sampling for 3 s …\n"
    words = json.loads((tmp_path / "arguments").read_bytes())
    assert words[0] == "waits"
    assert {"--at-rest", "--history", "--no-uprobes"} <= set(words)
    assert words[words.index("--duration") + 1] == "3.000"


def test_live_is_not_of_the_agent(run: Run, kept: Path, fake: Callable[..., None]) -> None:
    fake(sample(START, MUTEX))
    code, out, err = run("--dest", kept, "--live", "--json")
    assert (code, err) == (Exit.DONE, "")
    value = json.loads(out)
    assert (value["source"], value["agent"], len(value["samples"])) == ("live", None, 1)


def test_a_probe_that_takes_no_samples_is_one_line(
    run: Run, dest: Path, fake: Callable[..., None]
) -> None:
    fake()
    code, out, err = run("--dest", dest, "--json")
    assert (code, out) == (Exit.FAILED, "")
    assert err.startswith("stallscope: the probe took no samples of threads")
    assert err.count("\n") == 1


@pytest.mark.parametrize("words", [["--since", "noon"], ["--duration", "0"], ["--dest", "/none"]])
def test_wrong_usage_is_one_line(run: Run, words: list[str]) -> None:
    code, out, err = run(*words)
    assert (code, out) == (Exit.USAGE, "")
    assert err.count("\n") == 1


def test_kinds_without_room_are_summed() -> None:
    kinds = ("mutex", "rwlock", "sem", "futex", "fsync", "read", "write", "unlink", "rename")
    rows = [ThreadRow(n + 1, "S", "call", kind) for n, kind in enumerate(kinds)]
    found = threadhistory.buckets([sample(START, *rows, ThreadRow(1, "D"))], NS)
    for width in (40, 80, 120):
        head, body = list(threads.table(found, width))
        assert max(len(head.text), len(body.text)) <= width
        figures = [float(word) for word in body.text.split()[1:]]
        assert sum(figures[2:]) == figures[1] == 46
    assert head.text.split()[-1] == "state-D"


def test_hostile_rows_are_inert() -> None:
    evil = "\x1b[2J\n\u202e" * 50
    rows = [ThreadRow(1, state, evil, "mutex", evil, evil) for state in ("S", "R", "D", None)]
    samples = [sample(START, *rows, ThreadRow(1, "S", evil, evil, evil, evil))]
    for width in (40, 80):
        for one in threads.top_lines(threadhistory.top(samples), 1, width, 10):
            assert one.text.isprintable()
            assert len(one.text) <= width
    json.loads(threads.dumps(samples, source="live", agent=None, name=evil, pid=1))


def test_few_steps_whatever_the_span_is() -> None:
    for seconds in (1, 5, 60, 300, 900, 5000):
        samples = [sample(START + n * NS, RUNNING) for n in range(seconds)]
        wide = threads.width_of_bucket(samples)
        assert len(threadhistory.buckets(samples, wide)) <= threads.MOST_BUCKETS + 1
