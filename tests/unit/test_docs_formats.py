# SPDX-License-Identifier: Apache-2.0
"""docs/formats.md: every example of a damaged dump is read as the undamaged one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from stallscope.analyzers import importers

PAGE = Path(__file__).parent.parent.parent / "docs" / "formats.md"
SECTION = re.compile(r"^## Damaged text\n(.*?)^### ", re.M | re.S)
EXAMPLE = re.compile(r"^(?:`([^`]+)`: [^\n]*\n\n)?```text\n(.*?)^```$", re.M | re.S)
FRAMES = ["__lll_lock_wait", "pthread_mutex_lock", "open_table"]


def examples() -> list[tuple[str, str]]:
    """Return (the damage's name, the text); the first is the undamaged dump."""
    section = SECTION.search(PAGE.read_text(encoding="utf-8"))
    assert section is not None
    found: list[tuple[str, str]] = []
    for match in EXAMPLE.finditer(section[1]):
        found.append((match[1] or (found[-1][0] if found else ""), match[2]))
    return found


EXAMPLES = examples()


def test_there_are_examples() -> None:
    assert len({name for name, _ in EXAMPLES}) > 15


@pytest.mark.parametrize(("name", "text"), EXAMPLES, ids=[name for name, _ in EXAMPLES])
def test_example(name: str, text: str) -> None:
    (capture,) = importers.load(text.replace("␛", "\x1b").encode(), "example")
    assert [[frame.symbol for frame in thread.frames] for thread in capture.threads] == [FRAMES]
    assert capture.reading is not None
    assert capture.reading.unreadable == 0
    assert name in ("", *capture.reading.repaired)
