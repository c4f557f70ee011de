# SPDX-License-Identifier: Apache-2.0
"""The smallest run of two experiments of docs/experiments.md: set-up, load, verdict, result."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench.experiments import Places, sections
from tests.bench.experiments.run import read

__all__: list[str] = []


def run(name: str, folder: Path) -> None:
    tables = list(sections("mariadb", True, (name,), Places(folder)))
    assert [table.id for table in tables] == [name, f"{name}-summary"]
    assert tables[0].rows
    result = read(folder / f"{name}.json")
    assert (result.experiment, result.quick) == (name, True)
    verdict = result.found.verdicts[0]
    # What it names depends on how busy this machine is; that it says something does not.
    assert verdict.says[0].startswith("mysqld 5.5.9: "), verdict


@pytest.mark.needs("root", "bpf", "mysql55")
def test_ranges_beside_a_limit_of_threads(tmp_path: Path) -> None:
    run("thread-concurrency", tmp_path)


@pytest.mark.needs("root", "bpf", "mysql55")
def test_a_query_with_its_index_forced(tmp_path: Path) -> None:
    run("force-index", tmp_path)
