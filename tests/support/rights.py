# SPDX-License-Identifier: Apache-2.0
"""What a capture here may read, and how to start a process so that it may be read.

Root in a container has no CAP_SYS_PTRACE as a rule. It may read a process of its own user then, but
only one that has no capability more than the probe, which gives up all that it does not use.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

__all__ = ["DAC_READ_SEARCH", "READABLE", "has_capability", "may_read_others"]

# include/uapi/linux/capability.h
DAC_READ_SEARCH = 2
SYS_PTRACE = 19


def has_capability(number: int) -> bool:
    status = Path("/proc/self/status").read_text()
    (effective,) = re.findall(r"^CapEff:\s*(\w+)", status, re.MULTILINE)
    return bool(int(effective, 16) >> number & 1)


def may_read_others() -> bool:
    """Return whether the memory of other users' processes may be read."""
    return has_capability(SYS_PTRACE)


READABLE: tuple[str, ...] = ()
"""What to put before a command whose process is to be read."""
if os.geteuid() == 0 and not may_read_others():
    READABLE = ("setpriv", "--bounding-set=-all", "--inh-caps=-all")
