# SPDX-License-Identifier: Apache-2.0
"""What a test needs of the machine it runs on, and why that cannot be had.

``python -m tests.needs`` prints one line a need: its name, a tab, and the reason where it is
missing. .ci/run puts those that are there into STALLSCOPE_REQUIRE, so that a test that is skipped
because one of them is missing fails instead.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from stallscope.base.errors import StallscopeError
from stallscope.base.text import one_line
from stallscope.collectors import probe
from stallscope.collectors.host import exits
from tests.support import rights
from tests.support.cache import cache_folder, why_missing
from tests.support.cgroups import cgroups_missing
from tests.support.containers import containers_missing
from tests.support.fleet.chdbengine import chdb_missing
from tests.support.fleet.clickhouse import clickhouse_missing
from tests.support.fleet.cluster import cluster_missing
from tests.support.jail import jail_missing
from tests.support.nfsdisk import nfs_missing
from tests.support.servers import (
    MariaDB,
    MariaDB114,
    MariaDB118,
    MyRocks,
    MySQL55,
    MySQL97,
    Postgres,
    Postgres17,
    Unavailable,
    program,
)
from tests.support.servers.galera import GaleraNode
from tests.support.servers.inside import library_path
from tests.support.servers.mariadb import lock_plugin_missing
from tests.support.stalls import device_missing
from tests.support.vm import roots, systems

__all__ = ["FIREFOX_PROFILER", "FLAMEGRAPH", "NEEDS", "SPEEDSCOPE", "required", "why_not"]

LIBC_SYMBOLS = Path("/usr/lib/debug/.build-id")
"""Without them the wait of a semaphore has no name, as on servers without libc6-dbg."""
FEATURES_SECONDS = 240
"""An emulated machine beside busy ones takes minutes for it."""

FLAMEGRAPH = Path("/usr/share/perl5/Devel/NYTProf/flamegraph.pl")
_CONSUMERS = cache_folder() / "consumers" / "node_modules"
AXE = _CONSUMERS / "axe-core" / "axe.min.js"
SPEEDSCOPE = _CONSUMERS / "speedscope" / "dist" / "release"
FIREFOX_PROFILER = _CONSUMERS / "@firefox-devtools" / "profiler-cli" / "dist" / "profiler-cli.js"


@functools.cache
def features() -> dict[str, dict[str, object]] | str:
    """Return what the probe says works here, or why it cannot say."""
    try:
        found = probe.find()
        done = subprocess.run(
            [str(found), "features"], capture_output=True, timeout=FEATURES_SECONDS, check=False
        )
        if done.returncode != 0:
            return f"{found} features: {done.stderr.decode(errors='replace').strip()}"
        answer = json.loads(done.stdout)["features"]
    except (StallscopeError, subprocess.TimeoutExpired, ValueError) as error:
        return str(error)
    assert isinstance(answer, dict)
    return answer


def feature(name: str) -> Callable[[], str | None]:
    """Return a question for one feature of the probe."""

    def missing() -> str | None:
        answer = features()
        if isinstance(answer, str):
            return answer
        if name not in answer:
            return f"the probe does not know of {name}"
        return None if answer[name].get("ok") else str(answer[name].get("why") or "does not work")

    return missing


def tool(name: str) -> Callable[[], str | None]:
    """Return a question for an installed program."""
    return lambda: None if program(name) else f"no {name} here: run scripts/setup --all"


def web() -> str | None:
    """Ask for the script of the HTML report."""
    from stallscope.reporters.html import assets

    try:
        assets.load()
    except StallscopeError as error:
        return str(error)
    return None


def built() -> str | None:
    try:
        probe.find()
    except StallscopeError as error:
        return str(error)
    return None


def library() -> str | None:
    """Ask for the library that is loaded into servers."""
    try:
        library_path()
    except Unavailable as error:
        return str(error)
    return None


def consumer(path: Path) -> Callable[[], str | None]:
    """Return a question for a program that reads what is exported."""
    return lambda: None if path.exists() else f"no {path} here: {why_missing('consumers')}"


def module(name: str) -> Callable[[], str | None]:
    """Return a question for a module of Python."""
    return lambda: None if find_spec(name) else f"no module {name}: run scripts/setup --all"


def firefox_profiler() -> str | None:
    """Return why the Firefox Profiler's own command line cannot run; old Node.js cannot parse
    it."""
    absent = consumer(FIREFOX_PROFILER)() or tool("node")()
    if absent is not None:
        return absent
    done = subprocess.run(
        ["node", str(FIREFOX_PROFILER), "--version"], capture_output=True, text=True, check=False
    )
    return None if done.returncode == 0 else f"node cannot run it: {one_line(done.stderr, 200)}"


def namespaces() -> str | None:
    """Ask for namespaces in which something can be mounted; containers refuse them."""
    argv = ["unshare", "--mount", "--pid", "--fork", "mount", "-t", "tmpfs", "none", "/mnt"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    return None if done.returncode == 0 else f"no mounts here: {one_line(done.stderr, 100)}"


def cores() -> str | None:
    """Return why the kernel does not write cores into working folders."""
    pattern = Path("/proc/sys/kernel/core_pattern").read_text().strip()
    return None if pattern == "core" else f"kernel.core_pattern is {one_line(pattern, 100)}"


def exit_status() -> str | None:
    """Return why a pidfd does not say how its process ended."""
    with subprocess.Popen(["true"]) as child:
        descriptor = os.pidfd_open(child.pid)
        child.wait()
    try:
        known = exits.exit_status(descriptor, child.pid)
    finally:
        os.close(descriptor)
    return None if known == 0 else "Linux 6.15 and later say how a process ended"


NEEDS: dict[str, Callable[[], str | None]] = {
    "root": lambda: None if os.geteuid() == 0 else "not root",
    "probe": built,
    "library": library,
    "namespaces": namespaces,
    "dac-read-search": lambda: (
        None if rights.has_capability(rights.DAC_READ_SEARCH) else "no CAP_DAC_READ_SEARCH here"
    ),
    "jail": jail_missing,
    "containers": containers_missing,
    "cgroups": cgroups_missing,
    "nfs": nfs_missing,
    "cores": cores,
    "libc-symbols": lambda: (
        None if LIBC_SYMBOLS.exists() else "no names of libc's own functions: scripts/setup --tests"
    ),
    "cc": tool("cc"),
    "bpf": feature("bpf-iterator"),
    "proc": lambda: feature("proc")() or feature("yama")(),
    "waits": feature("wait-programs"),
    "poll": feature("wait-polling"),
    "perf": feature("perf-events"),
    "uprobes": feature("uprobes"),
    "ptrace": feature("ptrace"),
    "mariadb": MariaDB.missing,
    "mariadb-plugins": lock_plugin_missing,
    "mysql55": MySQL55.missing,
    "mysql97": MySQL97.missing,
    "mariadb114": MariaDB114.missing,
    "mariadb118": MariaDB118.missing,
    "myrocks": MyRocks.missing,
    "galera": GaleraNode.missing,
    "postgres": Postgres.missing,
    "postgres17": Postgres17.missing,
    "clickhouse": clickhouse_missing,
    "clickhouse-cluster": cluster_missing,
    "chdb": chdb_missing,
    "slap": tool("mariadb-slap"),
    "sysbench": tool("sysbench"),
    "gdb": tool("gdb"),
    "eu-stack": tool("eu-stack"),
    "pt-pmp": tool("pt-pmp"),
    "promtool": tool("promtool"),
    "alertmanager": tool("prometheus-alertmanager"),
    "pdftotext": tool("pdftotext"),
    "web": web,
    "chromium": tool("chromium-headless-shell"),
    "tmux": tool("tmux"),
    "freeze": device_missing,
    "go": tool("go"),
    "flamegraph": consumer(FLAMEGRAPH),
    "axe": consumer(AXE),
    "mkdocs": module("material"),
    "kubernetes-validate": module("kubernetes_validate"),
    "speedscope": consumer(SPEEDSCOPE),
    "firefox-profiler": firefox_profiler,
    "mandoc": tool("mandoc"),
    "man": tool("man"),
    "systems": systems.missing,
    "packages": roots.missing,
    "zsh": tool("zsh"),
    "fish": tool("fish"),
    "exit-status": exit_status,
}


@functools.cache
def why_not(name: str) -> str | None:
    """Return why a need cannot be met here, or None."""
    return NEEDS[name]()


def required() -> frozenset[str]:
    """Return the needs that STALLSCOPE_REQUIRE (names separated by commas) insists on."""
    names = os.environ.get("STALLSCOPE_REQUIRE", "").replace(",", " ").split()
    unknown = sorted(set(names) - NEEDS.keys())
    if unknown:
        raise ValueError(f"STALLSCOPE_REQUIRE names no need of a test: {', '.join(unknown)}")
    return frozenset(names)


if __name__ == "__main__":
    for need in NEEDS:
        print(need, one_line(why_not(need) or ""), sep="\t")
