# SPDX-License-Identifier: Apache-2.0
"""No wait that the library records takes the memory map of its process."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import msgspec
import pytest

from tests.support.servers import PATIENCE
from tests.support.servers.inside import preloaded
from tests.support.targets import target_path

__all__: list[str] = []

pytestmark = [pytest.mark.needs("library")]

TRIES = 3
"""The kernel may take any page away for a moment; what the library does not have, it never has."""


class Counts(msgspec.Struct):
    """What the threads did while they were in the functions that the library replaces."""

    faults: int


def faults(folder: Path, scene: str, env: dict[str, str]) -> int:
    """Return how many page faults there were; a system call would have ended the target."""
    done = subprocess.run(
        [target_path("calm"), folder, *([scene] if scene else [])],
        env={**os.environ, "LD_BIND_NOW": "1", **env},
        capture_output=True,
        check=True,
        timeout=PATIENCE,
    )
    return msgspec.json.decode(done.stdout, type=Counts).faults


@pytest.mark.parametrize(
    "scene", ["", "fork", "mprotect", pytest.param("many", marks=pytest.mark.large)]
)
def test_no_wait_takes_the_memory_map(tmp_path: Path, rings: Path, scene: str) -> None:
    env = preloaded(rings, STALLSCOPE_THRESHOLD="5")
    assert 0 in (faults(tmp_path, scene, env) for _ in range(TRIES))
