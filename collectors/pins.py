# SPDX-License-Identifier: Apache-2.0
"""Which of the programs of a name is the server that is meant.

Any user can start a program that is called as the server is, also from the server's own file, and
with its own library loaded first. Nobody else can start one as the server's user. So a server is
known by its user, and then by its data directory and its program's file: all that a process says of
itself counts only together with the user. docs/agent.md.
"""

from __future__ import annotations

import logging
import os
import pwd
from collections.abc import Iterable
from pathlib import Path

import msgspec

from stallscope.base.errors import UsageError
from stallscope.base.text import one_line
from stallscope.collectors import procfile, rootpath
from stallscope.collectors.paths import asking
from stallscope.collectors.processes import PROC, NotRunningError, Server
from stallscope.server.families import family

__all__ = ["Guard", "Pin", "is_system", "of", "stranger", "user", "user_id"]

_log = logging.getLogger(__name__)

_OVERFLOW = 65534
"""The number of all users that a user namespace does not have."""
_SYSTEM = (range(1000), range(61184, 65520), range(_OVERFLOW, _OVERFLOW + 1))
"""Accounts of the host's own services, those that systemd makes for one service, and nobody."""
_ACCOUNTS = {
    "mysql": ("mysql", "_mysql"),
    "mariadb": ("mysql", "_mysql"),
    "postgres": ("postgres", "_postgres"),
    "mongodb": ("mongodb", "mongod", "_mongodb"),
}
"""Users that packages of a server make for it."""
_MOST_OTHERS = 8
"""The most programs that are named as not watched."""
_MOST_SAID = 200
_WRITABLE = 0o022
_MAX_PASSWD = 1 << 20


class Pin(msgspec.Struct, frozen=True):
    """What a server was when it was first watched."""

    uid: int
    exe: str | None = None
    datadir: str | None = None
    """As the server itself sees it."""
    owner: int | None = None
    """The user of the data directory: a server that is root at its start becomes that."""

    @property
    def users(self) -> frozenset[int]:
        """Return the users of which it can be: root can do all that it could."""
        later = {self.owner} if self.uid == 0 and self.owner is not None else set()
        return frozenset({0, self.uid, *later})


def of(server: Server) -> Pin | None:
    """Return the pin of a server as it is; None where its user is not known."""
    if server.uid is None or not _is_known(server.uid):
        return None
    datadir = server.datadir if server.datadir != "/" else None  # it has just been started
    owner = _owner_of(server, datadir) if server.uid == 0 and datadir is not None else None
    return Pin(server.uid, server.main.exe, datadir, owner)


def stranger(server: Server) -> str | None:
    """Return why a server that was never seen before is not taken for the one that is meant by its
    name alone; None: it is root's, this user's own, or of an account of the system."""
    return None if server.chosen or _rank(server) is not None else _of_stranger(server)


def is_system(uid: int) -> bool:
    """Return whether a user is an account of the host, and no person."""
    return _is_known(uid) and any(uid in users for users in _SYSTEM)


def user(uid: int) -> str:
    """Return a user for a message."""
    name = next((name for name, one in _local_users().items() if one == uid), None)
    return f"user {uid}" if name is None else f"user {one_line(name, 40)} ({uid})"


def user_id(text: str) -> int:
    """Return the user of a name or a number. Raises: UsageError."""
    if text.isascii() and text.isdigit() and len(text) <= 10:
        return int(text)
    try:
        return pwd.getpwnam(text).pw_uid
    except (KeyError, ValueError):
        raise UsageError(f"there is no user {one_line(text, 40)!r} on this host") from None


