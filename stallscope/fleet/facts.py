# SPDX-License-Identifier: Apache-2.0
"""What the analysis of an incident's captures says, as rows have it: the process that names
captures makes it (fleet/analysis.py), and the agent, which loads no analyzers, ships it."""

from __future__ import annotations

import msgspec

from stallscope.fleet.tables import FindingPart, ThreadPart

__all__ = ["Facts", "NamedStack"]


class NamedStack(msgspec.Struct, frozen=True):
    """A stack and its hash; frames innermost first."""

    hash: str
    frames: tuple[str, ...]


class Facts(msgspec.Struct, frozen=True):
    """Of all captures of an incident together."""

    server: str = ""
    version: str = ""
    findings: tuple[FindingPart, ...] = ()
    stalled: tuple[ThreadPart, ...] = ()
    stacks: tuple[NamedStack, ...] = ()
    lock_name: str = ""
    lock_kind: str = ""
    shape: str = ""
    shape_functions: tuple[str, ...] = ()
