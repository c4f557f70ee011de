# SPDX-License-Identifier: Apache-2.0
"""Programs made for one test, in the place of real ones."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

__all__ = ["python_program"]


def python_program(path: Path, code: str) -> Path:
    """Write an executable file that runs this Python code."""
    path.write_text(f"#!{sys.executable}\n{textwrap.dedent(code)}")
    path.chmod(0o755)
    return path
