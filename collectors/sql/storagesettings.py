# SPDX-License-Identifier: Apache-2.0
"""Where a server keeps its files, and how it writes them, for ``doctor --storage``."""

from __future__ import annotations

from stallscope.collectors.sql.collecting import number
from stallscope.collectors.sql.protocol import SqlSession

__all__ = ["read"]

VARIABLES = (
    "SHOW GLOBAL VARIABLES WHERE Variable_name IN ('datadir', 'tmpdir', 'slave_load_tmpdir',"
    " 'log_bin', 'log_bin_basename', 'relay_log_basename', 'aria_log_dir_path')"
    " OR Variable_name LIKE 'innodb%'"
)
STATUS = "SHOW GLOBAL STATUS WHERE Variable_name IN ('Innodb_os_log_written', 'Uptime')"
_MAX = 2000


def read(session: SqlSession) -> tuple[dict[str, str], dict[str, float]]:
    """Return settings, and what was written since the start. Raises: SqlError."""
    variables = {str(name).lower(): str(value) for name, value in session.select(VARIABLES)[:_MAX]}
    values = {str(name): number(text) for name, text in session.select(STATUS)}
    return variables, {name: value for name, value in values.items() if value is not None}
