# SPDX-License-Identifier: Apache-2.0
"""Whose files steer what this process does: configurations, allow-lists, layouts, libraries.

None is used that another user can change: the file, each folder above it, and each link on the way
and what it leads to, belong to root or to this user, and nobody else can write to them. The probe
has the same rule (pmp/base/trust.h); docs/design.md gives the reasons.
"""

from __future__ import annotations

import errno
import grp
import logging
import os
import re
import shutil
import stat
from collections import deque
from collections.abc import Iterable, Sequence
from pathlib import Path

from stallscope.base.errors import StallscopeError

__all__ = [
    "DistrustError",
    "command_reason",
    "find_program",
    "has_privileges",
    "open_file",
    "own_folder",
    "reason",
    "status_reason",
    "warn",
]

MAX_LINKS = 40
"""Of a path, as in the kernel."""
_MOUNTINFO = Path("/proc/self/mountinfo")
_FUSE = re.compile(r"^\S+ \S+ (\d+):(\d+) .* - fuse\S* \S+ \S*?\buser_id=(\d+)")
"""A blank in a name is escaped: the fields after the dash are type, source and options."""
_ACCESS_LIST = "system.posix_acl_access"
_RUNNERS = re.compile(
    r"(?:a|ba|da|k|z)?sh|(?:lua|node|perl|php|python|ruby)[0-9.]*|env|flock|ionice|nice|nohup"
    r"|setsid|stdbuf|sudo|taskset|timeout"
)
"""Programs that run a file which is an argument."""
_log = logging.getLogger(__name__)
_warned: set[str] = set()


class DistrustError(StallscopeError):
    """A file that another user can change; the text has the file, the reason and what to do."""


def has_privileges() -> bool:
    """Return whether this process may do more than its user."""
    return os.geteuid() == 0 or os.getuid() != os.geteuid() or os.getgid() != os.getegid()


def open_file(path: str | Path, *, owners: Iterable[int] = (), named: bool = False) -> int:
    """Return a descriptor for reading of the very file that was checked.

    ``owners``: more users whose files are used. ``named``: the user has named the file, and it does
    no more than that user may: without more privileges any file is used.

    Raises: DistrustError; OSError as open(2).
    """
    if named and not has_privileges():
        return os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    walk = _Walk(frozenset({0, os.geteuid(), *owners}))
    try:
        return walk.open(os.fspath(path))
    except _Distrust as why:
        raise DistrustError(f"{path} is not used: {why}") from None
    finally:
        walk.close()


def reason(path: str | Path, *, named: bool = False) -> str | None:
    """Return why a file or folder is not used; None: it is trusted, or is not there."""
    try:
        os.close(open_file(path, named=named))
    except DistrustError as error:
        return str(error) if os.path.lexists(path) else None
    except OSError:
        pass
    return None


def command_reason(command: Sequence[str]) -> str | None:
    """Return why a command is not run: another user can change its program, or a file that an
    interpreter gets as an argument. None: nobody can, or the file is not there."""
    program, *arguments = command
    files = [shutil.which(program) or program]
    if _RUNNERS.fullmatch(os.path.basename(program)):
        files += [text for text in arguments if text.startswith("/") and os.path.isfile(text)]
    return next((why for file in files if (why := reason(file)) is not None), None)


def find_program(name: str) -> str | None:
    """Return the path of a program in PATH; one that another user can change is left out, with a
    warning. None: there is none."""
    for folder in os.get_exec_path():
        path = os.path.join(folder, name)
        if os.path.isfile(path) and os.access(path, os.X_OK):
            why = reason(path, named=True)
            if why is None:
                return path
            warn(why)
    return None


def own_folder(variable: str, below_home: str, name: str) -> Path | None:
    """Return a folder of this user's own files: in that of a variable as ``XDG_DATA_HOME``, or
    below the home. It need not be there.

    None: there is none, or it is another user's, as of ``sudo -E``, with a warning if it is there.
    """
    named, home = os.environ.get(variable) or "", os.environ.get("HOME") or ""
    if os.path.isabs(named):
        folder = Path(named, name)
    elif os.path.isabs(home):
        folder = Path(home, below_home, name)
    else:
        return None
    try:
        os.close(open_file(folder))
    except DistrustError as error:
        if os.path.lexists(folder):
            warn(str(error))
        return None
    except OSError:
        pass
    return folder


def warn(why: str) -> None:
    """Say why a file is left out, once."""
    if why not in _warned:
        _warned.add(why)
        _log.warning("%s", why)


def status_reason(status: os.stat_result, owners: Iterable[int], path: str | Path) -> str | None:
    """Return why others could change a file, whatever folder it is in; None: they cannot."""
    return _fault(status, frozenset(owners), str(path), None)


class _Distrust(Exception):
    pass


