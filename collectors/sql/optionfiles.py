# SPDX-License-Identifier: Apache-2.0
"""Option files: which are read, in which order, and which groups count for a client.

They are read as by the ``mariadb`` client, but with limits: other users can own these files.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from stallscope.base import trust
from stallscope.base.errors import UsageError
from stallscope.base.text import clean
from stallscope.collectors.paths import asking
from stallscope.collectors.sql import mylogin, optionlines

__all__ = ["GROUPS", "Found", "Setting", "Sources", "read"]

GROUPS = ("mysql", "mariadb-client", "client", "client-server", "client-mariadb")
"""Of the ``mariadb`` client (``mariadb --help``)."""

MAX_DEPTH = 10
"""Includes in includes: the clients' own limit."""
MAX_BYTES = 1 << 20
"""The most bytes of one file."""
MAX_FILES = 256
MAX_ENTRIES = 4096
"""Files of one !includedir."""
MAX_SETTINGS = 10_000
MAX_NOTES = 20

_SUFFIX_VARIABLES = ("MARIADB_GROUP_SUFFIX", "MYSQL_GROUP_SUFFIX")
_HOME_VARIABLES = ("MARIADB_HOME", "MYSQL_HOME")
_LOGIN_FILE_VARIABLE = "MYSQL_TEST_LOGIN_FILE"


class Sources(msgspec.Struct, frozen=True):
    """The user's options about option files, named as in the clients."""

    defaults_file: str | None = None
    """Read only this file; it must exist."""
    defaults_extra_file: str | None = None
    group_suffix: str | None = None
    login_path: str | None = None
    """A group of .mylogin.cnf that is read in addition to [client]."""
    no_defaults: bool = False


class Setting(msgspec.Struct, frozen=True):
    """One option as a file sets it; ``value``: None where there is no ``=``."""

    group: str
    name: str
    value: str | None
    file: str

    def __repr__(self) -> str:
        """Without the value: it can be a password."""
        return f"Setting({self.group!r}, {self.name!r}, file={self.file!r})"


class Found(msgspec.Struct, frozen=True):
    """The options of all files together."""

    settings: tuple[Setting, ...]
    """The options in the order of reading: the last one of a name counts."""
    files: tuple[str, ...]
    notes: tuple[str, ...]
    """What was ignored, and why."""


def read(
    sources: Sources,
    *,
    groups: Sequence[str] = GROUPS,
    environment: Mapping[str, str] | None = None,
    folders: Sequence[str] | None = None,
) -> Found:
    """Read all files that a client would.

    ``folders`` replaces /etc and /etc/mysql.

    Raises: UsageError where the clients give up: a file that was asked for by name and cannot be
    read, or a line that is wrong.
    """
    env = os.environ if environment is None else environment
    reader = _Reader(_with_suffix(groups, sources, env))
    if not sources.no_defaults:
        for path, required in _default_files(sources, env, folders):
            reader.top(path, required=required)
    login = ["client", *([sources.login_path] if sources.login_path else [])]
    reader.groups = _lower(_with_suffix(login, sources, env))
    reader.login_file(env.get(_LOGIN_FILE_VARIABLE) or os.path.expanduser("~/.mylogin.cnf"))
    return Found(tuple(reader.settings), tuple(reader.files), tuple(reader.notes))


def _with_suffix(
    groups: Sequence[str], sources: Sources, env: Mapping[str, str]
) -> tuple[str, ...]:
    suffix = sources.group_suffix or next(
        (env[name] for name in _SUFFIX_VARIABLES if env.get(name)), ""
    )
    return (*groups, *(group + suffix for group in groups)) if suffix else tuple(groups)


def _default_files(
    sources: Sources, env: Mapping[str, str], folders: Sequence[str] | None
) -> Iterator[tuple[str, bool]]:
    """Yield each file, and whether it must exist."""
    if sources.defaults_file is not None:
        yield os.path.expanduser(sources.defaults_file), True
        return
    places = list(("/etc", "/etc/mysql") if folders is None else folders)
    home = next((env[name] for name in _HOME_VARIABLES if env.get(name)), None)
    if home is not None:
        # A folder that is named twice counts where it was named last.
        places = [place for place in places if not _same(place, home)] + [home]
    for place in places:
        yield os.path.join(place, "my.cnf"), False
    if sources.defaults_extra_file is not None:
        yield os.path.expanduser(sources.defaults_extra_file), True
    yield os.path.join(env.get("HOME") or os.path.expanduser("~"), ".my.cnf"), False


