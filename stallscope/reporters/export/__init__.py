# SPDX-License-Identifier: Apache-2.0
"""Analyses as the formats of other tools; one module a format, each ``render(...) -> bytes``.

All names of a target or a dump are escaped: docs/commands/export.md.
"""

from __future__ import annotations
