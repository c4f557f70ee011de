# SPDX-License-Identifier: Apache-2.0
"""scripts/setup goes on without packages that cannot be had, and says why in one line.

apt is a program of this test; what real ones say on real machines is in tests/systems.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

__all__: list[str] = []

CHECKOUT = Path(__file__).resolve().parents[2]
APT = """#!/bin/sh
# Knows the packages of the file "known", and cannot install those of the file "bad".
[ ! -s locked ] || { tail -n 1 locked; sed -i '$d' locked; exit 100; }
case $* in
*update*) cat lists 2>/dev/null; exit 0 ;;
*policy*)
	shift
	for name; do
		! grep -qx "$name" known || printf '%s:\\n  Candidate: 1\\n' "$name"
	done ;;
*)
	for name; do
		[ ! -e bad ] || ! grep -x "E: Failed to fetch $name" bad || exit 100
	done
	for name; do case $name in -* | *=* | install) ;; *) touch "there-$name" ;; esac; done ;;
esac
"""
SETTING = """
set -euo pipefail
report() { echo "$*"; }
fail() { echo "$*"; exit 1; }
log=$PWD/log cache=$PWD
: >log
. "$SETUP"
find_root() { become=(); }
forbid_services() { :; }
allow_services() { :; }
sleep() { :; }
have() { local kind; IFS=: read -r kind _ <<<"$1"; [ -e "there-$kind" ]; }
"""


def packages(folder: Path, *needs: str, more: str = "") -> tuple[int, list[str]]:
    """Install what ``needs`` call for; return the exit code and what is said."""
    for name in ("apt-get", "apt-cache"):
        (folder / name).write_text(APT)
        (folder / name).chmod(0o755)
    done = subprocess.run(
        ["bash", "-c", f'{SETTING}{more}\npackages "$@"', "setup", *needs],
        cwd=folder,
        env={
            **os.environ,
            "PATH": f"{folder}:{os.environ['PATH']}",
            "SETUP": str(CHECKOUT / "scripts/lib/setup-packages.sh"),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    return done.returncode, done.stdout.splitlines()


def there(folder: Path) -> list[str]:
    return sorted(path.name.removeprefix("there-") for path in folder.glob("there-*"))


NEEDS = ("gcc::gcc", "clang::clang:BPF", "java::java:Java", "java::java:Java", "gdb::gdb:stacks")


def test_what_is_there_needs_nothing(tmp_path: Path) -> None:
    (tmp_path / "there-gcc").touch()
    assert packages(tmp_path, "gcc::gcc") == (0, [])


def test_one_package_that_cannot_be_had_stops_no_other(tmp_path: Path) -> None:
    (tmp_path / "known").write_text("gcc\nclang\njava\n")
    (tmp_path / "bad").write_text("E: Failed to fetch clang\n")
    code, said = packages(tmp_path, *NEEDS)
    assert code == 0
    assert there(tmp_path) == ["gcc", "java"]
    assert said[0] == "installing through apt: gcc clang java gdb"
    assert sorted(said[-2:]) == [
        "left out: clang (for BPF): Failed to fetch clang",
        "left out: gdb (for stacks): apt knows no such package here",
    ]


def test_nothing_works_without_some(tmp_path: Path) -> None:
    (tmp_path / "known").write_text("clang\njava\ngdb\n")
    code, said = packages(tmp_path, *NEEDS)
    assert (code, said[-1]) == (1, "nothing works without gcc: apt knows no such package here")
    assert there(tmp_path) == ["clang", "gdb", "java"]


def test_it_waits_while_another_process_uses_apt(tmp_path: Path) -> None:
    (tmp_path / "known").write_text("gcc\n")
    line = "E: Could not get lock /var/lib/dpkg/lock-frontend. It is held by process 7 (apt-get)\n"
    (tmp_path / "locked").write_text(3 * line)
    code, said = packages(tmp_path, "gcc::gcc")
    assert (code, there(tmp_path)) == (0, ["gcc"])
    waiting = "waiting, 5 minutes at most, for another process that uses apt: process 7 (apt-get)"
    assert said[2:] == [waiting]


def test_who_is_not_root_learns_what_to_ask_for(tmp_path: Path) -> None:
    not_root = "find_root() { why_not='only root can install packages'; return 1; }"
    code, said = packages(tmp_path, *NEEDS[1:], more=not_root)
    advice = "have an administrator run: apt-get install --no-install-recommends clang java gdb"
    assert (code, said) == (0, [f"only root can install packages; {advice}"])
    code, said = packages(tmp_path, *NEEDS, more=not_root)
    assert (code, said[1:]) == (1, ["nothing works without gcc: only root can install packages"])


@pytest.mark.parametrize(
    ("log", "reason"),
    [
        ("Err:1 http://x\nE: Release file for http://x is not valid yet (invalid for 3d)", "clock"),
        ("Sub-process sqv: Verifying signature: Not live until 2026-11-21T08:46:20Z", "clock"),
        ("SSLError: certificate verify failed: certificate is not yet valid", "clock"),
        ("OSError: [Errno 28] No space left on device: '/x'", "the disk is full: "),
        ("E: You don't have enough free space in /var/cache/apt/archives/.", "the disk is full: "),
        ("Err:1 http://x\n  Temporary failure resolving 'x'\nE: Failed to fetch", "no network"),
        ("Reading lists\nE: Unable to locate package x\nE: more", "Unable to locate package x"),
        (
            "FAILED: a.o\na.c:1:2: error: expected ';'\nninja: stopped",
            "a.c:1:2: error: expected ';'",
        ),
        ("one\nthe last one", "the last one"),
    ],
)
def test_why_it_failed_is_one_line(log: str, reason: str, tmp_path: Path) -> None:
    (tmp_path / "was").write_text(log)
    code, said = packages(tmp_path, more="cp was log; reason; exit")
    assert code == 0
    assert len(said) == 1
    assert reason in said[0]
