# SPDX-License-Identifier: Apache-2.0
"""A real agent ships a real stall: once, also across a kill, and without secrets."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stallscope.fleet import batch
from stallscope.store.appended import frames
from tests.live.shots import unharmed
from tests.support.agents import BRIEF_TRIGGER, CHECKOUT, agent, incidents
from tests.support.servers import MariaDB, wait_until
from tests.support.servers.clients import running_statements
from tests.support.stalls import metadata_lock_pileup

__all__: list[str] = []

pytestmark = [pytest.mark.needs("root", "bpf", "waits", "mariadb")]

PASSWORD = "very-hidden-7731"
LITERAL = "literal-of-a-customer-4242"
SECRET_READ = f"SELECT count(*) FROM t WHERE 'x' < '{LITERAL}'"


def rows(fleet: Path, table: str = "incidents") -> list[dict[str, Any]]:
    """Return all rows of a folder's table, without deduplication."""
    found = []
    for file in sorted(fleet.glob(f"{table}/day=*/*.zst")):
        plain, torn = frames(file.read_bytes(), 1 << 30)
        assert torn is None
        found += [msgspec.json.decode(line) for line in plain.splitlines()]
    return [row for row in found if "rev" in row]


def latest(fleet: Path) -> dict[str, dict[str, Any]]:
    """Return the incidents by id, each as its highest revision has it; each has one key."""
    by_uid: dict[str, dict[str, Any]] = {}
    ids: dict[str, set[str]] = defaultdict(set)
    for row in sorted(rows(fleet), key=lambda row: int(row["rev"])):
        by_uid[row["uid"]] = row
        ids[row["id"]].add(row["uid"])
    assert all(len(uids) == 1 for uids in ids.values())
    return {row["id"]: row for row in by_uid.values()}


def ended(fleet: Path) -> list[str]:
    return sorted(name for name, row in latest(fleet).items() if not row["is_open"])


@contextlib.contextmanager
def closed_port() -> Iterator[int]:
    """Yield a port at which nobody listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


def test_a_stall_is_in_the_fleet_while_it_goes_on_and_with_its_end(
    mariadb: MariaDB, tmp_path: Path
) -> None:
    triggers, dest, fleet = tmp_path / "t.toml", tmp_path / "store", tmp_path / "fleet"
    fleet.mkdir()
    triggers.write_text(BRIEF_TRIGGER)
    options = ("--triggers", triggers, "--ship", f"file://{fleet}")
    with agent(mariadb, dest, *options):
        with metadata_lock_pileup(mariadb), unharmed(mariadb):
            wait_until(lambda: latest(fleet), "it is shipped while it goes on")
            (row,) = latest(fleet).values()
            assert row["is_open"]
            assert row["signature"] == "metadata-lock"
        wait_until(lambda: ended(fleet), "and at its end")
    (kept,) = incidents(dest)
    (row,) = latest(fleet).values()
    assert row["id"] == kept.id
    assert row["captured"] == len(kept.captures)
    assert row["threads"] >= 20
    assert row["stalled_stack"], "the stacks of its threads"
    assert row["samples_name"], "its samples, from the store"
    hashes = {one["hash"] for one in rows(fleet, "stacks")}
    assert set(row["stalled_stack"]) <= hashes
    last = max(rows(fleet, "agents"), key=lambda one: int(one["rev"]))
    assert last["state"] == "ended"
    assert last["version"] == row["version"] != ""


def test_no_secret_is_in_the_spool_the_log_or_the_process_list(
    mariadb: MariaDB, tmp_path: Path
) -> None:
    config, dest = tmp_path / "agent.toml", tmp_path / "store"
    secret = tmp_path / "password"
    secret.write_text(f"{PASSWORD}\n")
    with closed_port() as port:
        config.write_text(
            f'[server]\ntarget = "{mariadb.pid}"\n{BRIEF_TRIGGER}'
            f'[ship]\nurl = "clickhouse+http://agent@127.0.0.1:{port}/fleet"\n'
            f'password-file = "{secret}"\nheartbeat = 5\n'
        )
        with agent(mariadb, dest, "--config", config) as watch:
            with (
                metadata_lock_pileup(mariadb),
                running_statements(mariadb, "shop", [SECRET_READ] * 3),
            ):
                watch.wait(lambda: watch.of("stall"), "stall")
                watch.wait_said("shipping to")
            watch.wait(lambda: watch.of("end"), "end")
            wait_until(lambda: spooled(dest), "it waits in the spool")
            seen = "".join(Path(f"/proc/{pid}/cmdline").read_text() for pid in watch.members())
        said = "\n".join(watch.said)
    found = b"".join(spooled(dest))
    assert b"metadata-lock" in found
    for text in (said.encode(), seen.encode(), found):
        assert PASSWORD.encode() not in text
        assert LITERAL.encode() not in text
    for path in dest.rglob("*"):
        assert PASSWORD not in str(path)
        if path.is_file():
            assert PASSWORD.encode() not in path.read_bytes()
    shown = run("config", "show", config)
    assert PASSWORD not in shown
    assert sum("shipping to" in line for line in watch.said) == 1, "it is said once"


def spooled(dest: Path) -> list[bytes]:
    """Return the rows of all batches in the spool, as lines."""
    return [
        found.body(table)
        for file in dest.glob("servers/*/ship/*/*.zst")
        for found in [batch.loads(file.read_bytes())]
        for table in found.lines
    ]


def run(*words: object) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "stallscope", *map(str, words)],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout + done.stderr
