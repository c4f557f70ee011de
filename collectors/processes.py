# SPDX-License-Identifier: Apache-2.0
"""Find the server that the user names, by reading /proc alone.

A server is a process and those of its descendants that run the same program: PostgreSQL's
postmaster with its backends is one server, mysqld, a child of the shell script mysqld_safe, is
another program and a server by itself.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from stallscope.base.errors import StallscopeError, UsageError
from stallscope.collectors import procfile
from stallscope.collectors.paths import asking
from stallscope.model.capture import Process
from stallscope.redaction import commandline
from stallscope.server.families import family

__all__ = [
    "MAX_PROCESSES",
    "PROC",
    "Choose",
    "NotRunningError",
    "ProcessInfo",
    "Selector",
    "Server",
    "databases",
    "described",
    "find_server",
    "is_frozen",
    "listens",
    "namespace_pids",
    "owner",
    "read",
    "resolve",
    "seen_again",
    "thread_name",
    "user",
]

PROC = Path("/proc")
MAX_PROCESSES = 1024
"""The most processes of one server in one capture; a note says that the rest was skipped."""
CGROUPS = (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified"))
"""Where version 2 is mounted: alone, or beside version 1."""
LIST_LENGTH = 1500
"""Characters for the names of servers in a message, which is cut at 2000."""

_DELETED = " (deleted)"
_PF_KTHREAD = 0x00200000  # include/linux/sched.h; field 9 of /proc/PID/stat
_SO_ACCEPTCON = 0x10000  # include/uapi/linux/net.h; Flags of /proc/net/unix: listening
_TCP_LISTEN = "0A"  # include/net/tcp_states.h; st of /proc/net/tcp
_MAX_TABLE = 64 << 20  # bytes of one file below /proc that are read


class ProcessInfo(msgspec.Struct, frozen=True):
    """One line of /proc: what distinguishes processes without reading their memory."""

    pid: int
    ppid: int
    comm: str
    state: str
    start_time: int
    kernel: bool
    exe: str | None
    """As /proc shows it, without ``(deleted)``; None where it may not be read."""
    program: tuple[int, int] | None
    """Device and inode of the executable."""
    argv: tuple[str, ...]
    exe_deleted: bool = False

    @property
    def names(self) -> frozenset[str]:
        """Names by which it is found: of its program, of its thread, of its first argument."""
        names = {self.comm}
        if self.exe is not None:
            names.add(os.path.basename(self.exe))
        elif self.argv:
            names.add(os.path.basename(self.argv[0]))
        return frozenset(names)


class NotRunningError(StallscopeError):
    """No process matches the user's words."""


class Selector(msgspec.Struct, frozen=True):
    """What the user said about the server in addition to its name."""

    socket: str | None = None
    port: int | None = None
    datadir: str | None = None

    def __bool__(self) -> bool:
        return self.socket is not None or self.port is not None or self.datadir is not None

    def __str__(self) -> str:
        given = (("socket", self.socket), ("port", self.port), ("datadir", self.datadir))
        return ", ".join(f"{name} {value}" for name, value in given if value is not None)


class Server(msgspec.Struct, frozen=True):
    """A server: its main process, and all processes of it that are to be captured."""

    main: ProcessInfo
    pids: tuple[int, ...]
    left_out: int = 0
    """Processes beyond MAX_PROCESSES."""
    sockets: tuple[str, ...] = ()
    ports: tuple[int, ...] = ()
    datadir: str | None = None
    """As the server itself sees it."""
    uid: int | None = None
    """The user of its main process (``user``); None: not known."""
    chosen: bool = False
    """The user means this very process: by its pid, or as pins.Guard finds it."""

    @property
    def name(self) -> str:
        """Return the name of its program."""
        exe = self.main.exe
        return os.path.basename(exe) if exe is not None else self.main.comm

    def __str__(self) -> str:
        parts = [f"pid {self.main.pid}"]
        parts += [f"socket {socket}" for socket in self.sockets[:2]]
        parts += [f"port {port}" for port in self.ports[:2]]
        if self.datadir is not None:
            parts.append(f"datadir {self.datadir}")
        return " ".join(parts)


