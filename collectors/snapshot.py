# SPDX-License-Identifier: Apache-2.0
"""Take one Capture of a live server or of a core file, by the backend that was asked for."""

from __future__ import annotations

from pathlib import Path

import msgspec

from stallscope.base.errors import StallscopeError, UsageError
from stallscope.collectors import (
    gdb,
    packs,
    probe,
    processes,
    pyspy,
    rings,
    rootpath,
    versionlayouts,
)
from stallscope.collectors.paths import asking
from stallscope.collectors.probecommands import command, given
from stallscope.model import capturefile, memorysessions
from stallscope.model.capture import FROZEN, SESSIONS, Capture, Note, Process
from stallscope.model.sessions import Moment
from stallscope.server.families import family

__all__ = [
    "BACKENDS",
    "Options",
    "Taken",
    "arguments",
    "take",
    "take_core",
    "take_ring",
    "with_server_facts",
]

BACKENDS = ("auto", "bpf", "proc", "ptrace", "inproc", "gdb", "py-spy", "core")

_GRACE_SECONDS = 30.0
"""Seconds that the probe may take beyond its deadline: it reads symbols of large files once."""
_READ_STRINGS = ("server_version",)


class Options(msgspec.Struct, frozen=True):
    """The user's options for the capture."""

    backend: str = "auto"
    allow_stop: bool = False
    stop_blocked_reads: bool = False
    kernel_stacks: bool = True
    max_threads: int | None = None
    max_stack: int | None = None
    passes: int | None = None
    seconds: float = 10.0
    debug_dir: Path | None = None
    pack_dirs: tuple[Path, ...] = ()
    """Directories of packs, before the usual ones."""
    force_kernel: bool = False
    captures: int = 1
    """Captures of a burst; the backends of the probe alone take one."""
    interval_ms: int | None = None
    """From one of them to the next."""
    layout: str = ""
    """Where the server keeps its connections: stallscope.collectors.calibration.layouts."""
    ring: Path | None = None
    """The ring of the backend inproc, or its folder; None: it is searched for."""


class Taken(msgspec.Struct, frozen=True):
    """A capture, and what its connections ran, as the server's memory has it; statements have
    literals."""

    capture: Capture
    memory: tuple[Moment, ...] = ()


def take(pids: tuple[int, ...], servers: tuple[processes.Server, ...], options: Options) -> Taken:
    """Capture the processes; add what is known of their servers."""
    memory: tuple[Moment, ...] = ()
    if options.backend == "gdb":
        capture = gdb.capture(pids, seconds=_gdb_seconds(options), reason="requested by name")
    elif options.backend == "py-spy":
        if len(pids) != 1:
            raise UsageError("--backend py-spy takes one process at a time")
        capture = pyspy.capture(pids[0], seconds=options.seconds, reason="requested by name")
    else:
        capture, memory = _by_probe(pids, options)
    return Taken(with_server_facts(capture, servers), memory)


def take_core(core: Path, exe: Path | None, sysroot: Path | None, options: Options) -> Capture:
    """Make a Capture of a core file."""
    if not core.is_file():
        raise StallscopeError(f"no core file {core}")
    args = ["core", "--core", str(core)]
    args += given(("--exe", exe), ("--sysroot", sysroot), ("--debug-dir", options.debug_dir))
    args += packs.probe_options(options.pack_dirs)
    return _parse(_of_file(core, args + _read_strings(), options))[0]


def take_ring(ring: Path, sysroot: Path | None, options: Options) -> Capture:
    """Make a Capture of a ring: what its server's threads waited for at the end of the
    recording."""
    args = ["ring", "--ring", str(ring)]
    args += given(("--sysroot", sysroot), ("--debug-dir", options.debug_dir))
    args += packs.probe_options(options.pack_dirs)
    return _parse(_of_file(ring, args, options))[0]


def _of_file(file: Path, args: list[str], options: Options) -> bytes:
    try:
        return probe.run(args, seconds=options.seconds + _GRACE_SECONDS)
    except probe.ProbeError as error:
        # The probe names one of several files; where there is one, its name is added here.
        raise StallscopeError(
            str(error) if str(file) in str(error) else f"{file}: {error}"
        ) from error


