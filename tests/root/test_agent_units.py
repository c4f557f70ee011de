# SPDX-License-Identifier: Apache-2.0
"""The agent's units, its installer, and a probe that has its rights from its file."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from stallscope.collectors import probe
from stallscope.model import capturefile
from tests.support.servers import PATIENCE, MariaDB, program, wait_until
from tests.support.targets import trouble

__all__: list[str] = []

pytestmark = pytest.mark.needs("root")

CHECKOUT = Path(__file__).resolve().parents[2]
UNITS = CHECKOUT / "scripts/systemd"
SERVICES = ("stallscope.service", "stallscope@.service", "stallscope-cron.service")
EXPOSURE = 7.0
"""Of 10, by systemd-analyze security; docs/agent.md says what keeps it from being less."""
# Each makes systemd set no_new_privs for a service of another user, systemd.exec(5).
NO_NEW_PRIVILEGES = (
    "NoNewPrivileges",
    "SystemCallFilter",
    "SystemCallArchitectures",
    "RestrictAddressFamilies",
    "RestrictNamespaces",
    "RestrictRealtime",
    "RestrictSUIDSGID",
    "PrivateDevices",
    "ProtectClock",
    "ProtectHostname",
    "ProtectKernelLogs",
    "ProtectKernelModules",
    "ProtectKernelTunables",
    "MemoryDenyWriteExecute",
    "LockPersonality",
    "DynamicUser",
)
CAPABILITIES = {"cap_bpf", "cap_perfmon", "cap_sys_ptrace", "cap_checkpoint_restore"}


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE)


@pytest.fixture
def needs_systemd() -> str:
    found = program("systemd-analyze")
    if found is None:
        pytest.skip("no systemd-analyze here: it comes with systemd")
    return found


@pytest.mark.parametrize("unit", [*SERVICES, "stallscope-cron.timer"])
def test_units_are_what_systemd_takes(unit: str, needs_systemd: str, tmp_path: Path) -> None:
    for file in UNITS.glob("stallscope*.*"):
        text = file.read_text().replace("/usr/bin/stallscope", "/bin/true")
        text = re.sub(r"^Documentation=.*\n", "", text, flags=re.MULTILINE)
        (tmp_path / file.name).write_text(text)
    done = run(needs_systemd, "verify", str(tmp_path / unit))
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


@pytest.mark.parametrize("unit", SERVICES)
def test_units_are_hardened(unit: str, needs_systemd: str) -> None:
    options = ("--offline=true", f"--threshold={EXPOSURE * 10:.0f}")
    done = run(needs_systemd, "security", *options, str(UNITS / unit))
    assert done.returncode == 0, done.stdout[-400:] + done.stderr


@pytest.mark.parametrize("unit", SERVICES)
def test_no_quota_stops_the_probe_in_a_snapshot(unit: str) -> None:
    assert "CPUQuota" not in re.findall(r"^(\w+)=", (UNITS / unit).read_text(), re.MULTILINE)


@pytest.mark.parametrize("unit", SERVICES)
def test_nothing_in_a_unit_switches_file_capabilities_off(unit: str) -> None:
    set_here = re.findall(r"^(\w+)=", (UNITS / unit).read_text(), flags=re.MULTILINE)
    assert set(set_here).isdisjoint(NO_NEW_PRIVILEGES)
    (bounding,) = re.findall(r"^CapabilityBoundingSet=(.*)", (UNITS / unit).read_text(), re.M)
    assert {name.lower() for name in bounding.split()} == CAPABILITIES


@pytest.fixture
def installed(tmp_path: Path) -> Iterator[Path]:
    """Install below a folder, for the group nogroup; return the probe."""
    for name in ("setcap", "getcap"):
        if program(name) is None:
            pytest.skip(f"no {name} here: run scripts/setup --all")
    root = Path("/var/tmp") / f"stallscope-install-{os.getpid()}"  # pytest's folders are root's
    root.mkdir(mode=0o755)
    try:
        done = run(
            str(CHECKOUT / "scripts/install-agent"),
            "--root",
            str(root),
            "--group",
            "nogroup",
            "--probe",
            str(probe.find()),
        )
        assert done.returncode == 0, done.stderr
        yield root / "usr/libexec/stallscope/stallscope-probe"
    finally:
        shutil.rmtree(root)


def unprivileged(
    *command: str, group: str = "nogroup", text: str | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a program as a user that has no rights and is not the server's."""
    return subprocess.run(
        command,
        input=text,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
        user="games",
        group=group,
        extra_groups=[],
        cwd="/",
    )


@pytest.mark.needs("bpf", "waits", "mariadb")
def test_a_user_without_rights_takes_a_capture(installed: Path, tmp_path: Path) -> None:
    assert (installed.stat().st_uid, installed.stat().st_mode & 0o7777) == (0, 0o750)
    assert set(re.findall(r"cap_\w+", run("getcap", str(installed)).stdout)) == CAPABILITIES
    copy = installed.parents[3] / "plain"
    shutil.copy(probe.find(), copy)
    with MariaDB() as server:
        refused = unprivileged(str(copy), "snap", "--pid", str(server.pid))
        assert refused.returncode == 1, "the probe without file capabilities can do it as well"
        words = ("snap", "--backend", "bpf", "--pid", str(server.pid))

        def whole() -> bool:
            """Take a capture; return whether no thread of the server was running just then."""
            done = unprivileged(str(installed), *words)
            assert done.returncode in (0, 3), done.stderr
            capture = capturefile.loads(done.stdout.encode(), "probe")
            assert capture.backend == "bpf"
            # Workers of io_uring have no stack of their own.
            stacks = [thread for thread in capture.threads if not thread.name.startswith("iou-wrk")]
            assert len(stacks) > 5
            return all(thread.unwind == "complete" for thread in stacks)

        wait_until(whole, "a capture with all its stacks")
        watch = ("serve", "--watch", "--interval", "100", "--pid", str(server.pid))
        done = unprivileged(str(installed), *watch, text="snap\nquit\n")
        assert done.returncode == 0, done.stderr
        types = [json.loads(line)["type"] for line in done.stdout.splitlines()]
        assert types[0] == "ready"
        assert types[-1] == "waits"
        assert trouble(server.pid) == []
        assert server.answers()


def test_nobody_outside_the_group_may_run_it(installed: Path) -> None:
    with pytest.raises(PermissionError):
        unprivileged(str(installed), "--version", group="games")
