# SPDX-License-Identifier: Apache-2.0
"""Dumps with known causes: public ones, where they are at hand, and those of `scripts/bench
corpus`."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from stallscope.model import capturefile

__all__ = ["OWN", "PUBLIC", "Labelled", "own", "public"]

CHECKOUT = Path(__file__).resolve().parents[2]
SHARED = CHECKOUT.parent / "shared"
PUBLIC = tuple(
    Path(path)
    for path in os.environ.get(
        "STALLSCOPE_CORPUS", f"{SHARED / 'corpus'}{os.pathsep}{SHARED / 'corpus2'}"
    ).split(os.pathsep)
)
OWN = CHECKOUT / "tests" / "data" / "corpus"
_NO_DUMP = ("README.md", "meta.json")


class Labelled(NamedTuple):
    """One dump. ``expect``: the signatures that are right, empty for a healthy server, ``?`` where
    none is right as well; ``source``: the same for all dumps of one incident."""

    name: str
    path: Path
    expect: tuple[str, ...]
    source: str
    public: bool
    held_out: bool = False

    def read(self) -> bytes:
        """Return its text."""
        data = self.path.read_bytes()
        return capturefile.decompress(data, self.name) if self.path.suffix == ".zst" else data


def public() -> Iterator[Labelled]:
    """Yield the public dumps; none, where the folders are missing."""
    for folder in PUBLIC:
        for meta in sorted(folder.glob("*/meta.json")):
            facts = json.loads(meta.read_text(encoding="utf-8"))
            source = str(facts.get("source", meta.parent.name)).partition("#")[0]
            yield Labelled(
                meta.parent.name,
                meta.parent / "dump.txt",
                tuple(facts["expect"]),
                source,
                public=True,
            )


def own() -> Iterator[Labelled]:
    """Yield the dumps of stalls that were made, each in several formats."""
    for meta in sorted(OWN.glob("*/meta.json")):
        facts = json.loads(meta.read_text(encoding="utf-8"))
        for path in sorted(meta.parent.iterdir()):
            if path.name not in _NO_DUMP:
                yield Labelled(
                    f"{meta.parent.name}/{path.name}",
                    path,
                    tuple(facts["expect"]),
                    facts["source"],
                    public=False,
                    held_out=bool(facts.get("held_out")),
                )