Choose = Callable[[list[Server]], list[Server]]
"""Returns those of the servers of a name that may be meant. Raises: NotRunningError."""


def resolve(
    targets: Sequence[str],
    selector: Selector,
    *,
    proc: Path = PROC,
    choose: Choose | None = None,
) -> tuple[tuple[int, ...], tuple[Server, ...]]:
    """Turn the user's words into process ids, and the servers that they belong to.

    Several numbers are one capture. Raises StallscopeError where nothing or more than one server
    answers to a name; ``choose`` may know better.
    """
    if not targets:
        if not selector:
            raise UsageError("which server? give -p PID or -p NAME, or --socket, --port, --datadir")
        servers = [find_server(None, selector, proc=proc, choose=choose)]
    else:
        servers = [find_server(one, selector, proc=proc, choose=choose) for one in targets]
    pids = dict.fromkeys(pid for server in servers for pid in server.pids)
    return tuple(pids), tuple(servers)


def find_server(
    target: str | None, selector: Selector, *, proc: Path = PROC, choose: Choose | None = None
) -> Server:
    """Find the one server that a number or a name and the selector stand for."""
    if target is not None and re.fullmatch(r"[0-9]+", target):
        return _by_pid(target, selector, proc)
    if target is not None and (not target or "/" in target or target.startswith("-")):
        raise UsageError(f"-p takes a process id or the name of a program, not {target!r}")
    return _by_name(target, selector, proc, choose)


def _by_pid(target: str, selector: Selector, proc: Path) -> Server:
    pid = int(target) if len(target) < 10 else -1
    info = read(pid, proc) if pid > 0 else None
    if info is None:
        raise StallscopeError(f"no process {target}: it has ended or never existed; see `ps -e`")
    leader = _status_field(proc / str(pid) / "status", "Tgid")
    if leader is not None and int(leader) != pid:
        raise StallscopeError(f"{pid} is a thread of process {leader}: give -p {leader}")
    if info.kernel:
        raise StallscopeError(f"{pid} ({info.comm}) is a kernel thread: it has no user stack")
    if info.state in "ZX":
        raise StallscopeError(
            f"process {pid} ({info.comm}) has ended and waits for its parent {info.ppid}"
            " to take note (zombie): there is nothing left to capture"
        )
    server = _server(proc, info, [info, *_descendants(info, list(_processes(proc)))])
    matches = _matches(proc, server, selector)
    if not matches:
        why = "" if matches is False else f" as far as is known: {asking.SILENT}"
        raise StallscopeError(f"process {pid} has no {selector}{why}; it is {server}")
    return msgspec.structs.replace(server, chosen=True)


def _by_name(
    name: str | None, selector: Selector, proc: Path, choose: Choose | None = None
) -> Server:
    everything = list(_processes(proc))
    if name is None:
        found = [p for p in everything if family(p.exe, p.comm) is not None]
    else:
        found = [p for p in everything if name in p.names]
    servers = [_server(proc, top, [top, *_descendants(top, everything)]) for top in _tops(found)]
    what = name or "database server"
    if not servers:
        raise NotRunningError(f"no process named {what}{_running_servers(everything)}")
    answers = [(server, _matches(proc, server, selector)) for server in servers]
    matching = [server for server, matches in answers if matches]
    if matching and choose is not None:
        matching = choose(matching)
    if len(matching) == 1:
        return matching[0]
    if not matching:
        unknown = [f"{server.main.pid}" for server, matches in answers if matches is None]
        why = f" (not known of pid {', '.join(unknown)}: {asking.SILENT})" if unknown else ""
        raise NotRunningError(f"no {what} with {selector}{why}; running: {_listed(servers)}")
    raise StallscopeError(
        f"{len(matching)} servers answer to {what}: {_listed(matching)}."
        " Give -p PID, or --socket, --port or --datadir"
    )


def _listed(servers: Sequence[Server]) -> str:
    """Name all of them, with as much detail as fits into one readable line."""
    for say in (str, _choice, lambda server: f"pid {server.main.pid}"):
        those = "; ".join(map(say, servers))
        if len(those) <= LIST_LENGTH:
            break
    return those


