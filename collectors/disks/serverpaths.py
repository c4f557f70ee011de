# SPDX-License-Identifier: Apache-2.0
"""Where a server keeps what: by its variables, else by its options, else by its open files."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence

from stallscope.base.errors import UsageError
from stallscope.collectors.disks.tree import Tree
from stallscope.collectors.sql import optionfiles
from stallscope.model.diskfacts import Place

__all__ = ["OpenFile", "open_files", "options_of", "places"]

_SERVER_GROUPS = ("mysqld", "server", "mariadb", "mariadbd")
MAX_FILES = 16_384
"""The most open files that are checked."""
_MAX_PLACES = 64

# What a server calls its files where no option says otherwise.
_NAMES = (
    ("redo", re.compile(r"(?:ib_logfile\d{1,4}|#ib_redo\d{1,12}(?:_tmp)?|[0-9A-F]{24})")),
    ("binlog", re.compile(r".{1,200}-bin\.\d{6,10}|binlog\.\d{6,10}")),
    ("relay", re.compile(r".{1,200}relay-bin.{0,200}\.\d{6,10}")),
    ("undo", re.compile(r"undo_?\d{3}(?:\.ibu)?")),
    ("doublewrite", re.compile(r"#ib_\d{1,8}_\d{1,3}\.(?:b?dblwr)")),
    ("data", re.compile(r"ibdata\d{1,3}|mysql\.ibd|pg_control|aria_log_control")),
)


class OpenFile:
    """A file that the server has open."""

    def __init__(self, path: str, flags: int | None) -> None:
        self.path = path
        self.flags = flags
        """Of open(2); None: not readable."""

    @property
    def role(self) -> str | None:
        name = os.path.basename(self.path)
        return next((role for role, form in _NAMES if form.fullmatch(name)), None)


def open_files(tree: Tree, pid: int) -> tuple[OpenFile, ...]:
    """Return the open regular files of a process, as far as they may be read."""
    found = []
    for number in tree.names(f"/proc/{pid}/fd")[:MAX_FILES]:
        try:
            path = os.readlink(tree.path(f"/proc/{pid}/fd/{number}"))
        except OSError:
            continue
        if path.startswith("/") and not path.startswith("/dev/") and len(path) < 4096:
            found.append(OpenFile(path.removesuffix(" (deleted)"), _flags(tree, pid, number)))
    return tuple(found)


def _flags(tree: Tree, pid: int, number: str) -> int | None:
    text = tree.text(f"/proc/{pid}/fdinfo/{number}") or ""
    found = re.search(r"^flags:\s*([0-7]{1,16})$", text, re.MULTILINE)
    return int(found.group(1), 8) if found else None


def options_of(argv: Sequence[str], *, files: bool) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return a server's options by the names of its variables, and notes on what was ignored.

    ``files``: whether its option files are those of this host.
    """
    found: dict[str, str] = {}
    notes: tuple[str, ...] = ()
    given = dict(_given(argv))
    if files and "no_defaults" not in given:
        sources = optionfiles.Sources(
            defaults_file=given.get("defaults_file"),
            defaults_extra_file=given.get("defaults_extra_file"),
            group_suffix=given.get("defaults_group_suffix"),
        )
        try:
            # Not those of the user who runs this.
            read = optionfiles.read(
                sources,
                groups=_SERVER_GROUPS,
                environment={"HOME": "/nonexistent", "MYSQL_TEST_LOGIN_FILE": "/nonexistent"},
            )
            notes = read.notes
            for setting in read.settings:
                found[_variable(setting.name)] = "ON" if setting.value is None else setting.value
        except UsageError as error:
            notes = (str(error),)
    return {**found, **given}, notes


def _given(argv: Sequence[str]) -> Iterator[tuple[str, str]]:
    for word in argv[1:4096]:
        if word == "-D" and argv[-1] != word:
            yield "datadir", argv[argv.index(word) + 1]
        if not word.startswith("--") or len(word) > 4096:
            continue
        name, separator, value = word[2:].partition("=")
        name = _variable(name)
        if name.startswith("skip_") and not separator:
            yield name.removeprefix("skip_"), "OFF"
        yield name, value if separator else "ON"


def _variable(option: str) -> str:
    name = option.replace("-", "_").lower()
    return name.removeprefix("loose_")


def places(
    variables: Mapping[str, str],
    origin: str,
    datadir: str | None,
    files: Sequence[OpenFile],
    family: str | None,
) -> tuple[Place, ...]:
    """Return the directories of a server; ``origin`` is how a variable is named (``@@{}``)."""
    data = variables.get("datadir") or datadir
    found: dict[tuple[str, str], Place] = {}

    def add(role: str, path: str | None, where: str) -> None:
        if not path or len(found) >= _MAX_PLACES or "\0" in path:
            return
        if not path.startswith("/"):
            if data is None:
                return
            path = os.path.join(data, path)
        path = os.path.normpath(path)
        found.setdefault((role, path), Place(role, path, where))

    shown = origin.format("datadir") if variables.get("datadir") else "its working directory"
    add("data", data, shown)
    if family == "postgres":
        add("redo", None if data is None else f"{data}/pg_wal", "pg_wal of the data directory")
        return tuple(found.values())
    for role, name in (
        ("data", "innodb_data_home_dir"),
        ("data", "aria_log_dir_path"),
        ("redo", "innodb_log_group_home_dir"),
        ("undo", "innodb_undo_directory"),
        ("doublewrite", "innodb_doublewrite_dir"),
    ):
        add(role, variables.get(name), origin.format(name))
    for role, name in (("binlog", "log_bin_basename"), ("relay", "relay_log_basename")):
        if path := variables.get(name):
            add(role, os.path.dirname(path) or ".", origin.format(name))
    for role, name in (("binlog", "log_bin"), ("relay", "relay_log")):
        # Options have the path, where variables have ON and a name.
        if role not in {known for known, _ in found} and "/" in (path := variables.get(name, "")):
            add(role, os.path.dirname(path), origin.format(name))
    for name in ("tmpdir", "innodb_tmpdir", "innodb_temp_tablespaces_dir", "slave_load_tmpdir"):
        for path in (variables.get(name) or "").split(":")[:8]:
            add("temporary", path, origin.format(name))
    for file in files:
        if file.role is not None and file.role not in {role for role, _ in found}:
            add(file.role, os.path.dirname(file.path), "its open files")
    _add_defaults(found, add, data)
    return tuple(found.values())


def _add_defaults(found: Mapping[tuple[str, str], Place], add: object, data: str | None) -> None:
    """Say where the redo log is that nothing names: in the data directory."""
    assert callable(add)
    if data is not None and "redo" not in {role for role, _ in found}:
        add("redo", data, "the data directory, the default")