class Guard:
    """Chooses the server among the programs of its name, at first and after each restart."""

    def __init__(self, users: Iterable[int] = (), pin: Pin | None = None) -> None:
        """``users``: of which it may be, as the user says; none: as ``pin``, or at first as
        ``stranger`` has it."""
        self.users = frozenset(users)
        self.pin = pin
        self.others: tuple[str, ...] = ()
        """Programs of its name that are not watched, at the latest choice, and why."""
        self._said: set[str] = set()

    def seen(self, server: Server) -> None:
        """Take a server that is watched for the one that is meant, where none was before."""
        new = of(server)
        old = self.pin
        if new is None:
            return
        if old is None or new.uid not in old.users:
            self.pin = new
        elif old.datadir is None and new.datadir is not None:
            self.pin = msgspec.structs.replace(old, datadir=new.datadir, owner=new.owner)

    def choose(self, found: list[Server]) -> list[Server]:
        """Return those that may be the server, each as ``chosen``. Raises: NotRunningError."""
        reasons = [(server, self._reason(server)) for server in found]
        good = [server for server, why in reasons if why is None]
        if self.pin is None and not self.users:
            best = min((rank for rank in map(_rank, good) if rank is not None), default=None)
            reasons += [(one, _of_stranger(one)) for one in good if _rank(one) != best]
            good = [one for one in good if _rank(one) == best]
        self._say([(server, why) for server, why in reasons if why])
        if not good:
            others = "; ".join(self.others) or "one that is just being started"
            raise NotRunningError(f"no {found[0].name} that may be watched: {others}")
        return [msgspec.structs.replace(server, chosen=True) for server in good]

    def _reason(self, server: Server) -> str | None:
        """Return why one is not watched; "": it is not known yet what it is."""
        uid = server.uid
        if uid is None:
            return ""
        if self.users and uid not in {0, *self.users}:
            return f"{_is(server)}, and not of {_one_of(self.users)}, as --server-user says"
        if self.pin is None:
            return None if self.users else stranger(server)
        if not self.users and uid not in self.pin.users:
            return (
                f"{_is(server)}, and the server is of {_one_of(self.pin.users - {0})}: if that has"
                f" changed, say --server-user {uid}"
            )
        why = self._other_data(server, self.pin)
        return self._other_program(server, self.pin) if why is None else why

    def _other_data(self, server: Server, pin: Pin) -> str | None:
        if pin.datadir is None or server.datadir is None or _same(server, pin.datadir):
            return None
        if server.datadir == "/":
            return ""
        return (
            f"{_is(server)} with the data in {server.datadir}, and the server's is in"
            f" {pin.datadir}: if it was moved, say --datadir {server.datadir}"
        )

    def _other_program(self, server: Server, pin: Pin) -> str | None:
        exe = server.main.exe
        if exe is None or exe == pin.exe:
            return None
        found = procfile.owner(PROC / str(server.main.pid) / "exe")
        if found is None or found[0] in {os.geteuid(), *pin.users, *self.users}:
            return None
        return f"{_is(server)} from {exe}, which belongs to {user(found[0])}"

    def _say(self, others: list[tuple[Server, str]]) -> None:
        self.others = tuple(why for _, why in others[:_MOST_OTHERS])
        for server, why in others[:_MOST_OTHERS]:
            kind = why.replace(str(server.main.pid), "")
            if kind not in self._said and len(self._said) < _MOST_SAID:
                self._said.add(kind)
                _log.warning("not watched: %s", why)


def _rank(server: Server) -> int | None:
    """Return how sure it is that a server which was never seen is meant: 0, 1, or None: not."""
    uid = server.uid
    if uid is None or not _is_known(uid):
        return None
    if uid in (0, os.geteuid()) or uid in _accounts(server):
        return 0
    return 1 if is_system(uid) and _is_of_root(server) and _has_own_data(server) else None


def _accounts(server: Server) -> set[int]:
    names = _ACCOUNTS.get(family(server.main.exe, server.main.comm) or "", ())
    users = _local_users()
    return {users[name] for name in names if name in users}


def _local_users() -> dict[str, int]:
    """Return the users of this host itself: others are asked by the network, which can take long,
    and no package made one of them."""
    try:
        with Path("/etc/passwd").open("rb") as file:
            lines = file.read(_MAX_PASSWD).decode("utf-8", "replace").splitlines()
    except OSError:
        return {}
    fields = [line.split(":") for line in lines]
    return {one[0]: int(one[2]) for one in fields if len(one) > 2 and one[2].isdecimal()}


def _is_of_root(server: Server) -> bool:
    """Return whether no other user can change its program; what is not known may be."""
    found = procfile.owner(PROC / str(server.main.pid) / "exe")
    return found is None or (found[0] in (0, os.geteuid()) and not found[1] & _WRITABLE)


def _has_own_data(server: Server) -> bool:
    """Return whether its data directory is of its user, as far as is known."""
    datadir = server.datadir
    owner = None if datadir is None or datadir == "/" else _owner_of(server, datadir)
    return owner in (None, server.uid)


def _owner_of(server: Server, datadir: str) -> int | None:
    try:
        return asking.status(rootpath.inside(server.main.pid, datadir)).st_uid
    except OSError:
        return None


def _same(server: Server, datadir: str) -> bool:
    """Return whether the data directory of a server is this one: links may lead to it."""
    if server.datadir is None or os.path.normpath(server.datadir) == os.path.normpath(datadir):
        return True
    try:
        theirs, ours = (rootpath.inside(server.main.pid, one) for one in (server.datadir, datadir))
        return asking.is_same(theirs, ours)
    except OSError:
        return False


def _is_known(uid: int) -> bool:
    """Return whether a number is that of one user: those of other user namespaces share one."""
    if uid != _OVERFLOW:
        return True
    try:
        lines = Path("/proc/self/uid_map").read_text("ascii").splitlines()
        return any(_has(*map(int, line.split())) for line in lines)
    except (OSError, ValueError, TypeError):
        return False


def _has(inside: int, outside: int, count: int) -> bool:
    return inside <= _OVERFLOW < inside + count


def _is(server: Server) -> str:
    who = "an unknown user" if server.uid is None else user(server.uid)
    return f"{server.name} (pid {server.main.pid}) is of {who}"


def _one_of(users: Iterable[int]) -> str:
    return " or ".join(user(uid) for uid in sorted(users)) or user(0)


def _of_stranger(server: Server) -> str:
    if server.uid is None or not _is_known(server.uid):
        return f"{_is(server)}: name it by -p {server.main.pid}"
    return f"{_is(server)}: if it is meant, say --server-user {server.uid}, or -p {server.main.pid}"
