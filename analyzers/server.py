# SPDX-License-Identifier: Apache-2.0
"""Which server a capture is of: by its own version string, its program, else its frames."""

from __future__ import annotations

import re

from stallscope.analyzers.catalog import Catalog
from stallscope.analyzers.stacks import Stacks
from stallscope.model.capture import Capture, Process
from stallscope.server.families import family

__all__ = ["identify", "numbers", "release"]

_NUMBER = re.compile(r"(?:^|[^\d.])(?:5\.5\.5-)?(\d{1,2}\.\d{1,3}(?:\.\d{1,3})?)")
_POSTGRES_PATH = re.compile(r"/(?:postgresql/|pgsql-)(\d{1,2}(?:\.\d{1,2})?)/bin/")


def identify(capture: Capture, stacks: Stacks, catalog: Catalog) -> tuple[str | None, str | None]:
    """Return (server, version), None for what nothing in the capture says."""
    version = None
    text = ""
    for process in capture.processes:
        text = process.strings.get("server_version", "")
        match = _NUMBER.search(text)
        if match:
            version = match.group(1)
            break
    if "mariadb" in text.lower():
        return "mariadb", version
    for process in capture.processes:
        program = (process.exe or process.comm or "").removesuffix(" (deleted)")
        program = program.rsplit("/", 1)[-1]
        for server in catalog.servers:
            if program in server.programs and not (
                server.name == "mysql" and _mariadb(stacks, catalog)
            ):
                if server.name == "postgres":
                    version = version or _postgres(process)
                return server.name, version
    for server in catalog.servers:
        if any(shape.present & server.marks for shape in stacks.distinct()):
            return server.name, version
    for process in capture.processes:
        name = family((process.exe or "").removesuffix(" (deleted)"), process.comm)
        if name is not None:
            return name, version or (_postgres(process) if name == "postgres" else None)
    return None, version


def numbers(version: str | None) -> tuple[int, ...]:
    """Return ``(8, 0, 36)`` of ``8.0.36-log``, three numbers at most; empty: it is not known."""
    return tuple(int(part) for part in re.findall(r"\d{1,4}", version or "")[:3])


def release(version: str | None) -> str | None:
    """Return ``8.0`` of ``8.0.36``; of PostgreSQL from 10 on the first number is the release."""
    return None if version is None else ".".join(version.split(".")[:2])


def _postgres(process: Process) -> str | None:
    """Return the major version: of the data directory, else of the path Debian gives it."""
    path = _POSTGRES_PATH.search(process.exe or "")
    return process.strings.get("PG_VERSION") or (path.group(1) if path else None)


def _mariadb(stacks: Stacks, catalog: Catalog) -> bool:
    """Return whether a program called mysqld is MariaDB's: frames that MySQL has not."""
    marks = 0
    for server in catalog.servers:
        if server.name == "mariadb":
            marks |= server.marks
    return any(shape.present & marks for shape in stacks.distinct())
