# SPDX-License-Identifier: Apache-2.0
"""The packages that only some commands need: extras of the installation, not its dependencies."""

from __future__ import annotations

import importlib.util

from stallscope.base import package
from stallscope.base.errors import StallscopeError

__all__ = ["EXTRAS", "how_to_install", "is_installed", "require"]

EXTRAS = {
    "top": "textual",
    "report": "jinja2",
    "parquet": "duckdb",
    "apprise": "apprise",
    "ed25519": "nacl",
    "postgres": "psycopg",
}
"""For each extra of pyproject.toml the module that it installs."""


_OF_DEBIAN = {"apprise": "apprise"}
"""Extras that the package of Debian does not have, and the package there that has them."""


def how_to_install(*extras: str) -> str:
    """Return the command that installs it."""
    if package.FOLDER.is_relative_to("/usr/lib/stallscope") and set(extras) <= _OF_DEBIAN.keys():
        return f"apt-get install {' '.join(_OF_DEBIAN[extra] for extra in extras)}"
    return f"pip install 'stallscope[{','.join(extras)}]'"


def is_installed(extra: str) -> bool:
    """Return whether the package of an extra is there, without loading it."""
    return importlib.util.find_spec(EXTRAS[extra]) is not None


def require(extra: str, what: str) -> None:
    """Load the package of an extra for ``what``, which cannot be done without it.

    Raises: StallscopeError that names the command which installs it.
    """
    module = EXTRAS[extra]
    try:
        match extra:
            case "top":
                import textual  # noqa: F401
            case "report":
                import jinja2  # noqa: F401
            case "parquet":
                import duckdb  # noqa: F401
            case "apprise":
                import apprise  # noqa: F401
            case "ed25519":
                import nacl.bindings  # noqa: F401
            case "postgres":
                import psycopg  # noqa: F401
    except ImportError as error:
        missing = isinstance(error, ModuleNotFoundError) and error.name == module
        why = "is not installed" if missing else f"cannot be loaded ({error})"
        raise StallscopeError(
            f"{what} needs the Python package {module}, which {why}: {how_to_install(extra)}"
        ) from error
