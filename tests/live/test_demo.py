# SPDX-License-Identifier: Apache-2.0
"""The demo shows what it says, and leaves nothing behind, however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.live.shots import CHECKOUT
from tests.support.servers import PATIENCE, wait_until
from tests.support.targets import target_path

pytestmark = pytest.mark.needs("root", "probe", "slap")

DEMO = [sys.executable, "-P", "-m", "tests.support.demo"]
VERDICTS = {
    "mariadb": ["metadata-lock"],
    "mysql55": ["innodb-deadlock-check", "innodb-row-lock"],
}
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(CHECKOUT)}


def demo(*argv: str, **environment: str) -> str:
    """Run a demo that ends by itself; return what it said."""
    done = subprocess.run(
        argv,
        env={**ENVIRONMENT, **environment},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param("mariadb", marks=pytest.mark.needs("mariadb")),
        pytest.param("mysql55", marks=[pytest.mark.needs("mysql55"), pytest.mark.nightly]),
    ],
)
@pytest.mark.needs("web")
def test_shows_the_verdict(kind: str, open_folder: Path, tmp_path: Path) -> None:
    page = tmp_path / "stall.html"
    said = demo(*DEMO, "--server", kind, "--report", str(page), TMPDIR=str(open_folder))
    assert "all " in said
    assert "connections are still there" in said
    assert f"demo: look at the stall in a browser: {page}" in said.splitlines()
    assert "scripts/stallscope doctor" in said.splitlines()[-1]
    text = page.read_text("utf-8")
    assert "What to do" in text
    assert any(f">{verdict}</code>" in text for verdict in VERDICTS[kind])


LIMITED = ["setpriv", "--bounding-set=-sys_ptrace,-sys_admin,-bpf,-perfmon", "--inh-caps=-all"]
"""Root as in a container: it may not read the processes of others."""


@pytest.mark.parametrize(("preload", "backend"), [("", "proc"), ("undumpable.so", "inproc")])
@pytest.mark.needs("mariadb", "library")
def test_takes_the_way_that_is_open(
    preload: str, backend: str, open_folder: Path, tmp_path: Path
) -> None:
    more = {"LD_PRELOAD": str(target_path(preload))} if preload else {}
    page = str(tmp_path / "stall.html")
    said = demo(*LIMITED, *DEMO, "--report", page, TMPDIR=str(open_folder), **more)
    assert "as root: this root may not read the processes of other users" in said
    assert f"read by the backend {backend} (" in said
    assert ("with the in-process library" in said) == (backend == "inproc")
    assert "metadata-lock" in said


@pytest.mark.nightly
@pytest.mark.needs("mariadb")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.needs("web")
def test_cleans_up_after_a_signal(
    number: signal.Signals, open_folder: Path, tmp_path: Path
) -> None:
    with subprocess.Popen(
        [*DEMO, "--keep", "--report", str(tmp_path / "stall.html")],
        env={**ENVIRONMENT, "TMPDIR": str(open_folder)},
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if "until Ctrl-C" in line:
                break
        (folder,) = open_folder.iterdir()
        server = int((folder / "server.pid").read_text())
        process.send_signal(number)
        assert process.wait(PATIENCE) == 128 + number
    wait_until(lambda: not Path(f"/proc/{server}").exists(), "the server is gone")
