# SPDX-License-Identifier: Apache-2.0
"""Check the agent's configuration files, or show what one means with all defaults."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from stallscope.base.errors import Exit, UsageError
from stallscope.base.text import clean

if TYPE_CHECKING:
    from stallscope.commands._config import Examined

__all__ = ["EPILOG", "add_arguments", "run"]

EPILOG = """\
examples:
  stallscope config check
  stallscope config check /etc/stallscope/orders.toml
  stallscope config show /etc/stallscope/orders.toml
"""

FOLDER = Path("/etc/stallscope")
_PLACE = re.compile(r"(?P<file>.*?)(?::(?P<line>\d+))?: (?P<message>.*)", re.DOTALL)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.add_argument(
        "action",
        choices=("check", "show"),
        help="check: print every mistake with its line; show: print the settings with all defaults",
    )
    parser.add_argument(
        "files",
        nargs="*",
        type=Path,
        metavar="FILE",
        help="configuration (default of check: all of /etc/stallscope/*.toml)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> Exit:
    """Print what is wrong, or the settings."""
    return _show(args) if args.action == "show" else _check(args)


def _check(args: argparse.Namespace) -> Exit:
    from stallscope.commands import _config

    files: list[Path] = args.files or sorted(FOLDER.glob("*.toml"))
    if not files:
        raise UsageError(f"no configuration: there is no file {FOLDER}/*.toml; name one")
    found = [(path, _config.examine(path)) for path in files]
    if args.json:
        value = {
            "schema": "stallscope.config/1",
            "files": [_as_json(path, examined) for path, examined in found],
        }
        print(msgspec.json.encode(value).decode())
    else:
        for path, examined in found:
            for line in _lines(path, examined):
                print(clean(line))
    wrong = any(examined.configuration is None for _, examined in found)
    return Exit.USAGE if wrong else Exit.DONE


def _lines(path: Path, examined: Examined) -> Iterator[str]:
    yield from (f"error: {error}" for error in examined.errors)
    yield from (f"warning: {warning}" for warning in examined.warnings)
    if examined.configuration is not None:
        servers = examined.configuration.servers
        names = ", ".join(server.name for server in servers)
        triggers = len(servers[0].agent.triggers)
        yield f"{path}: no errors; watches {names}; {triggers} triggers are on"


def _as_json(path: Path, examined: Examined) -> dict[str, Any]:
    servers = () if examined.configuration is None else examined.configuration.servers
    return {
        "file": str(path),
        "errors": [_placed(error) for error in examined.errors],
        "warnings": [_placed(warning) for warning in examined.warnings],
        "servers": [server.name for server in servers],
    }


def _placed(text: str) -> dict[str, Any]:
    match = _PLACE.fullmatch(text)
    if match is None:
        return {"file": None, "line": None, "message": text}
    line = match["line"]
    return {
        "file": match["file"],
        "line": None if line is None else int(line),
        "message": match["message"],
    }


def _show(args: argparse.Namespace) -> Exit:
    from stallscope.commands import _config

    if len(args.files) != 1:
        raise UsageError("config show takes one FILE")
    examined = _config.examine(args.files[0], tries=False)
    if examined.configuration is None:
        first, *more = examined.errors
        raise UsageError(f"{first}{f'; and {len(more)} more' if more else ''}")
    value = _config.shown(examined.configuration)
    if args.json:
        print(msgspec.json.encode({"schema": "stallscope.config/1", **value}).decode())
    else:
        print("\n".join(_toml(value)))
    return Exit.DONE


def _toml(tables: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of a file with these tables: values first, then tables in it."""
    yield from _table("", tables)


def _table(name: str, table: Mapping[str, Any]) -> Iterator[str]:
    for key, value in table.items():
        if not _is_table(value):
            yield f"{key} = {_literal(value)}"
    for key, value in table.items():
        path = f"{name}.{key}" if name else key
        if isinstance(value, dict):
            yield from ("", f"[{path}]")
            yield from _table(path, value)
        elif _is_table(value):
            for one in value:
                yield from ("", f"[[{path}]]")
                yield from _table(path, one)


def _is_table(value: Any) -> bool:
    return isinstance(value, dict) or (
        isinstance(value, list | tuple) and bool(value) and isinstance(value[0], dict)
    )


def _literal(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return f"{value}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_literal, value))}]"
    # A string of JSON is one of TOML, but for this character.
    return msgspec.json.encode(str(value)).decode().replace("\x7f", "\\u007f")