def _choice(server: Server) -> str:
    """Return an option that selects it, other than its pid."""
    if server.ports:
        return f"pid {server.main.pid} port {server.ports[0]}"
    if server.sockets:
        return f"pid {server.main.pid} socket {server.sockets[0]}"
    return f"pid {server.main.pid}"


def seen_again(server: Server) -> Server | None:
    """Return a server as it is now, None where it has ended.

    Before it listens, and works in its data directory, only its command line shows both.
    """
    main = read(server.main.pid)
    if main is None or main.start_time != server.main.start_time:
        return None
    again = _server(PROC, main, [main])
    return msgspec.structs.replace(
        again, pids=server.pids, left_out=server.left_out, chosen=server.chosen
    )


def listens(server: Server) -> bool:
    """Return whether the server accepts connections, as far as /proc shows it."""
    return any(_listening(PROC, server.main.pid))


def databases(proc: Path = PROC) -> list[tuple[int, str]]:
    """Return pid and program of the running database servers."""
    found = _tops([p for p in _processes(proc) if family(p.exe, p.comm) is not None])
    return [(p.pid, os.path.basename(p.exe or p.comm)) for p in found]


def _running_servers(everything: Sequence[ProcessInfo]) -> str:
    known = _tops([p for p in everything if family(p.exe, p.comm) is not None])
    if not known:
        return "; give -p PID"
    those = ", ".join(f"{os.path.basename(p.exe or p.comm)} (pid {p.pid})" for p in known[:8])
    return f"; running: {those}"


def _tops(found: Sequence[ProcessInfo]) -> list[ProcessInfo]:
    """Remove those whose parent runs the same program: they belong to its server."""
    by_pid = {p.pid: p for p in found}
    return [p for p in found if p.ppid not in by_pid or not _same_program(p, by_pid[p.ppid])]


def _descendants(top: ProcessInfo, everything: Sequence[ProcessInfo]) -> list[ProcessInfo]:
    children: dict[int, list[ProcessInfo]] = {}
    for process in everything:
        children.setdefault(process.ppid, []).append(process)
    out: list[ProcessInfo] = []
    todo = [top]
    while todo:
        for child in children.pop(todo.pop().pid, ()):
            if child.pid != top.pid and _same_program(child, top):
                out.append(child)
                todo.append(child)
    return sorted(out, key=lambda p: p.pid)


def _same_program(a: ProcessInfo, b: ProcessInfo) -> bool:
    if a.program is not None and b.program is not None:
        return a.program == b.program
    return a.exe is None and b.exe is None and a.comm == b.comm


def _server(proc: Path, main: ProcessInfo, members: Sequence[ProcessInfo]) -> Server:
    ports, sockets = _listening(proc, main.pid)
    return Server(
        main=main,
        pids=tuple(p.pid for p in members[:MAX_PROCESSES]),
        left_out=max(0, len(members) - MAX_PROCESSES),
        sockets=sockets or _absolute(proc, main.pid, _option(main.argv, "--socket", "-S")),
        ports=ports or _as_port(_option(main.argv, "--port", "-P")),
        datadir=_datadir(proc, main),
        uid=user(main.pid, proc),
    )


def _matches(proc: Path, server: Server, selector: Selector) -> bool | None:
    """Return whether it is the server that the user means; None: a disk does not answer."""
    if selector.port is not None and selector.port not in server.ports:
        return False
    root = f"{proc}/{server.main.pid}/root"
    datadirs = () if server.datadir is None else (server.datadir,)
    answers = []
    for theirs, ours in ((server.sockets, selector.socket), (datadirs, selector.datadir)):
        if ours is not None:
            each = [_same_path(root, path, ours) for path in theirs]
            answers.append(True if True in each else None if None in each else False)
    return False if False in answers else None if None in answers else True


