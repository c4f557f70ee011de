# SPDX-License-Identifier: Apache-2.0
"""The table of waits, and the documents that repeat it."""

from __future__ import annotations

import re
from pathlib import Path

from stallscope.model.waitkinds import (
    GROUPS,
    IDLE_KINDS,
    KINDS,
    LOST,
    TABLE,
    THRESHOLDS,
    kinds_of,
    thresholds_of,
)

CHECKOUT = Path(__file__).resolve().parents[2]


NOT_WAITS = {"FUTEX_WAKE", "FUTEX_REQUEUE", "RESTART"}
"""Calls that end the waits of others, or go on with one."""


def documented(name: str, begin: str) -> list[str]:
    """Return the words in code style of the paragraph that begins so."""
    text = (CHECKOUT / "docs" / name).read_text()
    return re.findall(r"`([a-z_-]+)`", text[text.index(f"\n{begin}") :].split("\n\n")[0])


def test_groups_are_disjoint_and_have_no_idle_kinds() -> None:
    assert kinds_of("fsync") == ("fsync",)
    assert kinds_of("cond") == ("cond",)
    everything = [kind for group in GROUPS if group != "all" for kind in kinds_of(group)]
    assert sorted(everything) == sorted(kinds_of("all")) == sorted(set(KINDS) - set(IDLE_KINDS))
    assert kinds_of("nonsense") == ()


def test_every_kind_and_group_has_a_threshold() -> None:
    for name in (*KINDS, *GROUPS):
        assert set(thresholds_of(name)) <= set(THRESHOLDS)
        assert thresholds_of(name)
    assert thresholds_of("mutex") == thresholds_of("cond") == ("lock",)
    assert thresholds_of("sync") == (
        "fsync", "fdatasync", "sync_file_range", "msync", "syncfs",
    )  # fmt: skip
    assert thresholds_of("io") == ("read", "write")
    assert thresholds_of("nonsense") == ()


def test_the_documented_kinds_and_causes_are_these() -> None:
    assert documented("waits-schema.md", "Kinds:")[: len(KINDS)] == list(KINDS)
    assert documented("wait-programs.md", "All causes of loss:") == list(LOST)


def test_the_command_page_and_the_system_calls_are_these() -> None:
    page = (CHECKOUT / "docs" / "commands" / "waits.md").read_text()
    (row,) = re.findall(r"^\| `--kind K` \| (.*) \|$", page, re.MULTILINE)
    names = re.findall(r"`([a-z_-]+)`", row.split(" (none of them")[0])
    assert sorted(names) == sorted([*KINDS, *GROUPS])
    probes = (CHECKOUT / "docs" / "wait-programs.md").read_text()
    section = probes[probes.index("## Which system calls") :].split("\n## ")[0]
    calls = {call.name for kind in TABLE for call in kind.calls if call.how not in NOT_WAITS}
    same_of_write = {"pwrite64", "writev", "pwritev", "pwritev2"}
    assert calls - same_of_write - set(re.findall(r"`([a-z0-9_]+)`", section)) == set()


def test_files_are_behind_locks() -> None:
    """The numbers of both begin where C's enumerators say."""
    groups = [kind.group != "lock" for kind in TABLE]
    assert groups == sorted(groups)
    assert len({call.name for kind in TABLE for call in kind.calls}) == sum(
        len(kind.calls) for kind in TABLE
    )
