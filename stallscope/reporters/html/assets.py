# SPDX-License-Identifier: Apache-2.0
"""Find the script, the style sheet and the licences that scripts/lib/webassets.py bundles."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from stallscope.base import package
from stallscope.base.errors import StallscopeError

__all__ = ["Assets", "load"]

_NAMES = ("report.js", "report.css", "licences.txt")


class Assets(msgspec.Struct, frozen=True):
    """The texts of the bundled files."""

    script: str
    style: str
    licences: str


def _folders() -> list[Path]:
    """Return the folders in which they can be: $STALLSCOPE_WEB, the checkout's build, the package's
    own folder."""
    named = os.environ.get("STALLSCOPE_WEB")
    if named:
        return [Path(named)]
    checkout = package.checkout()
    built = [] if checkout is None else [checkout / "build" / "web"]
    return [*built, package.FOLDER / "_web"]


def load() -> Assets:
    """Read them. Raises: StallscopeError that says what to do where they were not built."""
    for folder in _folders():
        if all((folder / name).is_file() for name in _NAMES):
            return Assets(*((folder / name).read_text("utf-8") for name in _NAMES))
    raise StallscopeError(
        "the script of the HTML report was not built: run ./scripts/setup, or set STALLSCOPE_WEB to"
        " a folder with " + ", ".join(_NAMES)
    )