def _same_path(root: str, theirs: str, ours: str) -> bool | None:
    """Compare a path below the server's root with one of the user; None: not known."""
    if os.path.normpath(theirs) == os.path.normpath(ours):
        return True
    try:
        return asking.is_same(f"{root}/{theirs}", ours)
    except asking.SilentDiskError:
        return None
    except OSError:
        return False


def _processes(proc: Path) -> Iterator[ProcessInfo]:
    """Yield the user processes that are alive, by pid."""
    try:
        pids = sorted(int(name) for name in os.listdir(proc) if name.isascii() and name.isdigit())
    except OSError as error:
        raise StallscopeError(f"cannot read {proc}: {error.strerror}") from error
    for pid in pids:
        info = read(pid, proc)
        if info is not None and not info.kernel and info.state not in "ZX":
            yield info


def read(pid: int, proc: Path = PROC) -> ProcessInfo | None:
    """Read one process; None where there is none, or it ended meanwhile."""
    base = proc / str(pid)
    stat = _read(base / "stat")
    # The name in parentheses may itself hold blanks and parentheses.
    head, _, tail = stat.rpartition(")")
    fields = tail.split()
    if len(fields) < 20 or "(" not in head:
        return None
    exe = _link(base / "exe")
    argv = _text(procfile.read(base / "cmdline", _MAX_TABLE)).split("\0")
    return ProcessInfo(
        pid=pid,
        ppid=int(fields[1]),
        comm=head.partition("(")[2],
        state=fields[0],
        start_time=int(fields[19]),
        kernel=bool(int(fields[6]) & _PF_KTHREAD),
        exe=None if exe is None else exe.removesuffix(_DELETED),
        program=procfile.identity(base / "exe"),
        argv=tuple(argv[:-1] if argv[-1] == "" else argv),
        exe_deleted=exe is not None and exe.endswith(_DELETED),
    )


def described(pid: int, threads_lost: int = 0) -> Process:
    """Return a process as captures have it; its number alone where it has ended."""
    info = read(pid)
    if info is None:
        return Process(pid=pid, threads_lost=threads_lost)
    return Process(
        pid=pid,
        ppid=info.ppid,
        start_time=info.start_time,
        comm=info.comm,
        exe=info.exe,
        exe_deleted=info.exe_deleted,
        cmdline=commandline.shown(info.argv),
        threads_lost=threads_lost,
    )


def is_frozen(pid: int, proc: Path = PROC, roots: Sequence[Path] = CGROUPS) -> bool:
    """Return whether the process's control group of version 2 is frozen, or one above it: its
    threads then sleep in the state of those that wait for work."""
    group = next(
        (line[3:] for line in _read(proc / str(pid) / "cgroup").splitlines() if line[:3] == "0::"),
        None,
    )
    if group is None or ".." in group:
        return False
    return any("frozen 1" in _read(root / group.lstrip("/") / "cgroup.events") for root in roots)


def namespace_pids(pid: int) -> tuple[int, ...]:
    """Return the process's ids, from our own pid namespace to the innermost one."""
    fields = _status_fields(PROC / str(pid) / "status", "NSpid")
    return tuple(int(field) for field in fields if field.isdigit())


def user(pid: int, proc: Path = PROC) -> int | None:
    """Return whose process it is; None where it has ended.

    Who has started a program with the set-user-ID bit is its real user: any user can start one by
    a name of his choice. A server that gives up root keeps that as its real user for a moment.
    """
    ids = _status_fields(proc / str(pid) / "status", "Uid")[:3]
    if len(ids) < 3 or not all(map(str.isdigit, ids)):
        return None
    return next((uid for uid in map(int, ids) if uid != 0), 0)


def owner(pid: int) -> tuple[int, int] | None:
    """Return the effective user and group of a process; None where it has ended."""
    status = PROC / str(pid) / "status"
    ids = [_status_fields(status, name)[1:2] for name in ("Uid", "Gid")]
    if not all(field and field[0].isdigit() for field in ids):
        return None
    return int(ids[0][0]), int(ids[1][0])


def thread_name(pid: int, tid: int) -> str:
    """Return the name that the kernel has of a thread, empty where it has ended."""
    return _read(PROC / str(pid) / "task" / str(tid) / "comm").rstrip("\n")