def _fault(
    status: os.stat_result, owners: frozenset[int], path: str, descriptor: int | None
) -> str | None:
    mode = status.st_mode
    if status.st_uid not in owners:
        return (
            f"{path} belongs to user {status.st_uid}, who could change it: chown it to root, or use"
            " a copy of your own"
        )
    user = _server(status.st_dev)
    if user is not None and user not in owners:
        return f"{path} is on a FUSE file system of user {user}: copy it to a disk"
    others = mode & 0o022
    # What is in a sticky folder can be replaced by its owner alone. Nobody writes to a link, and
    # what is written to a device is not what is read from it.
    is_sticky = stat.S_ISDIR(mode) and mode & stat.S_ISVTX
    if not others or is_sticky or stat.S_ISLNK(mode) or stat.S_ISCHR(mode):
        return None
    if descriptor is not None:
        if others == stat.S_IWGRP and _is_own_group(status.st_gid) and not _has_list(descriptor):
            return None
        # Kubernetes mounts its volumes read-only, with folders of mode 0777.
        if os.fstatvfs(descriptor).f_flag & os.ST_RDONLY:
            return None
    by_group = others == stat.S_IWGRP
    who, change = (f"group {status.st_gid}", "g-w") if by_group else ("others", "go-w")
    return f"{path} can be written to by {who} (mode {mode & 0o7777:04o}): chmod {change}"


def _is_own_group(gid: int) -> bool:
    """Return whether a group is root's, or that of this user alone.

    useradd(8) gives each user a group of the same number, and pam_umask(8) then lets it write.
    """
    if gid == 0:
        return True
    if has_privileges() or not gid == os.getgid() == os.getuid():
        return False
    try:
        group = grp.getgrgid(gid)
    except KeyError:
        return False
    return set(group.gr_mem) <= {group.gr_name}


def _has_list(descriptor: int) -> bool:
    """Return whether there is an access list: the group's bits only limit it (acl(5))."""
    try:
        os.getxattr(f"/proc/self/fd/{descriptor}", _ACCESS_LIST)
    except OSError as error:
        return error.errno not in (errno.ENODATA, errno.EOPNOTSUPP)
    return True


def _server(device: int) -> int | None:
    """Return the user who serves a FUSE file system, and chooses the owners that it reports."""
    if os.major(device):
        return None
    try:
        lines = _MOUNTINFO.read_text("utf-8", "replace").splitlines()
    except OSError:
        return None
    for line in lines:
        match = _FUSE.match(line)
        if match and (int(match[1]), int(match[2])) == (os.major(device), os.minor(device)):
            return int(match[3])
    return None


class _Walk:
    """From the root folder on, one descriptor after the other: no name is looked up twice."""

    def __init__(self, owners: frozenset[int]) -> None:
        self._owners = owners
        self._folder = -1
        self._at = ""
        self._links = 0

    def close(self) -> None:
        if self._folder >= 0:
            os.close(self._folder)
        self._folder = -1

    def open(self, path: str) -> int:
        """Return a descriptor for reading. Raises: _Distrust, OSError."""
        rest = deque(_names(os.path.join(os.getcwd(), path)))
        self._go_to_root()
        while rest:
            name = rest.popleft()
            if name != ".":
                last = self._step(name, rest)
                if last is not None:
                    return last
        return os.open(".", os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._folder)

    def _go_to_root(self) -> None:
        self.close()
        self._at = ""
        self._folder = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        self._check(self._folder, "/")

    def _check(self, descriptor: int, path: str) -> os.stat_result:
        status = os.fstat(descriptor)
        why = _fault(status, self._owners, path, descriptor)
        if why is not None:
            raise _Distrust(why)
        return status

    def _step(self, name: str, rest: deque[str]) -> int | None:
        """Go on by one name; return the file where it was the last."""
        path = f"{self._at}/{name}"
        found = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self._folder)
        try:
            status = self._check(found, path)
            follow = os.O_NOFOLLOW
            if stat.S_ISLNK(status.st_mode):
                text = os.readlink("", dir_fd=found)
                self._links += 1
                if self._links > MAX_LINKS:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
                if not _is_magic(status, text):
                    rest.extendleft(reversed(_names(text)))
                    if text.startswith("/"):
                        self._go_to_root()
                    return None
                follow = 0
            # Not before it is known to be no FIFO or device of somebody else.
            if not rest and not stat.S_ISDIR(status.st_mode):
                flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC | follow
                return self._opened(name, flags, path)
            folder = self._opened(name, os.O_PATH | os.O_CLOEXEC | follow, path)
        finally:
            os.close(found)
        self.close()
        self._folder, self._at = folder, path
        return None

    def _opened(self, name: str, flags: int, path: str) -> int:
        descriptor = os.open(name, flags, dir_fd=self._folder)
        try:
            self._check(descriptor, path)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor


def _names(path: str) -> list[str]:
    return [name for name in path.split("/") if name]


def _is_magic(status: os.stat_result, text: str) -> bool:
    """Return whether it is a link such as /proc/self/fd/0, which leads to what it is for."""
    return status.st_dev == os.stat("/proc").st_dev and (text.startswith("/") or ":" in text)
