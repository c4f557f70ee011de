# SPDX-License-Identifier: Apache-2.0
"""Ask a MySQL or MariaDB server over SQL, with deadlines: docs/sql.md."""

from __future__ import annotations

__all__: list[str] = []
