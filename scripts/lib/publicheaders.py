# SPDX-License-Identifier: Apache-2.0
"""Links to the headers of a C library that other libraries see; meson.build runs it."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

__all__ = ["link"]


def link(folder: Path, own: Path, public: Path, patterns: list[str]) -> None:
    """Make an include directory with these headers of a folder, and with what is generated in its
    own one."""
    shutil.rmtree(public, ignore_errors=True)
    headers = public / folder.name
    headers.mkdir(parents=True)
    for pattern in patterns:
        found = list(folder.glob(pattern))
        if not found:
            raise SystemExit(f"{folder}: no header {pattern}")
        for header in found:
            (headers / header.name).symlink_to(header)
    generated = own / "generated"
    if generated.is_dir():
        (public / "generated").symlink_to(generated)


if __name__ == "__main__":
    link(Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4:])
