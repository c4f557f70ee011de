# SPDX-License-Identifier: Apache-2.0
"""docs/design.md against the tree: a folder that it leaves out, a file that is no longer there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

__all__: list[str] = []

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "design.md").read_text()
ROOMS = ("pmp", "inproc", "ebpf", "collectors", "analyzers", "stallscope", "scripts")


def sources(room: str) -> list[Path]:
    """Return the files of a room, what its links lead to left out."""
    found = (path for path in (ROOT / room).rglob("*") if path.suffix in {".c", ".h", ".py"})
    return [path.relative_to(ROOT) for path in found]


@pytest.mark.parametrize("room", ["pmp", "collectors", "analyzers", "stallscope"])
def test_each_folder_is_named(room: str) -> None:
    named = re.findall(r"`(?:\w+/)*(\w+)/`", PAGE)
    there = {path.parent.name for path in sources(room)}
    assert there
    assert there - set(named) == set()


def test_each_file_that_is_named_is_there() -> None:
    named = set(re.findall(r"`(?:\w+/)*(\w+\.(?:c|h|py))`", PAGE))
    assert len(named) > 20
    there = {path.name for room in ROOMS for path in sources(room)}
    assert named - there == set()
