# SPDX-License-Identifier: Apache-2.0
"""How to get the debug symbols of a file: its package's, or by build-id."""

from __future__ import annotations

from stallscope.base import trust
from stallscope.collectors.programs import Program
from stallscope.model.capture import Module

__all__ = ["how_to_get", "package_of"]

_SECONDS = 10.0
_DEBUGINFOD = {
    "debian": "https://debuginfod.debian.net",
    "ubuntu": "https://debuginfod.ubuntu.com",
    "fedora": "https://debuginfod.fedoraproject.org",
}


def how_to_get(path: str, module: Module | None) -> str | None:
    """Return a command that gets the symbols, the most reliable one first; None where none is
    known."""
    ways = []
    package = package_of(path)
    if package is not None:
        ways.append(package)
    if module is not None and module.build_id:
        url = _DEBUGINFOD.get(_distribution(), "https://debuginfod.elfutils.org")
        ways.append(f"DEBUGINFOD_URLS={url} stallscope symbolize --debuginfod CAPTURE")
    if path.startswith("/") and module is not None:
        ways.append("give the debug files of its build with --debug-dir")
        what, name = (
            ("`stallscope pack DEBUG-FILE` on a host that has them", f"{module.build_id}.pack")
            if module.build_id
            else ("`stallscope pack` of this program before it was stripped", "pack")
        )
        ways.append(f"{what}, and copy its {name} to /usr/share/stallscope/packs here")
    return "; or ".join(ways) or None


def package_of(path: str) -> str | None:
    """Return the command that installs the debug symbols of the package that a file is of."""
    if not path.startswith("/"):
        return None
    if dpkg := trust.find_program("dpkg-query"):
        # /lib is a link to /usr/lib, and dpkg knows the file by the name in its package.
        for name in (path, path.removeprefix("/usr")):
            owner = _first_line([dpkg, "-S", name])
            if owner and ": " in owner:
                package = owner.partition(": ")[0].partition(",")[0].partition(":")[0]
                return f"apt-get install {package}-dbgsym (of the archive debian-debug)"
    if rpm := trust.find_program("rpm"):
        owner = _first_line([rpm, "-qf", "--qf", "%{NAME}\n", path])
        if owner and " " not in owner:
            return f"dnf debuginfo-install {owner}"
    return None


def _first_line(argv: list[str]) -> str | None:
    try:
        done = Program(argv, output=True).run(_SECONDS, leave_children=False)
    except OSError:
        return None
    lines = done.out.decode("utf-8", "replace").splitlines()
    return lines[0] if done.code == 0 and lines else None


def _distribution() -> str:
    try:
        with open("/etc/os-release", encoding="utf-8") as file:
            words = dict(line.strip().partition("=")[::2] for line in file)
    except OSError:
        return ""
    return words.get("ID", "").strip('"')
