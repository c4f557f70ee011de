# SPDX-License-Identifier: Apache-2.0
"""What commands that calibrate a server share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from stallscope.base.errors import UsageError
from stallscope.collectors.calibration import layouts
from stallscope.server.families import family

if TYPE_CHECKING:
    from stallscope.collectors.calibration.stored import Calibration
    from stallscope.collectors.processes import Server
    from stallscope.collectors.sql.servers import ServerLogin

__all__ = ["run", "server_of"]


def server_of(servers: tuple[Server, ...]) -> Server:
    """Return the one MySQL or MariaDB server among these. Raises: UsageError."""
    found = [s for s in servers if family(s.main.exe, s.main.comm) in layouts.FAMILIES]
    if len(found) != 1:
        many = "several of the processes are" if found else "none of the processes is"
        raise UsageError(f"{many} a MySQL or MariaDB server: give -p with the PID of one")
    return found[0]


def run(servers: tuple[Server, ...], login: ServerLogin | None) -> tuple[Calibration, Path]:
    """Calibrate the server and keep what was found. Raises: StallscopeError."""
    from stallscope.collectors.calibration import calibrating, stored
    from stallscope.collectors.sql.login import Login

    server = server_of(servers)
    if not isinstance(login, Login):
        raise UsageError("a calibration needs SQL: give the options to log in with --defaults-file")
    calibration = calibrating.calibrate(server.main.pid, login)
    return calibration, stored.save(calibration)
