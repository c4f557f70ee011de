# SPDX-License-Identifier: Apache-2.0
"""All agents of a host in one look, and what each of them leaves for it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import msgspec
import pytest

from stallscope.agent import agentfile
from stallscope.agent.agentfile import AgentFile, AgentReport, ServerReport
from stallscope.agent.liveness import AgentHealth, AgentState
from stallscope.agent.metrics import waiting
from stallscope.agent.spool import spool
from stallscope.base.errors import StallscopeError
from stallscope.collectors.paths import asking
from stallscope.commands import agents
from stallscope.main import main
from stallscope.reporters.exposition import MetricsPage
from stallscope.store import Store
from tests.support.agents import agent
from tests.support.servers import PATIENCE, wait_until

__all__: list[str] = []

STATE = AgentState(
    "mariadbd",
    4711,
    uid=0,
    datadir="/data\x1b[31m",
    probe=True,
    sql=False,
    waiting={"pager": 3, "mail": 0},
    failing={"replication": "no right"},
    answered=1000.0,
    last_poll=1090.0,
    alerts=("metadata-lock",),
)
WRONG = ("blind since 03:12: the account is refused",)
SERVER = ServerReport("orders", "watching", AgentHealth("failed", STATE, 0.1, WRONG))


def write(folder: Path, written: float, servers: Sequence[ServerReport] = (SERVER,)) -> None:
    report = AgentReport(99, "db1", "0.1.0", 0.0, written, tuple(servers))
    (folder / agentfile.NAME).write_bytes(msgspec.json.encode(report))


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> float:
    monkeypatch.setattr("stallscope.commands.agents.time.time", lambda: 1100.0)
    return 1100.0


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Return the folder of an agent in a store."""
    Store.open(tmp_path)
    with spool(tmp_path) as made:
        yield made


def shown(dest: Path, capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["agents", "--dest", str(dest), *words]) == 0
    return capsys.readouterr().out


def test_it_says_what_each_watches_and_lacks(
    folder: Path, tmp_path: Path, now: float, capsys: pytest.CaptureFixture[str]
) -> None:
    write(folder, now - 2)
    text = shown(tmp_path, capsys)
    for words in (
        "agent pid 99 of user",
        "mariadbd (orders): watching, failed; pid 4711, user root (0), data in /data",
        "last answer 100 s ago, poll 10 s ago, capture never",
        "wrong: blind since 03:12: the account is refused",
        "open alert: metadata-lock",
        "3 deliveries wait for pager",
        "collector replication: no right",
    ):
        assert words in text
    assert "mail" not in text
    assert "\x1b" not in text
    (found,) = json.loads(shown(tmp_path, capsys, "--json"))["agents"]
    assert (found["lives"], found["stale"], found["owner"]) == (True, False, os.geteuid())
    assert found["servers"][0]["health"]["state"]["waiting"] == {"pager": 3, "mail": 0}


def test_what_hangs_and_what_was_killed_is_said(
    folder: Path, tmp_path: Path, now: float, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "it has just been started" in shown(tmp_path, capsys)
    write(folder, now - agents.STALE_SECONDS - 1)
    assert "its latest word is 21 s old: the agent, or the disk" in shown(tmp_path, capsys)
    killed = folder.with_name("7-00000000-00000000")
    killed.mkdir()
    write(killed, now)
    assert "it was killed after" in shown(tmp_path, capsys)
    (killed / agentfile.NAME).write_bytes(b"[" * 100_000)
    assert "cannot be read" in shown(tmp_path, capsys)


def test_a_disk_that_does_not_answer_is_the_answer(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def silent(path: str, *more: object) -> None:
        raise asking.SilentDiskError(path)

    for name in ("read", "is_held", "names"):
        monkeypatch.setattr(asking, name, silent)
        assert asking.SILENT in shown(tmp_path, capsys)


def test_no_agent_is_no_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "no agent runs on this host" in shown(tmp_path, capsys)


@contextmanager
def written(folder: Path, servers: list[ServerReport]) -> Iterator[Path]:
    with closing(AgentFile(lambda: folder, lambda: servers)):
        yield folder / agentfile.NAME


def test_an_agent_writes_what_it_is_in_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agentfile, "WRITE_SECONDS", 0.01)
    starting = msgspec.structs.replace(SERVER, state="starting")
    servers = [starting]
    with written(tmp_path, servers) as path:

        def names() -> list[str]:
            return [
                one.name for one in msgspec.json.decode(path.read_bytes(), type=AgentReport).servers
            ]

        servers[:] = [SERVER, starting]
        wait_until(path.exists, "it is written")
        wait_until(lambda: names() == ["orders", "orders"], "it has all servers")
        inode = path.stat().st_ino
        servers[:] = [msgspec.structs.replace(SERVER, name="\udc80")]
        wait_until(lambda: names() == ["\\udc80"], "the shorter text is the whole text")
        assert path.stat().st_ino == inode


def test_an_agent_that_waits_is_seen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also where nobody named its store."""
    with agent("no-such-program", tmp_path, "--wait", "--no-probe", ready=None) as found:
        found.wait_said("waiting for no-such-program")

        def seen() -> bool:
            assert main(["agents"]) == 0
            out = capsys.readouterr().out
            return f"store {tmp_path}" in out and "no-such-program: waiting, failed" in out

        wait_until(seen, "it is found by its process")
    assert str(tmp_path) not in shown(tmp_path, capsys)


def test_metrics_exist_before_there_is_a_server() -> None:
    page = MetricsPage()
    page.put("orders", waiting("mariadbd", 7.0))
    text = page.text().decode()
    for line in (
        'stallscope_agent_up{server="mariadbd",what="server"} 0.0',
        'stallscope_agent_waiting{server="mariadbd"} 1.0',
        'stallscope_agent_blind_seconds{server="mariadbd"} 7.0',
    ):
        assert line in text


@pytest.mark.needs("root")
def test_root_does_not_write_into_anothers_store(tmp_path: Path) -> None:
    os.chown(tmp_path, 65_534, 65_534)
    with pytest.raises(StallscopeError, match="is the store of user 65534"):
        Store.open(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_leaves_nothing_in_the_store(tmp_path: Path) -> None:
    dest = tmp_path / "store"
    words = ["watch", "-p", str(os.getpid()), "--dest", str(dest), "--once", "--dry-run"]
    words += ["--no-sql", "--no-probe", "--poll-interval", "0.1"]
    subprocess.run([sys.executable, "-m", "stallscope", *words], check=True, timeout=PATIENCE)
    assert not dest.exists()
