# SPDX-License-Identifier: Apache-2.0
"""The dumps of `scripts/bench corpus`: each has its labels, is read, and names no one's machine.

What the verdicts on them are is measured by `scripts/bench accuracy`, and not asserted here.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from stallscope.analyzers import catalog, importers
from stallscope.model import capturefile
from tests.bench.labelled import OWN, Labelled, own

pytestmark = pytest.mark.large

FOLDERS = sorted(path.parent for path in OWN.glob("*/meta.json"))
DUMPS = list(own())
IDS = frozenset(catalog.load().by_id)
WHOLE = ("capture.jsonl.zst", "eu-stack.txt.zst", "gdb.txt.zst", "pmp-awk.txt.zst")
MOST_BYTES = 4 << 20
PATHS = re.compile(rb"/(?:work|tmp|root|dev/shm)/|/stallscope-|/var/cache/")


def test_there_are_stalls_and_healthy_servers() -> None:
    expect = [tuple(json.loads((f / "meta.json").read_text())["expect"]) for f in FOLDERS]
    assert len([right for right in expect if not right]) >= 30
    assert len({right for right in expect if right}) >= 20
    assert sum(dump.path.stat().st_size for dump in DUMPS) <= MOST_BYTES


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: path.name)
def test_labels(folder: Path) -> None:
    meta = json.loads((folder / "meta.json").read_text())
    assert folder.name == meta["source"] == f"{meta['stall']}-{meta['server']}"
    assert set(meta["expect"]) <= IDS
    assert meta["family"] in {"mariadb", "mysql", "postgres"}
    assert meta["version"]
    assert meta["command"].startswith(("sysbench ", "scripts/stall ", "no load"))
    files = {path.name for path in folder.iterdir()} - {"meta.json"}
    assert files.issuperset(WHOLE)
    assert meta["tools"] == sorted(name.partition(".")[0] for name in files)


@pytest.mark.parametrize("dump", DUMPS, ids=lambda dump: dump.name)
def test_dump_is_read_and_names_no_machine(dump: Labelled) -> None:
    data = dump.read()
    assert not PATHS.search(data)
    host = re.escape(os.uname().nodename.encode())
    assert not re.search(rb'"name":"%s"|Host: %s\b' % (host, host), data)
    captures = (
        [capturefile.loads(data, dump.name)]
        if capturefile.is_capture(data)
        else importers.load(data, dump.path.name)
    )
    # A report of a server at rest has no transactions.
    assert dump.path.name.startswith("innodb-status") or any(one.threads for one in captures)
    assert captures
