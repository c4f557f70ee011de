# SPDX-License-Identifier: Apache-2.0
"""One virtual machine for each system; the tests of a module go on where the last one ended."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.vm import builds, systems
from tests.support.vm.machine import Machine
from tests.systems.host import PAYLOAD, Host

__all__: list[str] = []

CONSOLE_BYTES = 4000


@pytest.fixture(scope="module", params=systems.wanted(), ids=lambda number: f"debian{number}")
def host(
    request: pytest.FixtureRequest,
    require: Callable[..., None],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Host]:
    """Boot a system whose server runs, with what a user brings on a second disk."""
    number: str = request.param
    require("systems")
    image = systems.image(number)
    folder: Path = tmp_path_factory.mktemp(f"debian{number}")
    disk = folder / "payload.ext4"
    builds.payload(number, disk)
    with Machine(image, folder, disk) as machine:
        machine.check(
            f"mkdir -p {PAYLOAD} && echo '/dev/vdb {PAYLOAD} ext4 ro 0 0' >>/etc/fstab"
            f" && systemctl daemon-reload && mount {PAYLOAD}"
        )
        found = Host(machine)
        found.wait_for_server()
        yield found
        if request.session.testsfailed:
            print(machine.console.read_bytes()[-CONSOLE_BYTES:].decode(errors="replace"))
