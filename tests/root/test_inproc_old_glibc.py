# SPDX-License-Identifier: Apache-2.0
"""The library of this build in systems with an older C library, for real.

Such a system is a root folder with a compiler, of STALLSCOPE_OLD_ROOTS (divided by colons) or in
the cache, /var/cache/stallscope/old:

    debootstrap --variant=minbase --include=gcc,libc6-dev bullseye FOLDER/bullseye

glibc 2.31 (bullseye) and 2.27 (Ubuntu's bionic) have threads in a library of their own, 2.27 has no
lock by the monotonic clock, and 2.23 (xenial) has other rwlocks and conditions.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cache import cache_folder
from tests.support.chance import SEED
from tests.support.servers import PATIENCE
from tests.support.servers.inside import LIBRARY, RINGS, library_path

__all__: list[str] = []

pytestmark = [pytest.mark.needs("root", "library"), pytest.mark.nightly]

CHECKOUT = Path(__file__).resolve().parents[2]
TARGETS = CHECKOUT / "tests" / "targets"
# gettid(2) has a wrapper since 2.30.
SHIM = """\
#include <sys/syscall.h>
#include <unistd.h>
#define gettid() ((pid_t)syscall(SYS_gettid))
"""
CC = ("gcc", "-std=gnu11", "-O2", "-w", "-D_GNU_SOURCE", "-pthread", "-include", "shim.h")


def old_roots() -> list[Path | None]:
    named = os.environ.get("STALLSCOPE_OLD_ROOTS")
    if named is not None:
        return [Path(name) for name in named.split(":") if name] or [None]
    return [*sorted((cache_folder() / "old").glob("*"))] or [None]


class OldSystem:
    """A folder in the root of an old system, with programs that were compiled there."""

    def __init__(self, root: Path, folder: Path) -> None:
        self.root = root
        self.folder = folder
        self.inside = Path("/") / folder.relative_to(root)

    def run(self, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["chroot", self.root, "sh", "-c", f'cd {self.inside} && exec "$@"', "sh", *command],
            env={"PATH": os.environ["PATH"], **variables},
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE,
        )

    def run_inside(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a program with the library in it; its ring stays."""
        return self.run(
            "env",
            f"LD_PRELOAD={self.inside / LIBRARY}",
            f"STALLSCOPE_RUNTIME_DIR={self.inside / 'rings'}",
            "STALLSCOPE_KEEP_RING=1",
            "STALLSCOPE_THRESHOLD=1",
            *command,
        )

    def compile(self, *arguments: str) -> None:
        done = self.run(*CC, *arguments)
        assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module", params=old_roots(), ids=lambda root: root.name if root else "none")
def system(request: pytest.FixtureRequest) -> Iterator[OldSystem]:
    root = request.param
    if root is None:
        pytest.skip(f"no old system in {cache_folder() / 'old'}: see the head of this file")
    with tempfile.TemporaryDirectory(prefix="stallscope-old-", dir=root / "tmp") as name:
        folder = Path(name)
        shutil.copy(library_path(), folder / LIBRARY)
        for source in TARGETS.glob("*.[ch]"):
            shutil.copy(source, folder)
        (folder / "shim.h").write_text(SHIM)
        (folder / "rings").mkdir()
        system = OldSystem(root, folder)
        system.compile("-shared", "-fPIC", "-nostdlib", "-o", "libbare.so", "bare.c")
        system.compile("-o", "old_conds", "old_conds.c", f"{system.inside}/libbare.so")
        system.compile("-shared", "-fPIC", "-o", "early.so", "early.c")
        for program in ("semantics", "upheavals"):
            system.compile("-o", program, f"{program}.c", "-lrt")
        for mount in (["-t", "proc", "proc", root / "proc"], ["--bind", "/dev", root / "dev"]):
            subprocess.run(["mount", *mount], check=True)
        try:
            yield system
        finally:
            for mounted in ("proc", "dev"):
                subprocess.run(["umount", root / mounted], check=True)


def test_it_loads(system: OldSystem) -> None:
    done = system.run_inside("ls", "/")
    assert (done.returncode, done.stderr) == (0, "")
    done = system.run("env", f"LD_PRELOAD={system.inside / LIBRARY} ./early.so", "/bin/true")
    assert (done.returncode, done.stderr) == (0, "")


def test_old_conditions_stay_old(system: OldSystem) -> None:
    done = system.run_inside("./old_conds")
    assert (done.returncode, done.stdout, done.stderr) == (0, "well\n", "")


def test_every_call_returns_what_it_would_without(system: OldSystem) -> None:
    for name in ("without", "with"):
        (system.folder / name).mkdir()
    without = system.run("./semantics", "without")
    inside = system.run_inside("./semantics", "with")
    assert (without.returncode, without.stderr) == (0, "")
    assert (inside.returncode, inside.stderr) == (0, "")
    assert len(without.stdout.splitlines()) > 500
    assert inside.stdout == without.stdout
    assert list((system.folder / "rings").glob(RINGS)) != []


@pytest.mark.parametrize(
    ("kind", "count"), [("cancel", 30), ("fork", 40), ("signal", 1000), ("jump", 200)]
)
def test_what_interrupts_a_wait_breaks_nothing(system: OldSystem, kind: str, count: int) -> None:
    done = system.run_inside("./upheavals", ".", kind, str(count), str(SEED))
    assert (done.returncode, done.stderr) == (0, "")


def test_threads_that_come_and_go_leave_their_slots(system: OldSystem) -> None:
    done = system.run_inside("./upheavals", ".", "churn", "3000", "1")
    assert (done.returncode, done.stderr) == (0, "")
