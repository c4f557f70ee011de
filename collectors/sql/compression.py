# SPDX-License-Identifier: Apache-2.0
"""How often InnoDB compressed pages of tables with ``ROW_FORMAT=COMPRESSED``, and failed."""

from __future__ import annotations

from stallscope.collectors.sql.collecting import SqlCollector
from stallscope.collectors.sql.protocol import SqlSession

__all__ = ["Compression", "read_compression"]

COMPRESSED = (
    "SELECT SUM(compress_ops), SUM(compress_ops_ok), SUM(uncompress_ops)"
    " FROM information_schema.INNODB_CMP"
)


class Compression(SqlCollector):
    """``cmp.compress_ops``, ``cmp.compress_failures``, ``cmp.uncompress_ops``: of all page sizes,
    since the server's start."""

    name = "compression"

    def read(self, session: SqlSession) -> dict[str, float]:
        return read_compression(session)


def read_compression(session: SqlSession) -> dict[str, float]:
    """Return the counts; empty where the server has none. Raises: SqlError."""
    rows = session.select(COMPRESSED)
    if not rows or None in rows[0]:
        return {}
    attempts, good, uncompressed = (float(count) for count in rows[0])
    return {
        "cmp.compress_ops": attempts,
        "cmp.compress_failures": max(0.0, attempts - good),
        "cmp.uncompress_ops": uncompressed,
    }