def _same(one: str, other: str) -> bool:
    return os.path.normpath(one) == os.path.normpath(other)


def _lower(names: Iterable[str]) -> frozenset[str]:
    return frozenset(name.lower() for name in names)


class _NotThere(Exception):
    """A file that the clients skip; its text is the reason."""


class _Reader:
    def __init__(self, groups: Sequence[str]) -> None:
        self.groups = _lower(groups)
        self.settings: list[Setting] = []
        self.files: list[str] = []
        self.notes: list[str] = []

    def top(self, path: str, *, required: bool) -> None:
        """Read one of the first files."""
        if not required and self._is_distrusted(path):
            return
        try:
            self._file(path, 0)
        except _NotThere as error:
            if required:
                raise UsageError(f"cannot read the option file {path}: {error}") from None

    def _is_distrusted(self, path: str) -> bool:
        """Return whether other users can change a file of the user's own, and note why."""
        why = trust.reason(path)
        if why is not None:
            self._note(why)
        return why is not None

    def login_file(self, path: str) -> None:
        if self._is_distrusted(path):
            return
        try:
            data, mode = _load(path)
        except _NotThere:
            return
        if mode & (stat.S_IXUSR | stat.S_IRWXG | stat.S_IRWXO):
            self._note(f"{path} is ignored because others can read it: chmod 600")
            return
        try:
            text = mylogin.decrypt(data)
            self.files.append(path)
            self._lines(text, path, MAX_DEPTH)
        except UsageError as error:
            raise UsageError(f"{path}: {error}") from None

    def _file(self, path: str, depth: int) -> None:
        """Read a file and what it includes. Raises: _NotThere, UsageError."""
        if len(self.files) >= MAX_FILES:
            self._note(f"{path} is ignored: there are more than {MAX_FILES} option files")
            return
        data, mode = _load(path)
        if mode & stat.S_IWOTH:
            self._note(f"{path} is ignored because everybody can write to it")
            return
        self.files.append(path)
        try:
            self._lines(data, path, depth)
        except optionlines.LineError as error:
            raise UsageError(f"{path}: {error}") from None

    def _lines(self, data: bytes, path: str, depth: int) -> None:
        group = ""
        for item in optionlines.parse(data, includes=depth < MAX_DEPTH):
            if isinstance(item, optionlines.Group):
                group = os.fsdecode(item.name)
            elif isinstance(item, optionlines.Include):
                self._include(item, path, depth)
            elif group.lower() in self.groups:
                if len(self.settings) >= MAX_SETTINGS:
                    raise UsageError(f"{path}: more than {MAX_SETTINGS} options")
                value = None if item.value is None else os.fsdecode(item.value)
                self.settings.append(Setting(group, os.fsdecode(item.name), value, path))

    def _include(self, item: optionlines.Include, path: str, depth: int) -> None:
        target = os.path.expanduser(os.fsdecode(item.path))
        names = [target]
        if item.folder:
            try:
                found = asking.names(target, MAX_ENTRIES + 1)
            except OSError as error:
                raise UsageError(f"{path}: line {item.line}: !includedir: {error}") from None
            if len(found) > MAX_ENTRIES:
                raise UsageError(
                    f"{path}: line {item.line}: {target}: more than {MAX_ENTRIES} files"
                )
            # strcmp(3) of the names; on Unix .ini does not count.
            found = [name for name in found if os.path.splitext("x" + name)[1] == ".cnf"]
            names = [os.path.join(target, name) for name in sorted(found, key=os.fsencode)]
        for name in names:
            try:
                self._file(name, depth + 1)
            except _NotThere:
                pass
            except UsageError as error:
                # The clients print a warning and continue with the file that included it.
                self._note(str(error))

    def _note(self, text: str) -> None:
        if len(self.notes) < MAX_NOTES:
            self.notes.append(clean(text))


def _load(path: str) -> tuple[bytes, int]:
    """Return content and mode of a regular file; raises _NotThere, UsageError where too large."""
    try:
        data, mode = asking.read(path, MAX_BYTES + 1)
    except asking.SilentDiskError as error:
        raise UsageError(f"cannot read the option file {path}: {error.strerror}") from None
    except OSError as error:
        raise _NotThere(error.strerror or str(error)) from None
    if len(data) > MAX_BYTES:
        raise UsageError(f"{Path(path)}: an option file of more than {MAX_BYTES} bytes")
    return data, mode
