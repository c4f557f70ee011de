# SPDX-License-Identifier: Apache-2.0
"""What libstallscope.so asks of the loader, and what it gives: it has to load into every server."""

from __future__ import annotations

import os
import re
import subprocess
from functools import cache

import pytest

from tests.support.servers import PATIENCE
from tests.support.servers.inside import library_path
from tests.support.targets import build_folder, target_path

pytestmark = pytest.mark.needs("library")

NEWEST_GLIBC = (2, 17)
MAX_TLS_BYTES = 512
"""glibc keeps some 1,600 bytes of static TLS for what is opened later (dl_tls_static_surplus)."""

TWO_ABIS = {
    *("pthread_cond_wait", "pthread_cond_timedwait"),
    *("pthread_cond_signal", "pthread_cond_broadcast"),
}
INTERPOSED = TWO_ABIS | {
    *("pthread_mutex_lock", "pthread_mutex_timedlock", "pthread_mutex_clocklock"),
    *("pthread_mutex_unlock", "__pthread_mutex_lock", "__pthread_mutex_unlock"),
    *("pthread_rwlock_rdlock", "pthread_rwlock_wrlock", "pthread_rwlock_unlock"),
    *("__pthread_rwlock_rdlock", "__pthread_rwlock_wrlock", "__pthread_rwlock_unlock"),
    *("pthread_rwlock_timedrdlock", "pthread_rwlock_timedwrlock"),
    *("pthread_rwlock_clockrdlock", "pthread_rwlock_clockwrlock"),
    *("pthread_cond_clockwait", "pthread_create", "_exit", "_Exit"),
    *("fsync", "fdatasync", "sync_file_range", "msync", "syncfs"),
    *("fallocate", "fallocate64", "posix_fallocate", "posix_fallocate64"),
    *("ftruncate", "ftruncate64", "unlink", "unlinkat", "rename", "renameat", "renameat2"),
    *("pread", "pread64", "__pread64", "__pread_chk", "__pread64_chk"),
    *("pwrite", "pwrite64", "__pwrite64", "preadv", "preadv64", "pwritev", "pwritev64"),
}


@cache
def readelf(*options: str) -> str:
    try:
        done = subprocess.run(
            ["readelf", "-W", *options, library_path()], capture_output=True, text=True, check=True
        )
    except FileNotFoundError:
        pytest.skip("no readelf here: it comes with binutils, as the compiler does")
    return done.stdout


def symbols(defined: bool) -> list[str]:
    """Return the names of dynamic symbols, with their versions."""
    rows = (line.split() for line in readelf("--dyn-syms").splitlines())
    return [row[7] for row in rows if len(row) > 7 and row[4] in ("GLOBAL", "WEAK")
            and (row[6] != "UND") == defined]  # fmt: skip


def test_no_symbol_is_newer_than_glibc_2_17() -> None:
    wanted = symbols(defined=False)
    versions = [found[1] for name in wanted if (found := re.search("@GLIBC_([0-9.]+)", name))]
    assert len(versions) > 5
    newest = max(tuple(map(int, version.split("."))) for version in versions)
    assert newest <= NEWEST_GLIBC, wanted


def test_nothing_but_the_c_library_is_needed() -> None:
    dynamic = readelf("--dynamic")
    needed = re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic)
    assert set(needed) <= {"libc.so.6", "ld-linux-x86-64.so.2"}
    # dlopen(3), dlsym(3): the loader's lock. malloc(3): the server's own. Signals: no.
    # Threads: only those of the server, by the function that it would have called.
    forbidden = re.compile(r"^(dl\w*|\w*alloc|free|pthread_create|sigaction|signal|_Unwind\w*)\b")
    assert [name for name in symbols(defined=False) if forbidden.match(name)] == []


def test_it_is_bound_at_the_start_and_stays() -> None:
    dynamic = readelf("--dynamic")
    assert "BIND_NOW" in dynamic
    assert "NODELETE" in dynamic
    # DT_RELR and similar entries need a newer loader.
    assert "RELR" not in dynamic


def test_thread_local_storage_is_static_and_small() -> None:
    assert "STATIC_TLS" in readelf("--dynamic")
    found = re.search(r"^\s*TLS((?:\s+0x\w+){5})", readelf("--program-headers"), re.MULTILINE)
    assert found is not None
    assert int(found[1].split()[4], 16) <= MAX_TLS_BYTES
    assert "__tls_get_addr" not in readelf("--dyn-syms")


def test_it_exports_what_it_stands_before_and_nothing_else() -> None:
    exported = [name for name in symbols(defined=True) if not name.startswith("GLIBC_")]
    versions: dict[str, list[str]] = {}
    for name in exported:
        versions.setdefault(name.partition("@")[0], []).append(name)
    assert set(versions) == INTERPOSED
    for name, found in versions.items():
        # The one without a default sign is what a program without versions is bound to in glibc.
        both = [f"{name}@@GLIBC_2.3.2", f"{name}@GLIBC_2.2.5"]
        assert sorted(found) == (both if name in TWO_ABIS else [name])
    # The loader takes the first version of a library for such programs.
    assert re.findall(r"Index: (\d).*Name: (GLIBC\S*)", readelf("--version-info")) == [
        ("2", "GLIBC_2.2.5"),
        ("3", "GLIBC_2.3.2"),
    ]


def run(*command: str, preload: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        env={**os.environ, "LD_PRELOAD": preload, "STALLSCOPE_RUNTIME_DIR": "/nonexistent"},
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )


def test_old_conditions_are_those_of_the_old_library() -> None:
    done = run(str(target_path("old_conds")), preload=str(library_path()))
    assert (done.returncode, done.stdout, done.stderr) == (0, "well\n", "")


@pytest.mark.parametrize("order", ["first", "last"])
def test_constructors_and_resolvers_may_call_before_ours(order: str) -> None:
    early = str(build_folder() / "tests" / "targets" / "target-early.so")
    parts = [str(library_path()), early]
    done = run("/bin/true", preload=" ".join(parts if order == "first" else parts[::-1]))
    assert done.returncode == 0, done.stderr
