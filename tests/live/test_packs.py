# SPDX-License-Identifier: Apache-2.0
"""A server without symbols is named by the pack of its build as by its own symbols."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from stallscope.collectors import probe
from stallscope.model.capture import Frame, Module
from tests.live.shots import run, take, unharmed
from tests.support.servers import MariaDB114
from tests.support.servers.mariadb114 import base
from tests.support.stalls import metadata_lock_pileup

pytestmark = pytest.mark.needs("root", "bpf", "mariadb114")

WAITERS = 20


def named_by(program: Path, offsets: list[int]) -> dict[int, str | None]:
    """Return the functions at these addresses, by the symbols of the file itself."""
    addresses = ",".join(f"{offset:#x}" for offset in offsets)
    done = subprocess.run(
        [str(probe.find()), "symbolize"],
        input=f"1 {addresses} - {program}\n".encode(),
        capture_output=True,
        timeout=60,
        check=True,
    )
    symbols = json.loads(done.stdout)["symbols"]
    return {at: s and s["symbol"] for at, s in zip(offsets, symbols, strict=True)}


def test_a_stripped_server_with_a_pack(tmp_path: Path, open_folder: Path) -> None:
    whole, stripped = base() / "bin" / "mariadbd", open_folder / "mariadbd"
    shutil.copy(whole, stripped)
    subprocess.run(["strip", str(stripped)], check=True)
    made = run("pack", whole, "-o", tmp_path / "packs")
    assert made.returncode == 0, made.stderr
    server = MariaDB114()
    server.executable = str(stripped)
    with server, metadata_lock_pileup(server, WAITERS), unharmed(server):
        bare = take(tmp_path, "-p", server.pid).capture
        capture = take(tmp_path, "-p", server.pid, "--pack-dir", tmp_path / "packs").capture

    def of_server(module: Module | None) -> bool:
        return module is not None and module.path.endswith("/mariadbd")

    (before,) = filter(of_server, bare.modules)
    (module,) = filter(of_server, capture.modules)
    assert before.symbols == ".dynsym"
    assert module.symbols == "pack"
    assert module.debug_file == str(tmp_path / "packs" / f"{module.build_id}.pack")
    frames: list[Frame] = [
        frame
        for thread in capture.threads
        for frame in thread.frames[1:]
        if of_server(frame.module)
    ]
    # A caller's function is the one of the byte before its return address.
    offsets = sorted({frame.offset - 1 for frame in frames if frame.offset is not None})
    names = named_by(whole, offsets)
    assert len(offsets) > 20
    assert None not in names.values()
    assert [f.symbol for f in frames] == [names[f.offset - 1] for f in frames if f.offset]
    # Without the pack some of these have no name: the test would notice.
    assert any(
        frame.symbol is None
        for thread in bare.threads
        for frame in thread.frames
        if of_server(frame.module)
    )
    stripped.unlink()
