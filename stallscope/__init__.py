# SPDX-License-Identifier: Apache-2.0
"""Names the stall of a live database server without stopping it."""

from __future__ import annotations

__all__ = ["__version__"]


def _version() -> str:
    """Read the version of the installed package, or of the checkout where nothing is installed."""
    import importlib.metadata
    from pathlib import Path

    checkout = Path(__file__).resolve().parent.parent
    if (checkout / "meson.build").is_file():
        return (checkout / "VERSION").read_text("ascii").strip()
    try:
        return importlib.metadata.version("stallscope")
    except importlib.metadata.PackageNotFoundError:
        return "0+unknown"


def __getattr__(name: str) -> str:
    if name == "__version__":
        return _version()
    raise AttributeError(name)


__version__: str
