# SPDX-License-Identifier: Apache-2.0
"""Find the rings of libstallscope.so, and say whose they are and whether their servers live."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from stallscope.base.errors import StallscopeError
from stallscope.collectors import procfile
from stallscope.collectors.processes import PROC
from stallscope.model import ringfile
from stallscope.model.ringfile import Found, Life, Ring, RingError

__all__ = [
    "advice",
    "everywhere",
    "folders",
    "look",
    "missing",
    "of_process",
    "remove",
]

MAX_RINGS = 4096
"""The most files of one folder that are read."""

RUNTIME_DIR = "STALLSCOPE_RUNTIME_DIR"
SHARED = (("/run/user", "*/stallscope"), ("/dev/shm", "stallscope-*"))  # noqa: S108
"""Where users have folders of their own."""
_NAME = re.compile(rf"[0-9]{{1,10}}-[0-9a-f]{{1,16}}{re.escape(ringfile.SUFFIX)}")
FIRST_PID_NAMESPACE = 0xEFFFFFFC  # include/linux/proc_ns.h: PROC_PID_INIT_INO
_MAX_ENVIRONMENT = 1 << 20


class _Process(msgspec.Struct, frozen=True):
    pid: int
    namespace: int | None
    start_stack: int
    """Where its program's stack began; 0 where we may not look into it."""


def folders() -> list[Path]:
    """Return the folders in which libstallscope.so makes a ring, in the order that it tries them.

    They need not be there.
    """
    named = os.environ.get(RUNTIME_DIR)
    if named:
        return [Path(named)]
    found = [Path("/run/stallscope")]
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime:
        found.append(Path(runtime, "stallscope"))
    found.append(Path(f"/dev/shm/stallscope-{os.geteuid()}"))  # noqa: S108
    return found


def everywhere() -> list[Found]:
    """Look at all rings in the folders of all users, as far as they may be read."""
    places = folders()
    for parent, pattern in SHARED:
        with contextlib.suppress(OSError):
            places += sorted(Path(parent).glob(pattern))
    return _judged([found for folder in dict.fromkeys(places) for found in _in(folder)])


def look(paths: Iterable[Path]) -> list[Found]:
    """Look at these rings."""
    return _judged([_found(path) for path in paths])


def of_process(pid: int, *, proc: Path = PROC) -> Found | None:
    """Return the ring of a living process; None where there is none that we may see.

    It must be a file of the process's user, or of root: anybody may put one into a shared folder.
    """
    users = _users(pid, proc)
    number = _namespace_pid(pid, proc)
    if number is None:
        return None
    candidates = [
        found
        for folder in _of_process(pid, users, proc)
        for found in _in(folder, number)
        if found.ring is not None and found.ring.owner in users
    ]
    alive = [f for f in _judged(candidates, proc) if f.life is Life.ALIVE and f.process == pid]
    return alive[0] if alive else None


def missing(pid: int) -> str:
    """Say that a process has no ring, and what to do."""
    return (
        f"process {pid} has no ring of libstallscope.so that can be read here: start it by"
        " `stallscope run`, or see `stallscope inproc status`; a ring is made at the first wait for"
        " a lock, a sync or more space"
    )


def advice(error: StallscopeError, pids: Iterable[int]) -> str:
    """Return an error's text; where a process has a ring, with how to read it."""
    text = str(error)
    if "--backend inproc" not in text and any(of_process(pid) is not None for pid in pids):
        return f"{text}; try --backend inproc"
    return text


def remove(found: Found) -> None:
    """Remove the ring of a server that is gone. Raises: RingError for every other."""
    if found.life is Life.ALIVE:
        raise RingError(
            f"{found.path}: its server still runs (pid {found.process}): it is not removed"
        )
    if found.life is Life.UNKNOWN or found.ring is None:
        why = found.error or f"{found.path}: its server may still run in another PID namespace"
        raise RingError(f"{why}; it is not removed")
    try:
        found.path.unlink()
    except OSError as error:
        raise RingError(f"{found.path}: {error.strerror}: it cannot be removed") from error


def _of_process(pid: int, users: frozenset[int], proc: Path) -> list[Path]:
    """Return where a process can have made its ring: its own folders, seen through its root too."""
    own = _environment(pid, proc)
    named = [own[RUNTIME_DIR]] if own.get(RUNTIME_DIR) else []
    if own.get("XDG_RUNTIME_DIR"):
        named.append(f"{own['XDG_RUNTIME_DIR']}/stallscope")
    named.append("/run/stallscope")
    for user in sorted(users):
        named += [f"/run/user/{user}/stallscope", f"/dev/shm/stallscope-{user}"]  # noqa: S108
    root = proc / str(pid) / "root"
    seen = [Path(f"{root}/{path}") for path in named if path.startswith("/")]
    return list(dict.fromkeys([*folders(), *map(Path, named), *seen]))


