# SPDX-License-Identifier: Apache-2.0
"""Write stallscope/redaction/words.txt: ``.venv/bin/python -m tests.support.redactionwords``.

The words are of stallscope's own messages, signatures and triggers, of status variables in recorded
samples, of SQL, and of the paths and threads that every server has.
"""

from __future__ import annotations

import ast
import json
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

from stallscope.base.package import FOLDER
from stallscope.redaction.words import FILE
from stallscope.store.appended import frames

__all__ = ["words"]

ROOT = Path(__file__).parents[2]
_WORD = re.compile(r"[A-Za-z]{2,}")
_SOURCES = ("agent", "base", "collectors", "model", "reporters", "server", "store")
_LONGEST = 1 << 28

NAMES = """
account accounts address admin alice bank bob card city clerk client companies company country
credit customer customers db db1 db2 email employees example hunter invoice invoices item items mary
order_items orders password passwords payment payments people person phone price prices private
product products salaries sales secret secrets shop user1 users wiki
"""
"""Words that are more often names of tables, hosts or people: they are replaced."""

MORE = """
aarch64 amd64 arm64 bin com conf data debug etc gnu home ia64 lib lib32 lib64 libaio libc
libcrypto libdl libgcc libgcc_s libjemalloc liblz4 liblzma libm libpcre2 libpthread libresolv
librt libsnappy libssl libstdc libsystemd libtcmalloc libz libzstd linux ld local log mongod
mongos mysql mysqld mariadb mariadbd opt percona postgres postmaster proc python python3 root run
sbin share so srv sys tmp usr var vdso vsyscall x86 x86_64 all alter analyze and any as asc
auto_increment begin between bigint binary bit blob both by call cascade case cast char character
check collate column columns commit constraint convert count create cross current database date
datetime day decimal declare default delayed delete desc describe distinct div double drop dual
duplicate else end engine escape exists explain extract false fetch float for force foreign found
from full function group having high_priority hour if ignore in index inner insert int integer
interval into is join key keys kill last leading left like limit lines load local lock locked long
loop low_priority match max min minute mod modify month natural next nowait not null numeric of
offset on only open optimize option or order outer over partition plan precision primary procedure
query range read real recursive references regexp release rename replace returning revoke right
rollback row rows schema second select separator set share show signal skip debugdata dynsym
eh_frame symtab vmlinux ibd ibdata ib_logfile ibtmp frm myd myi undo redo binlog relay relaylog
smallint some sql start starting straight_join sum table tables temporary then time timestamp
tinyint to trailing transaction trigger true truncate union unique unlock unsigned update upsert
usage use user using values varchar view when where while window with work write year zerofill
"""


def words() -> set[str]:
    """Return all of them, in lower case."""
    found = set(MORE.split())
    for text in _texts():
        found.update(word.lower() for word in _WORD.findall(text))
    return found - set(NAMES.split())


def _texts() -> Iterator[str]:
    for folder in _SOURCES:
        for path in sorted((FOLDER / folder).rglob("*.py")):
            if "html" not in path.parts:
                tree = ast.parse(path.read_bytes())
                yield from (
                    node.value
                    for node in ast.walk(tree)
                    if isinstance(node, ast.Constant) and isinstance(node.value, str)
                )
    for folder in ("analyzers", "collectors"):
        for path in sorted((FOLDER / folder).rglob("*.toml")):
            yield path.read_text()
    for path in sorted((ROOT / "tests" / "data" / "triggers").glob("*.zst")):
        for line in frames(path.read_bytes(), _LONGEST)[0].splitlines():
            sample = json.loads(line).get("sample") or {}
            if sample.get("source") in ("status", "process", "psi", "host", "innodb"):
                yield " ".join(sample.get("values", {}))


if __name__ == "__main__":
    FILE.write_text(textwrap.fill(" ".join(sorted(words())), 100) + "\n")
