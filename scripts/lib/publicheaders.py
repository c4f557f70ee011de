# SPDX-License-Identifier: Apache-2.0
"""Links to the headers of a C library that other libraries see; meson.build runs it."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

__all__ = ["link"]


def link(folder: Path, own: Path, public: Path, names: list[str]) -> None:
    """Make an include directory of these headers, and of what is generated in the folder's own."""
    shutil.rmtree(public, ignore_errors=True)
    headers = public / folder.name
    headers.mkdir(parents=True)
    for name in names:
        if not (folder / name).is_file():
            raise SystemExit(f"{folder}: no header {name}")
        (headers / name).symlink_to(folder / name)
    generated = own / "generated"
    if generated.is_dir():
        (public / "generated").symlink_to(generated)


if __name__ == "__main__":
    link(Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4:])