def _environment(pid: int, proc: Path) -> dict[str, str]:
    data = procfile.read(proc / str(pid) / "environ", _MAX_ENVIRONMENT)
    if data is None:
        return {}
    words = data.decode("utf-8", "surrogateescape").split("\0")
    return {name: value for name, _, value in (word.partition("=") for word in words)}


def _in(folder: Path, pid: int | None = None) -> Iterator[Found]:
    """Yield the rings of a folder, by name; of one process where its number is given."""
    try:
        names = sorted(name for name in os.listdir(folder) if _NAME.fullmatch(name))
    except OSError:
        return
    if pid is not None:
        names = [name for name in names if name.startswith(f"{pid}-")]
    for name in names[:MAX_RINGS]:
        yield _found(folder / name)


def _found(path: Path) -> Found:
    try:
        return Found(path, ringfile.read(path))
    except RingError as error:
        return Found(path, error=str(error))


def _judged(found: list[Found], proc: Path = PROC) -> list[Found]:
    """Say of each ring whether its server lives. One process has one: the newest.

    A process that executes another program leaves the ring of the first behind.
    """
    index = _processes(proc) if found else {}
    boot_id = _text(proc / "sys/kernel/random/boot_id")
    judged = [_judge(one, index, boot_id, proc) for one in found]
    newest: dict[int, int] = {}
    for one in judged:
        if one.ring is not None and one.process is not None:
            newest[one.process] = max(newest.get(one.process, 0), one.ring.created_ns)
    return [
        msgspec.structs.replace(one, life=Life.LEFT, process=None)
        if one.ring is not None
        and one.process is not None
        and one.ring.created_ns < newest[one.process]
        else one
        for one in judged
    ]


def _judge(
    found: Found, index: dict[tuple[int, int], list[_Process]], boot_id: str, proc: Path
) -> Found:
    ring = found.ring
    if ring is None:
        return found
    if ring.ended:
        return msgspec.structs.replace(found, life=Life.ENDED)
    if ring.boot_id and boot_id and ring.boot_id != boot_id:
        return msgspec.structs.replace(found, life=Life.LEFT)
    for process in index.get((ring.pid, ring.start_time), ()):
        if process.namespace not in (None, ring.pid_namespace) and ring.pid_namespace:
            continue
        # An execve changes neither pid nor start time, but the stack.
        stacks = (ring.start_stack, process.start_stack)
        if 0 not in stacks and stacks[0] != stacks[1]:
            return msgspec.structs.replace(found, life=Life.LEFT)
        return msgspec.structs.replace(found, life=Life.ALIVE, process=process.pid)
    life = Life.LEFT if _would_be_seen(ring, proc) else Life.UNKNOWN
    return msgspec.structs.replace(found, life=life)


def _would_be_seen(ring: Ring, proc: Path) -> bool:
    """Return whether the server of a ring would be among the processes that we see."""
    own = _namespace(proc / "self")
    if own is None or not ring.pid or not ring.start_time:
        return False
    if ring.pid_namespace == own:
        try:
            os.kill(ring.pid, 0)  # asks, whatever /proc hides
        except ProcessLookupError:
            return True
        except OSError:
            pass
        return bool(_text(proc / str(ring.pid) / "stat"))  # it is another process
    # From the first namespace all are seen, unless /proc is mounted with hidepid.
    return own == FIRST_PID_NAMESPACE and bool(_text(proc / "1/stat"))


def _processes(proc: Path) -> dict[tuple[int, int], list[_Process]]:
    """Return processes by their pid in their own namespace and their start time."""
    index: dict[tuple[int, int], list[_Process]] = {}
    with contextlib.suppress(OSError):
        for name in os.listdir(proc):
            if not (name.isascii() and name.isdigit()):
                continue
            stat = _text(proc / name / "stat").rpartition(")")[2].split()
            number = _namespace_pid(int(name), proc)
            if len(stat) < 20 or number is None or stat[0] in "ZX":
                continue
            start_stack = int(stat[25]) if len(stat) > 25 else 0
            process = _Process(int(name), _namespace(proc / name), start_stack)
            index.setdefault((number, int(stat[19])), []).append(process)
    return index


def _namespace(process: Path) -> int | None:
    try:
        return os.stat(process / "ns/pid").st_ino
    except OSError:
        return None


def _namespace_pid(pid: int, proc: Path) -> int | None:
    numbers = _status(pid, "NSpid", proc)
    return numbers[-1] if numbers else None


def _users(pid: int, proc: Path) -> frozenset[int]:
    """Return the user ids of a process, and root's."""
    return frozenset((0, *_status(pid, "Uid", proc)[:2]))


def _status(pid: int, name: str, proc: Path) -> list[int]:
    for line in _text(proc / str(pid) / "status").splitlines():
        if line.startswith(f"{name}:"):
            return [int(word) for word in line.split()[1:] if word.isdigit()]
    return []


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(65536).decode("utf-8", "replace").strip()
    except OSError:
        return ""
