# SPDX-License-Identifier: Apache-2.0
"""A host with a database server and the agent: what people do to it, and what they read."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.vm.machine import Machine

__all__ = ["EXPOSURE", "PAYLOAD", "UNIT", "Host"]

HERE = Path(__file__).resolve().parent
PAYLOAD = "/mnt/stallscope"
PYTHON = "/usr/bin/env PYTHONPATH=/usr/lib/stallscope/python /usr/bin/python3"
"""With the packages that stallscope brings: a client of the server is among them."""
UNIT = "stallscope@db"
EXPOSURE = 7.0
"""Of 10, by systemd-analyze security; docs/agent.md says what keeps it from being less."""
READY = re.compile(r"(?:ready to capture|watching) \S+ \(pid (\d+)\b.*")
"""At the agent's start, and when it has taken up the next process of the server."""
PROBE = "STALLSCOPE_PROBE=/usr/libexec/stallscope/stallscope-probe"
TABLE = """\
CREATE DATABASE IF NOT EXISTS shop;
CREATE TABLE IF NOT EXISTS shop.orders (id INT PRIMARY KEY, total INT) ENGINE=InnoDB;
REPLACE INTO shop.orders VALUES (1, 10), (2, 20);
CREATE USER IF NOT EXISTS app@localhost IDENTIFIED BY 'app';
GRANT ALL ON shop.* TO app@localhost;
GRANT PROCESS ON *.* TO app@localhost;
CREATE USER IF NOT EXISTS stallscope@localhost IDENTIFIED BY 'secret';
GRANT PROCESS, SLAVE MONITOR ON *.* TO stallscope@localhost;
"""


class Host:
    """A machine with Debian's MariaDB in it."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.run = machine.run
        self.check = machine.check
        self.until = machine.until

    def wait_for_server(self) -> int:
        """Return the server's process once it answers."""
        self.check("systemctl start mariadb")  # waits for a start that goes on
        self.until(lambda: self.run("mariadb -e 'DO 1'").code == 0, "the server answers")
        return self.server_pid()

    def server_pid(self) -> int:
        return int(self.check("systemctl show -P MainPID mariadb"))

    def journal(self, unit: str = UNIT) -> str:
        """Return what the unit has said since this boot."""
        return self.check(f"journalctl -b -u {unit} -o cat --no-pager")

    def wait_for_agent(self, pid: int) -> str:
        """Wait until the agent watches that process; return the line that says so."""

        def ready() -> str | None:
            found = [match for match in READY.finditer(self.journal()) if int(match[1]) == pid]
            return found[-1][0] if found else None

        try:
            return str(self.until(ready, f"the agent watches {pid}", 600))
        except Exception:
            print(self.journal()[-4000:])
            raise

    def incidents(self) -> list[dict[str, Any]]:
        """Return the incidents of the store, the oldest first."""
        found = json.loads(self.check("stallscope incidents --dest /var/lib/stallscope --json"))
        return list(found["incidents"])

    def locks_kept(self) -> int:
        """Count the incidents that are metadata locks; there may be others
        (``reported_stalls``)."""
        return [one["verdict"] for one in self.incidents()].count("metadata-lock")

    @contextmanager
    def stalled(self) -> Iterator[None]:
        """Let connections pile up behind a metadata lock; release them at the end."""
        self.machine.write("/root/pileup.py", (HERE / "pileup.py").read_text())
        self.check("mariadb", stdin=TABLE)
        self.check("rm -f /run/pileup.ready")
        self.check(
            f"systemd-run --quiet --unit=test-pileup {PYTHON} /root/pileup.py /run/pileup.ready"
        )
        try:
            self.until(
                lambda: self.run("test -e /run/pileup.ready").code == 0, "connections pile up"
            )
            yield
        finally:
            self.run("systemctl stop test-pileup; systemctl reset-failed test-pileup")

    def reported_stalls(self) -> int:
        """Count the metadata locks in the journal of this boot.

        An emulated machine that is busy with something else has stalls of other kinds, too.
        """
        lines = self.journal().splitlines()
        return sum(" stall: " in line and "metadata-lock" in line for line in lines)

    def wait_until_reported(self, count: int = 1) -> None:
        """Wait until the journal has so many of them."""
        try:
            self.until(
                lambda: self.reported_stalls() >= count, f"{count} stalls in the journal", 600
            )
        except Exception:
            print(self.journal()[-4000:])
            raise

    def doctor(self, *options: str, user: str = "stallscope") -> dict[str, tuple[str, str, str]]:
        """Return what the doctor says to a user: by name, status, what and what to do."""
        command = f"stallscope doctor -p mariadbd --json {' '.join(options)}"
        done = self.run(f"runuser -u {user} -- env {PROBE} {command}", seconds=600)
        assert done.code in (0, 1, 3), done.said
        return {
            check["name"]: (check["status"], check["what"], check.get("fix") or "")
            for check in json.loads(done.out)["checks"]
        }

    def denials(self) -> list[str]:
        """Return what AppArmor has refused the server since this boot."""
        lines = self.check("journalctl -b -k -o cat --no-pager").splitlines()
        return [
            line for line in lines if 'apparmor="DENIED"' in line and 'profile="mariadbd"' in line
        ]
