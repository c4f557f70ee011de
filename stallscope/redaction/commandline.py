# SPDX-License-Identifier: Apache-2.0
"""A command line without its secrets: what may be shown is listed, all else is ``?``.

Shown are the program, the names of options, and the values of the options in options.txt, if they
are a path, a word, a number or an address. pmp/capture/cmdline.c has the same rules and the same
list.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from pathlib import Path

__all__ = ["HIDDEN", "shown"]

HIDDEN = "?"
_OPTIONS = Path(__file__).with_name("options.txt")
_OPTION = re.compile(r"--([A-Za-z][A-Za-z0-9_.-]{0,63})(=.*)?", re.DOTALL)
_SHORT = re.compile(r"-([A-Za-z0-9])(.*)", re.DOTALL)
_SETTING = re.compile(r"([A-Za-z_][A-Za-z0-9_.-]{0,63})=([^=].*)", re.DOTALL)
"""Secrets in base64 end with the sign: they are no names."""
_VALUE = re.compile(r"[A-Za-z0-9_./+,-]+|[A-Fa-f0-9.:*,]+")
_PROGRAM = re.compile(r"(?:/(?:bin|lib|lib32|lib64|opt|sbin|usr)/)[A-Za-z0-9_./+-]*")
_TITLE = re.compile(r"postgres: [A-Za-z0-9_ .:@()\[\]/,-]*")
_PATH = re.compile(r"[A-Za-z0-9_./+-]+:?")


@functools.cache
def _harmless() -> frozenset[str]:
    return frozenset(_OPTIONS.read_text(encoding="ascii").split())


def shown(argv: Sequence[str]) -> tuple[str, ...]:
    """Return the arguments as they may be shown; there are as many."""
    out = [_title(argv[0])] if argv else []
    shows = ""
    """What the next argument is the value of: an option that is shown, ``c`` or one that is not."""
    for argument in argv[1:]:
        of, shows = shows, ""
        if argument.startswith("-") and argument != "-":
            text, shows = _option(argument)
        elif of == "c":
            text = _setting(argument, _SETTING.fullmatch(argument))
        elif of:
            text = argument if _is_harmless(of) and _VALUE.fullmatch(argument) else HIDDEN
        elif argument in ("", "-") or _PROGRAM.fullmatch(argument):
            text = argument
        else:
            found = _SETTING.fullmatch(argument)
            text = HIDDEN if found is None else f"{found[1]}={HIDDEN}"
        out.append(text)
    return tuple(out)


def _title(text: str) -> str:
    """Return the program; of what it wrote over its arguments only PostgreSQL's is known."""
    if _TITLE.fullmatch(text) or _PATH.fullmatch(text):
        return text
    first, blank, _ = text.partition(" ")
    return f"{first} {HIDDEN}" if blank and _PATH.fullmatch(first) else HIDDEN


def _option(argument: str) -> tuple[str, str]:
    """Return what is shown, and what the next argument is the value of."""
    if argument == "--":
        return argument, ""
    if (found := _OPTION.fullmatch(argument)) is not None:
        name, value = found[1], found[2]
        if value is None:
            return argument, name
        is_shown = _is_harmless(name) and _VALUE.fullmatch(value[1:])
        return (argument if is_shown else f"--{name}={HIDDEN}"), ""
    if (found := _SHORT.fullmatch(argument)) is not None:
        return (argument, found[1]) if not found[2] else (f"-{found[1]}{HIDDEN}", "")
    return f"-{HIDDEN}", HIDDEN


def _setting(argument: str, found: re.Match[str] | None) -> str:
    if found is None:
        return HIDDEN
    is_shown = _is_harmless(found[1]) and _VALUE.fullmatch(found[2])
    return argument if is_shown else f"{found[1]}={HIDDEN}"


def _is_harmless(name: str) -> bool:
    if len(name) == 1:
        return name in _harmless()
    return name.lower().replace("_", "-").removeprefix("loose-") in _harmless()
