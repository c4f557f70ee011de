# SPDX-License-Identifier: Apache-2.0
"""The catalog as a page of Markdown: docs/signatures.md is this text."""

from __future__ import annotations

from collections.abc import Iterator

from stallscope.analyzers.catalog import Catalog, Signature

__all__ = ["markdown"]

_INTRO = """\
# Signatures

A signature describes one kind of stall: the stacks of the waiting threads, the stack of the
blocker,
what it means and what to do. This page is generated from the catalog
(`stallscope signatures --markdown`). [writing-signatures.md](writing-signatures.md) explains how to
write a signature, [verdict.md](verdict.md) how findings become a verdict.
"""

_FAMILIES = {
    "any": "Any process",
    "innodb": "InnoDB",
    "sql": "SQL layer of MySQL and MariaDB",
    "replication": "Binary log and replication",
    "myisam-aria": "MyISAM and Aria",
    "rocksdb": "MyRocks and RocksDB",
    "tokudb": "TokuDB and PerconaFT",
    "pbxt": "PBXT",
    "mongodb": "MongoDB",
    "wiredtiger": "WiredTiger",
    "postgres": "PostgreSQL",
}


def markdown(catalog: Catalog) -> str:
    """Return all signatures, family by family, as Markdown."""
    return "\n".join(_lines(catalog)) + "\n"


def _lines(catalog: Catalog) -> Iterator[str]:
    yield _INTRO
    names = sorted({s.family for s in catalog.signatures}, key=_rank)
    for family in names:
        title = _FAMILIES.get(family, family)
        anchor = "".join(c if c.isalnum() else "-" for c in title.lower())
        count = sum(s.family == family for s in catalog.signatures)
        yield f"- [{title}](#{anchor}): {count}"
    for family in names:
        yield f"\n## {_FAMILIES.get(family, family)}"
        for signature in sorted(catalog.signatures, key=lambda s: s.id):
            if signature.family == family:
                yield from _signature(signature)


def _rank(family: str) -> tuple[int, str]:
    order = [name for name in _FAMILIES if name != "any"]
    return order.index(family) if family in order else len(order), family


def _signature(signature: Signature) -> Iterator[str]:
    yield f"\n### {signature.id}\n"
    yield f"**{signature.title}.** {' '.join(signature.meaning.split())}\n"
    yield f"Servers: {', '.join(signature.servers)}. Versions: {signature.versions}.\n"
    if signature.generic:
        yield "Found from the wait graph, in any program.\n"
    yield from _stacks("Waiters", signature.waiter_texts)
    if signature.locks:
        yield "Locks: " + ", ".join(f"`{lock}`" for lock in signature.locks) + "\n"
    holders = [
        (holder.role, pattern.text) for holder in signature.holders for pattern in holder.patterns
    ]
    yield from _stacks("The blocker", holders)
    releases = [
        (item.role, pattern.text) for item in signature.releases for pattern in item.patterns
    ]
    yield from _stacks("Where it releases the lock", releases)
    for title, items in (
        ("Causes", [f"`{name}`" for name in (*signature.explains, *signature.causes)]),
        ("What to do", signature.remedies),
        ("References", [f"<{reference}>" for reference in signature.references]),
    ):
        if items:
            yield f"{title}:\n"
            yield from (f"- {item}" for item in items)
            yield ""


def _stacks(
    title: str, items: list[tuple[str, str]] | tuple[tuple[str, str], ...]
) -> Iterator[str]:
    """List patterns under their descriptions; equal ones in a row are printed once."""
    if not items:
        return
    yield f"{title}:\n"
    last = None
    for said, text in items:
        if said != last:
            yield f"- {said}:" if said else "- in any version:"
            last = said
        yield f"  - `{text}`"
    yield ""
