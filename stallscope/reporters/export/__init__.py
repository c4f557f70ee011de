# SPDX-License-Identifier: Apache-2.0
"""Analyses as the formats of other tools; one module a format, each ``render(...) -> bytes``.

Whatever a target or a dump named is escaped before it is written: docs/commands/export.md.
"""

from __future__ import annotations
