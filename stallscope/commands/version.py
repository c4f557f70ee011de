# SPDX-License-Identifier: Apache-2.0
"""Say exactly what is installed: what a report of a problem is to begin with."""

from __future__ import annotations

import argparse
import hashlib
import json
import platform
from pathlib import Path
from typing import Any

from stallscope.base import package
from stallscope.base.errors import Exit, StallscopeError

__all__ = ["EPILOG", "add_arguments", "run", "schemas"]

EPILOG = """\
examples:
  stallscope version
  stallscope version --json
"""

SCHEMA = "stallscope.version/1"
_SECONDS = 10.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.add_argument("--json", action="store_true", help=f"print JSON ({SCHEMA})")


def run(args: argparse.Namespace) -> Exit:
    """Print the versions of all parts."""
    found = _found()
    if args.json:
        print(json.dumps(found))
    else:
        _print(found)
    return Exit.DONE if "error" not in found["probe"] else Exit.PARTIAL


def _found() -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "version": package.version(),
        "commit": package.commit(),
        "probe": _probe(),
        "catalog": _catalog(),
        "schemas": schemas(),
        "python": platform.python_version(),
        "libraries": _libraries(),
    }


def _probe() -> dict[str, str]:
    from stallscope.collectors import probe

    try:
        path = probe.find()
        said = probe.run(["--version"], seconds=_SECONDS).decode("utf-8", "replace").split()
        return {
            "path": str(path),
            "version": said[-1] if said else "unknown",
            "sha256": _sum(path),
        }
    except StallscopeError as error:
        return {"error": str(error)}
    except OSError as error:
        return {"error": f"{error.filename}: {error.strerror}"}


def _sum(*paths: Path) -> str:
    seen = hashlib.sha256()
    for path in paths:
        seen.update(path.read_bytes())
    return seen.hexdigest()


def _catalog() -> dict[str, Any]:
    from stallscope.analyzers import catalog

    files = sorted(catalog.PACKAGE_DATA.glob("*.toml"))
    return {"signatures": len(catalog.load().signatures), "sha256": _sum(*files)}


def schemas() -> dict[str, int]:
    """Return the versions of all formats that are read, written and printed, by their names."""
    from stallscope.collectors.calibration import stored
    from stallscope.collectors.doctor import features
    from stallscope.commands import doctor, pack
    from stallscope.fleet import tables
    from stallscope.model import capture, incident, sessionsfile, waitlines
    from stallscope.model import storage as probestorage
    from stallscope.model import storagecache as probecache
    from stallscope.model import storagewrites as writes
    from stallscope.reporters import (
        agentlines,
        deadlocks,
        incidents,
        inproc,
        poke,
        status,
        storagecache,
        storagesync,
        storagewritesdiff,
        threads,
    )
    from stallscope.reporters import json as analysis
    from stallscope.reporters.html import pack as report
    from stallscope.server import deadlocks as deadlock
    from stallscope.store import history, index, storeclock

    every = (
        *(SCHEMA, agentlines.SCHEMA, analysis.SCHEMA, capture.SCHEMA, deadlock.SCHEMA),
        *(deadlocks.SCHEMA, doctor.SCHEMA, features.SCHEMA, history.SCHEMA, incident.SCHEMA),
        *(incidents.SCHEMA, index.SCHEMA, inproc.SCHEMA, pack.SCHEMA, report.SCHEMA),
        *(sessionsfile.SCHEMA, status.SCHEMA, storeclock.SCHEMA, stored.SCHEMA, threads.SCHEMA),
        *(probecache.SCHEMA, storagecache.SCHEMA, waitlines.SCHEMA, poke.SCHEMA),
        *(probestorage.SCHEMA, storagesync.SCHEMA, writes.SCHEMA, storagewritesdiff.SCHEMA),
        tables.SCHEMA,
    )
    parts = (schema.removeprefix("stallscope.").partition("/") for schema in every)
    return dict(sorted((name, int(number)) for name, _, number in parts))


def _libraries() -> dict[str, str | None]:
    import importlib.metadata

    found: dict[str, str | None] = {}
    for name in sorted(_wanted()):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = None
    return found


def _wanted() -> set[str]:
    """Return the names of the packages that an installation, or one of its extras, has."""
    import importlib.metadata
    import re
    import tomllib

    root = package.checkout()
    if root is None:
        lines = importlib.metadata.requires("stallscope") or []
    else:
        project = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["project"]
        of_extras = project["optional-dependencies"].values()
        lines = [*project["dependencies"], *(line for more in of_extras for line in more)]
    names = (re.match(r"[\w.-]+", line) for line in lines)
    return {name[0].lower() for name in names if name is not None}


def _print(found: dict[str, Any]) -> None:
    probe, catalog = found["probe"], found["catalog"]
    print(f"stallscope {found['version']}, commit {found['commit'] or 'unknown'}")
    if "error" in probe:
        print(f"probe: {probe['error']}")
    else:
        print(f"probe {probe['version']}, {probe['path']}, sha256 {probe['sha256'][:16]}")
    print(f"catalog: {catalog['signatures']} signatures, sha256 {catalog['sha256'][:16]}")
    print("formats:", ", ".join(f"{name}/{number}" for name, number in found["schemas"].items()))
    libraries = [f"{name} {there}" for name, there in found["libraries"].items() if there]
    print(f"Python {found['python']}:", ", ".join(libraries))
