# SPDX-License-Identifier: Apache-2.0
"""In a guest: what the probe says of a kernel is true, and names what is in the way.

STALLSCOPE_GUEST is the variant that was booted (tests/support/vm/guest.py).
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.needs import features
from tests.root.support import assert_unharmed, run_probe
from tests.support.targets import Target

pytestmark = pytest.mark.kernels("doctor")

VARIANT = os.environ.get("STALLSCOPE_GUEST", "plain")
IN_THE_WAY = {
    "confidentiality": "locked down for confidentiality",
    "nobtf": "CONFIG_DEBUG_INFO_BTF",
    "yama3": "kernel.yama.ptrace_scope is 3",
}
"""What must be said where captures by BPF do not work because of how the kernel was booted."""


def test_features_are_true() -> None:
    """A capture by ``auto`` uses the iterator where that is said to work, and else says why not."""
    found = features()
    assert isinstance(found, dict), found
    iterator = found["bpf-iterator"]
    if VARIANT in IN_THE_WAY:
        assert not iterator["ok"]
    if not iterator["ok"]:
        said = f"{iterator['why']}; {iterator['fix']}"
        assert IN_THE_WAY.get(VARIANT, "Linux") in said, said
    with Target("threads", "6", "2") as target:
        taken = run_probe("snap", "--pid", str(target.pid))
        if VARIANT == "yama3":
            assert (taken.code, taken.capture) == (1, None)
            assert IN_THE_WAY[VARIANT] in taken.stderr
        elif iterator["ok"]:
            assert taken.whole.backend == "bpf"
        else:
            assert taken.whole.backend in ("proc", "ptrace")
        assert_unharmed(target.pid)


def test_doctor_ends_well() -> None:
    """The command for people says the same, and names no version that takes the programs."""
    done = subprocess.run(
        [sys.executable, "-m", "stallscope", "doctor"], capture_output=True, text=True, check=False
    )
    assert done.returncode in ((1,) if VARIANT == "yama3" else (0, 3)), done.stderr
    assert "bpf-iterator" in done.stdout
    said = " ".join(done.stdout.split())
    if VARIANT in IN_THE_WAY:
        assert IN_THE_WAY[VARIANT] in said
    assert Path("/proc/version").read_text().split()[2] in said
