# SPDX-License-Identifier: Apache-2.0
"""The agent on a whole Debian: installed, started, upgraded, restarted and removed as documented.

These tests run in order: each finds the host as the one before has left it.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.systems.host import EXPOSURE, PAYLOAD, UNIT, Host

__all__: list[str] = []

pytestmark = [pytest.mark.needs("root", "systems"), pytest.mark.timeout(7200)]

HERE = Path(__file__).resolve().parent
CAPABILITIES = {"cap_bpf", "cap_perfmon", "cap_sys_ptrace", "cap_checkpoint_restore"}
PROBE = "/usr/libexec/stallscope/stallscope-probe"
UNITS = (
    "stallscope@db.service",
    "stallscope.service",
    "stallscope-cron.service",
    "stallscope-cron.timer",
)
QUIETLY = "DEBIAN_FRONTEND=noninteractive"
SQL = '[sql]\ndefaults-file = "/etc/stallscope/my.cnf"\n'
ALERTS = """\
[server]
target = "mariadbd"

[agent]
dest = "/var/lib/stallscope"

[[destination]]
kind = "alertmanager"
url = "http://127.0.0.1:9093"
least-firing = 1
"""
LOGIN = "[client]\nuser=stallscope\npassword=secret\n"
INPROC_RULES = """\
/usr/lib/stallscope/libstallscope.so mr,
/run/stallscope/ r,
owner /run/stallscope/* rwl,
signal (send, receive) set=(exists) peer=@{profile_name},
"""
"""As docs/inproc.md has them."""


def test_the_server_is_confined(host: Host) -> None:
    """An enforcing profile without any rule that lets others read the server."""
    host.machine.write(
        "/etc/apparmor.d/usr.sbin.mariadbd", (HERE / "mariadbd.apparmor").read_text()
    )
    host.check("apparmor_parser -r /etc/apparmor.d/usr.sbin.mariadbd")
    host.check("systemctl restart mariadb", seconds=900)
    pid = host.wait_for_server()
    assert host.check(f"cat /proc/{pid}/attr/current").strip() == "mariadbd (enforce)"
    host.machine.write("/srv/readable", "not for the server\n")
    assert host.check("mariadb -NBe \"SELECT LOAD_FILE('/srv/readable')\"").strip() == "NULL"
    assert any('name="/srv/readable"' in line for line in host.denials())


def test_it_is_installed_by_the_documented_command(host: Host) -> None:
    host.machine.write("/etc/stallscope/alerts.toml", ALERTS)
    assert host.run("command -v gcc cc clang pip3").out == ""
    host.check(f"{QUIETLY} apt-get -q -y install {PAYLOAD}/stallscope_*.deb", seconds=1800)
    assert host.check(f"stat -c '%U:%G %a' {PROBE}").strip() == "root:stallscope 750"
    assert set(re.findall(r"cap_\w+", host.check(f"/usr/sbin/getcap {PROBE}"))) == CAPABILITIES
    for unit in ("stallscope", "stallscope@mariadb"):
        assert host.run(f"systemctl is-active {unit}").out.strip() == "inactive"
    assert "stallscope" in host.check("runuser -u nobody -- stallscope --version")
    assert "Permission denied" in host.run(f"runuser -u nobody -- {PROBE} --version").err


def test_the_second_command_ends_with_an_alert(host: Host) -> None:
    """With settings that were there before, as configuration management puts them; without an
    account for SQL."""
    host.machine.write("/root/alertreceiver.py", (HERE / "alertreceiver.py").read_text())
    host.check(
        "systemd-run --quiet --unit=test-receiver"
        " /usr/bin/python3 /root/alertreceiver.py /run/alerts"
    )
    host.check("systemctl enable --now stallscope@alerts")
    pid = host.server_pid()
    host.until(lambda: f"(pid {pid})" in host.journal("stallscope@alerts"), "it watches", 600)
    with host.stalled():
        host.until(lambda: "DatabaseStall" in host.run("cat /run/alerts").out, "an alert", 600)
    host.until(lambda: "endsAt" in host.run("cat /run/alerts").out, "its end", 600)
    path, _, body = host.check("head -1 /run/alerts").partition(" ")
    (alert,) = json.loads(body)
    assert path == "/api/v2/alerts"
    assert alert["labels"]["server"] == "mariadbd"
    # It has reported to systemd that it is ready, or the command would have failed; it goes on.
    asked = "systemctl show -P WatchdogTimestampMonotonic stallscope@alerts"
    first = int(host.check(asked))
    host.until(lambda: int(host.check(asked)) > first, "it answers the watchdog")
    host.check("systemctl disable --now stallscope@alerts; systemctl stop test-receiver")


def test_its_units_are_what_systemd_takes(host: Host) -> None:
    done = host.run(f"systemd-analyze verify --man=no {' '.join(UNITS)}")
    about_ours = [line for line in done.err.splitlines() if "stallscope" in line]
    assert (done.code, about_ours) == (0, [])
    for unit in UNITS[:3]:
        said = host.check(f"systemd-analyze security --no-pager {unit}")
        exposure = re.search(r"Overall exposure level for \S+ (\d+\.\d+)", said)
        assert exposure is not None, said[-400:]
        assert float(exposure[1]) <= EXPOSURE
        print(exposure[0])


def test_the_doctor_sees_what_the_agent_can_do(host: Host) -> None:
    settings = host.check("cat /etc/stallscope/mariadb.toml")
    host.machine.write("/etc/stallscope/db.toml", settings + SQL)
    host.machine.write("/etc/stallscope/my.cnf", LOGIN)
    host.check("chown root:stallscope /etc/stallscope/my.cnf; chmod 640 /etc/stallscope/my.cnf")
    with host.stalled():  # makes the account
        checks = host.doctor("--defaults-file /etc/stallscope/my.cnf")
    assert checks["access"][0] == "ok"
    assert "by bpf" in checks["access"][1]
    for name in ("privileges", "wait-programs", "bpf-timer", "sql", "store", "server-confinement"):
        assert checks[name][0] == "ok", checks[name]
    assert "mariadbd (enforce)" in checks["server-confinement"][1]
    # What capabilities do not suffice for here, and why.
    assert "CAP_SYS_ADMIN" in checks["uprobes"][2]
    assert "kernel.perf_event_paranoid=2" in checks["perf-events"][2]


def test_its_advice_on_perf_events_helps(host: Host) -> None:
    host.check("sysctl kernel.perf_event_paranoid=2")
    try:
        features = json.loads(host.check(f"runuser -u stallscope -- {PROBE} features"))
        assert features["features"]["perf-events"]["ok"]
    finally:
        host.check("sysctl kernel.perf_event_paranoid=3")


def test_it_starts_and_names_a_stall(host: Host) -> None:
    before = host.locks_kept()
    host.check(f"systemctl enable --now {UNIT}")
    said = host.wait_for_agent(host.server_pid())
    assert said.endswith("wait programs are attached when a wait is long")
    with host.stalled():
        host.wait_until_reported()
    # Its captures are analyzed at low priority.
    host.until(lambda: host.locks_kept() == before + 1, "the incident has its verdict")
    # The profile does not apply to processes outside the server.
    assert [line for line in host.denials() if "ptrace" in line] == []


def test_it_is_restarted(host: Host) -> None:
    before = len(host.incidents())
    host.check(f"systemctl restart {UNIT}")
    assert host.check(f"systemctl is-active {UNIT}").strip() == "active"
    host.wait_for_agent(host.server_pid())
    assert len(host.incidents()) == before


def test_it_follows_a_restart_of_the_server(host: Host) -> None:
    before = host.server_pid()
    host.check("systemctl restart mariadb", seconds=900)
    pid = host.wait_for_server()
    assert pid != before
    host.wait_for_agent(pid)


def test_a_server_whose_program_was_replaced_is_still_named(host: Host) -> None:
    """An upgrade that leaves the restart for later, as large installations have it."""
    pid = host.server_pid()
    host.machine.write("/usr/sbin/policy-rc.d", "#!/bin/sh\nexit 101\n", "755")
    try:
        host.check(f"{QUIETLY} apt-get -q -y install /srv/upgrade/*.deb", seconds=1800)
    finally:
        host.check("rm /usr/sbin/policy-rc.d")
    if host.server_pid() != pid:
        pytest.fail("the packages' scripts have restarted the server")
    assert host.check(f"readlink /proc/{pid}/exe").strip().endswith("(deleted)")
    stalls = host.reported_stalls()
    with host.stalled():
        host.wait_until_reported(stalls + 1)


def test_it_follows_the_upgraded_server(host: Host) -> None:
    host.check("systemctl restart mariadb", seconds=900)
    host.wait_for_agent(host.wait_for_server())


def test_it_comes_back_after_a_reboot(host: Host) -> None:
    before = host.locks_kept()
    host.machine.reboot()
    pid = host.wait_for_server()
    host.wait_for_agent(pid)
    with host.stalled():
        host.wait_until_reported()
    host.until(lambda: host.locks_kept() == before + 1, "the incident has its verdict")


def test_the_library_works_under_the_profile(host: Host) -> None:
    # As docs/install.md has it.
    host.check(
        "install -D -m 644 /usr/share/stallscope/stallscope-inproc.conf"
        " /etc/systemd/system/mariadb.service.d/stallscope.conf && systemctl daemon-reload"
    )
    local = "/etc/apparmor.d/local/usr.sbin.mariadbd"

    def restarted(rules: str) -> None:
        host.machine.write(local, rules)
        host.check("apparmor_parser -r /etc/apparmor.d/usr.sbin.mariadbd")
        host.check("systemctl restart mariadb", seconds=900)
        host.wait_for_server()

    restarted("deny /usr/lib/stallscope/** mrx,\n")
    said = host.doctor("--no-sql", user="root")["inproc"]
    assert said[0] == "degraded"
    assert "it is not loaded; it is confined by mariadbd (enforce)" in said[1]
    restarted("")
    said = host.doctor("--no-sql", user="root")["inproc"]
    assert said[0] == "degraded"
    assert "there is no ring" in said[1]
    assert "add the rules of docs/inproc.md" in said[2]
    restarted(INPROC_RULES)
    with host.stalled():
        done = host.run(
            "runuser -u mysql -- stallscope snap -p mariadbd --backend inproc --no-sql",
            seconds=600,
        )
        assert done.code in (0, 3), done.said
        assert "metadata-lock" in done.out
    assert host.doctor("--no-sql", user="root")["inproc"][0] == "ok"
    host.check(
        "rm /etc/systemd/system/mariadb.service.d/stallscope.conf && systemctl daemon-reload"
        f" && rm {local}"
    )
    host.check("systemctl restart mariadb", seconds=900)
    host.wait_for_agent(host.wait_for_server())


def test_it_is_upgraded_while_it_runs(host: Host) -> None:
    before = host.check(f"systemctl show -P MainPID {UNIT}")
    host.check(
        f"{QUIETLY} apt-get -q -y --reinstall install {PAYLOAD}/stallscope_*.deb", seconds=1800
    )
    # The package restarts what runs.
    assert host.check(f"systemctl show -P MainPID {UNIT}") != before
    host.wait_for_agent(host.server_pid())


def test_it_is_removed(host: Host) -> None:
    pid = host.server_pid()
    host.check(f"{QUIETLY} apt-get -q -y remove stallscope", seconds=900)
    assert host.run("systemctl is-active " + UNIT).out.strip() != "active"
    assert host.check("test -e /etc/stallscope/db.toml; ls /var/lib/stallscope") != ""
    host.check(f"{QUIETLY} apt-get -q -y purge stallscope", seconds=900)
    left = host.check(
        "find / -xdev -name '*stallscope*' -not -path '/proc/*' -not -path '/mnt/*'"
        " -not -path '/var/log/*'"
    ).split()
    assert set(left) <= {"/etc/hostname"}
    assert host.server_pid() == pid
    assert host.run("mariadb -e 'DO 1'").code == 0