def _listening(proc: Path, pid: int) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Return the TCP ports and the socket paths on which the process itself listens."""
    inodes = _socket_inodes(proc, pid)
    if not inodes:
        return (), ()
    net = proc / str(pid) / "net"
    ports = set()
    for table in ("tcp", "tcp6"):
        for line in _read(net / table).splitlines()[1:]:
            fields = line.split()
            if len(fields) > 9 and fields[3] == _TCP_LISTEN and fields[9] in inodes:
                ports.add(int(fields[1].rpartition(":")[2], 16))
    sockets: list[str] = []
    for line in _read(net / "unix").splitlines()[1:]:
        fields = line.split(maxsplit=7)
        if len(fields) == 8 and int(fields[3], 16) & _SO_ACCEPTCON and fields[6] in inodes:
            sockets += _absolute(proc, pid, fields[7])
    return tuple(sorted(ports)), tuple(sorted(sockets))


def _socket_inodes(proc: Path, pid: int) -> frozenset[str]:
    inodes = set()
    with contextlib.suppress(OSError):
        for entry in os.listdir(proc / str(pid) / "fd"):
            link = _link(proc / str(pid) / "fd" / entry) or ""
            if link.startswith("socket:["):
                inodes.add(link[len("socket:[") : -1])
    return frozenset(inodes)


def _datadir(proc: Path, info: ProcessInfo) -> str | None:
    """Return the data directory: that of the options, else the server's working directory.

    mysqld (mysqld.cc, my_setwd to mysql_real_data_home) and postgres (ChangeToDataDir) both change
    into it.
    """
    server = family(info.exe, info.comm)
    if server is None:
        return None
    short = "-D" if server == "postgres" else "-h"
    asked = _absolute(proc, info.pid, _option(info.argv, "--datadir", "--data-directory", short))
    if asked:
        return asked[0].rstrip("/") or "/"
    cwd = _link(proc / str(info.pid) / "cwd")
    root = _link(proc / str(info.pid) / "root")
    if cwd is None or server == "mongodb":
        return None
    if root and root != "/" and cwd.startswith(root + "/"):
        return cwd[len(root) :]
    return cwd


def _absolute(proc: Path, pid: int, path: str | None) -> tuple[str, ...]:
    if not path:
        return ()
    if path.startswith(("/", "@")):  # @: in the abstract namespace, no file
        return (path,)
    cwd = _link(proc / str(pid) / "cwd")
    return () if cwd is None else (os.path.normpath(os.path.join(cwd, path)),)


def _option(argv: Sequence[str], *names: str) -> str | None:
    """Return the last value of an option: ``--name=value``, ``--name value``, ``-nvalue``."""
    value = None
    for i, arg in enumerate(argv[1:], 1):
        for name in names:
            if arg == name and i + 1 < len(argv):
                value = argv[i + 1]
            elif name.startswith("--") and arg.startswith(name + "="):
                value = arg[len(name) + 1 :]
            elif not name.startswith("--") and arg.startswith(name) and arg != name:
                value = arg[len(name) :]
    return value


def _as_port(text: str | None) -> tuple[int, ...]:
    return (int(text),) if text and text.isascii() and text.isdigit() and len(text) < 6 else ()


def _status_field(path: Path, name: str) -> str | None:
    fields = _status_fields(path, name)
    return fields[0] if fields else None


def _status_fields(path: Path, name: str) -> list[str]:
    for line in _read(path).splitlines():
        if line.startswith(name + ":"):
            return line.split()[1:]
    return []


def _read(path: Path) -> str:
    """Read a file below /proc; empty where it does not exist or may not be read."""
    try:
        with path.open("rb") as file:
            return _text(procfile.take(file, _MAX_TABLE))
    except OSError:
        return ""


def _text(data: bytes | None) -> str:
    return "" if data is None else data.decode("utf-8", "backslashreplace")


def _link(path: Path) -> str | None:
    try:
        return os.fsencode(os.readlink(path)).decode("utf-8", "backslashreplace")
    except OSError:
        return None
