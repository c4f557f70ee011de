# SPDX-License-Identifier: Apache-2.0
"""docs/fleet-schema.md has the tables and columns of stallscope/fleet/tables.py; the cluster of
fleet-clickhouse.md is complete."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from stallscope.fleet import facts, likeness
from stallscope.fleet.analysis import BLOCKER_FUNCTIONS, WAITER_FUNCTIONS
from stallscope.fleet.condense import MAX_NAMES
from stallscope.fleet.tables import PARTS, SCHEMA, TABLES, Column

DOCS = (Path(__file__).resolve().parents[2] / "docs" / "fleet-schema.md").read_text("utf-8")
SECTIONS = {
    part.partition("`")[0]: part for part in re.split(r"^### `", DOCS, flags=re.MULTILINE)[1:]
}
PREFIXES = tuple(f"{part.prefix}_" for part in PARTS.values())


def rows(name: str) -> list[tuple[str, str]]:
    section = SECTIONS[name].partition("\n## ")[0]
    found = re.findall(r"^\| `(\w+)` \| ([^|]+) \| (.*) \|$", section, re.MULTILINE)
    assert all(meaning.strip() for _, _, meaning in found), name
    return [(column, shape.strip()) for column, shape, _ in found]


def said(column: Column) -> tuple[str, str]:
    shape = f"list of {column.type}" if column.array else column.type
    return column.name, f"{shape} or null" if column.nullable else shape


def test_it_has_each_table_and_part_once() -> None:
    assert list(SECTIONS) == [*TABLES, *PARTS]
    assert f"`{SCHEMA}`" in DOCS.splitlines()[0]


@pytest.mark.parametrize("name", TABLES)
def test_columns_of_a_table(name: str) -> None:
    table = TABLES[name]
    own = [
        column
        for column in table.columns
        if not (column.array and column.name.startswith(PREFIXES))
    ]
    assert rows(name) == [said(column) for column in own]
    key = ", ".join(f"`{column}`" for column in table.key)
    assert f"Key: {key}. Shard: `{table.shard}`. Kept: {table.days} days." in SECTIONS[name]


@pytest.mark.parametrize("name", PARTS)
def test_columns_of_a_part(name: str) -> None:
    part = PARTS[name]
    assert rows(name) == [said(column) for column in part.columns]
    assert f"Prefix: `{part.prefix}_`." in SECTIONS[name]


@pytest.mark.parametrize(
    "claim",
    [
        f"at most {facts.MAX_FINDINGS} findings, {facts.MAX_GROUPS} groups of threads, and"
        f" {MAX_NAMES} samples",
        f"larger than {facts.MAX_BYTES >> 10} KiB",
        f"the {WAITER_FUNCTIONS} innermost of each stack) and its blocker ({BLOCKER_FUNCTIONS})",
        f"is {likeness.THRESHOLD:g} or more",
        f"at most {facts.MAX_FRAMES}; `??`",
        f"at most {likeness.MAX_FUNCTIONS}, see",
    ],
)
def test_figures(claim: str) -> None:
    assert claim in DOCS


def test_the_cluster_of_the_page_is_complete() -> None:
    page = (Path(__file__).parents[2] / "docs" / "fleet-clickhouse.md").read_text()
    text = page.split("    ```xml\n")[1].split("    ```")[0]
    root = ElementTree.fromstring(text)
    replicas = [
        [replica.findtext("host") for replica in shard.findall("replica")]
        for shard in root.findall("remote_servers/fleet/shard")
    ]
    assert replicas == [["node1", "node2"], ["node3", "node4"]]
    kinds = root.findall("remote_servers/fleet/shard/internal_replication")
    assert [one.text for one in kinds] == ["true", "true"]
    assert root.findtext("macros/shard") == "s0"
    assert root.findtext("macros/replica") == "r0"
    assert root.findtext("zookeeper/node/host")
    assert root.findtext("distributed_ddl/path")
