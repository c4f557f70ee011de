# SPDX-License-Identifier: Apache-2.0
"""Lines of waits: those of tests/data/waits, and the final one of ``stalled``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from stallscope.model.waitlines import WaitLine, loads

__all__ = ["DATA", "NAMES", "line_of", "value_of"]

DATA = Path(__file__).parent.parent / "data" / "waits"
NAMES = ("stalled", "waiting", "quiet", "final", "hostile")


def value_of(name: str) -> dict[str, Any]:
    """Return a line as JSON has it."""
    if name != "final":
        value = json.loads((DATA / f"{name}.json").read_bytes())
        assert isinstance(value, dict)
        return value
    value = value_of("stalled")
    del value["programs"], value["lost"]["a-new-cause"]
    lost = dict.fromkeys(value["lost"], 0)
    return {**value, "seconds": 61.25, "events": [], "lost": lost, "final": True}


def line_of(name: str) -> WaitLine:
    line = loads(json.dumps(value_of(name)).encode(), name, 1)
    assert isinstance(line, WaitLine)
    return line