def _by_probe(pids: tuple[int, ...], options: Options) -> tuple[Capture, tuple[Moment, ...]]:
    try:
        data = probe.run(
            arguments(pids, options),
            seconds=options.seconds + _GRACE_SECONDS,
            keeps=options.captures > 1,
        )
    except probe.ProbeError as error:
        if not (options.backend == "auto" and options.allow_stop):
            if options.backend == "inproc":
                raise
            raise probe.ProbeError(rings.advice(error, pids)) from error
        return _fall_back_to_gdb(pids, options, error), ()
    except probe.ProbeMissingError as error:
        if not (options.backend == "auto" and options.allow_stop):
            raise
        return _fall_back_to_gdb(pids, options, error), ()
    return _parse(data)


def _fall_back_to_gdb(pids: tuple[int, ...], options: Options, error: StallscopeError) -> Capture:
    """Take gdb where the user allowed stops and nothing else works."""
    try:
        gdb.find()
    except StallscopeError:
        raise error from None
    if all(processes.read(pid) is None for pid in pids):
        raise error
    return gdb.capture(
        pids, seconds=_gdb_seconds(options), reason=f"fallback: no other backend works: {error}"
    )


def arguments(pids: tuple[int, ...], options: Options) -> list[str]:
    """Return the probe's command line."""
    args = command(
        "snap",
        pids,
        backend=options.backend,
        ring=options.ring,
        force_kernel=options.force_kernel,
        pack_dirs=options.pack_dirs,
    )
    for flag, wanted in (
        ("--allow-stop", options.allow_stop),
        ("--stop-blocked-reads", options.stop_blocked_reads),
        ("--no-kernel-stacks", not options.kernel_stacks),
    ):
        if wanted:
            args.append(flag)
    args += given(
        ("--deadline", round(options.seconds * 1000)),
        ("--max-threads", options.max_threads),
        ("--max-stack", options.max_stack),
        ("--passes", options.passes),
        ("--debug-dir", options.debug_dir),
    )
    if options.layout:
        args += ["--layout", options.layout]
    if options.captures > 1:
        args += given(("--burst", options.captures), ("--burst-interval", options.interval_ms))
    return args + versionlayouts.arguments(pids) + _read_strings()


def _read_strings() -> list[str]:
    return [word for name in _READ_STRINGS for word in ("--read-string", name)]


def _gdb_seconds(options: Options) -> float:
    return options.seconds + _GRACE_SECONDS


def _parse(data: bytes) -> tuple[Capture, tuple[Moment, ...]]:
    data, memory = memorysessions.split(data)
    capture = capturefile.loads(data, probe.PROBE)
    notes = capture.notes
    misfit = memorysessions.misfit(memory)
    if misfit is not None:
        why = f"{memorysessions.MISFIT}: {misfit}; run `stallscope calibrate` again"
        notes, memory = (*notes, Note(SESSIONS, why)), ()
    return msgspec.structs.replace(capture, path=None, notes=notes), memory


def with_server_facts(capture: Capture, servers: tuple[processes.Server, ...]) -> Capture:
    """Add what only the file system knows: a data directory's PG_VERSION, a frozen control group,
    processes left out."""
    versions: dict[int, str | None] = {}
    notes = []
    for server in servers:
        pid = server.main.pid
        try:
            versions[pid] = _pg_version(server)
        except asking.SilentDiskError as error:
            versions[pid] = None
            notes.append(Note("pg-version", f"process {pid}: PG_VERSION: {error.strerror}"))
    frozen = {pid for pid in versions if processes.is_frozen(pid)}

    def completed(process: Process) -> Process:
        version = versions.get(process.pid)
        more = {} if version is None else {"PG_VERSION": version}
        if process.pid in frozen:
            more[FROZEN] = "1"
        if not more:
            return process
        return msgspec.structs.replace(process, strings={**process.strings, **more})

    notes += [
        Note(
            "processes-left-out",
            f"server {server.main.pid} has {server.left_out} processes beyond the"
            f" {processes.MAX_PROCESSES} that are captured; give -p for others",
        )
        for server in servers
        if server.left_out
    ]

    def with_facts(moment: Capture) -> Capture:
        found = tuple(completed(process) for process in moment.processes)
        return msgspec.structs.replace(moment, processes=found)

    return msgspec.structs.replace(
        with_facts(capture),
        later=tuple(with_facts(moment) for moment in capture.later),
        notes=(*capture.notes, *notes),
    )


def _pg_version(server: processes.Server) -> str | None:
    """Read PG_VERSION of a PostgreSQL data directory, as the server sees it."""
    if family(server.main.exe, server.main.comm) != "postgres" or not server.datadir:
        return None
    data = rootpath.read(server.main.pid, f"{server.datadir}/PG_VERSION", 64)
    if data is None:
        return None
    text = data.decode("ascii", "replace").strip()
    return text if text.replace(".", "").isdigit() else None
