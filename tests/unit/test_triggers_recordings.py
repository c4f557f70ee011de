# SPDX-License-Identifier: Apache-2.0
"""The defaults on recordings of real servers: healthy ones, and through real stalls."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from stallscope.collectors.triggers import triggerfile
from stallscope.collectors.triggers.dryrun import dry_run
from stallscope.collectors.triggers.engine import Engine
from stallscope.collectors.triggers.recording import Record
from stallscope.model.incident import Fired
from tests.unit.trigger_recordings import NS, healthy_time, load, mark

pytestmark = pytest.mark.large

SERVERS = ("mariadb", "mysql55", "mysql97")
HOUR = 3600

# Which triggers see a stall from samples alone, and which of the wait programs.
STALLS: dict[str, tuple[set[str], set[str]]] = {
    "metadata-lock": ({"metadata-lock"}, {"lock-convoy"}),
    "metadata-lock-select": ({"metadata-lock"}, {"lock-convoy"}),
    "mysql55-metadata-lock": ({"metadata-lock"}, {"lock-convoy"}),
    "mysql97-metadata-lock": ({"metadata-lock"}, {"lock-convoy"}),
    "global-read-lock": ({"global-read-lock"}, {"lock-convoy"}),
    "mysql55-global-read-lock": ({"global-read-lock"}, {"lock-convoy"}),
    "mysql97-global-read-lock": ({"global-read-lock"}, {"lock-convoy"}),
    "row-lock": ({"row-lock"}, {"lock-convoy"}),
    "mariadb-row-lock": ({"row-lock"}, set()),
    "mysql97-row-lock": ({"row-lock"}, {"lock-convoy"}),
    "deadlock-check": ({"row-lock"}, {"lock-convoy"}),
    "mariadb-deadlock-check": ({"row-lock"}, set()),
    "table-open-lock": ({"opening-tables"}, set()),
    "index-lock": ({"no-progress"}, set()),
    "file-extend": ({"no-progress"}, {"space-wait", "lock-convoy"}),
    "redo-sync": ({"no-progress"}, {"sync-wait", "lock-convoy"}),
    "mariadb-hang": ({"no-answer"}, set()),
    "mysql55-hang": ({"no-answer"}, set()),
}
WITHIN = dict.fromkeys(STALLS, 2.0) | {
    # The storm does not slow down before all connections are in it, and the server answers late.
    "deadlock-check": 3.0,
    "mariadb-deadlock-check": 5.0,
    # It has 1.5 s to answer, and the agent learns in its next round that it did not.
    "mariadb-hang": 3.5,
    "mysql55-hang": 3.5,
}
"""Seconds from when the stall was there."""
ENDS_WITHIN = 5.0
"""Seconds from its end until that is known."""


def fired(records: Iterable[Record], *, waits: bool) -> list[tuple[int, Fired]]:
    """Return what fires, with the clock at which it was known."""
    engine = Engine(triggerfile.defaults(), {"host.cpus": 2})
    found: list[tuple[int, Fired]] = []
    for record in records:
        clock = record.clock_ns
        if record.sample is not None:
            here = engine.feed(record.sample)
            if record.sample.error is None:
                clock += int(record.sample.elapsed_ms * 1e6)
        elif record.line is not None and waits:
            here = engine.feed_waits(record.line, record.time_ns, record.clock_ns)
        else:
            continue
        found += [(clock, one) for one in here]
    return found


OF_OTHERS = {"backend-locks", "backend-blocked", "server-ended", "blind"}
"""PostgreSQL's, and the agent's."""
NOT_RECORDED = {
    *("connections-used-up", "login-refused", "login-hang", "accept-queue"),
    *("semisync-wait", "galera-flow-control", "galera-not-primary"),
    *("group-flow-control", "group-no-majority"),
    *("replica-stopped", "replica-lag", "read-only", "handshakes-aborted"),
    *("cpu-quota", "cpu-steal", "memory-limit", "swapping", "memory-reclaim", "memory-compaction"),
    *("oom-kill", "disk-full-data", "disk-full-redo", "disk-full-binlog", "disk-full-temporary"),
    "disk-read-only",
}
"""Their numbers are not in the recordings: tests/live/test_false_calm.py makes each of them fire,
test_host_states.py feeds those of the host, and test_healthy.py has an agent on busy servers with
all of them."""


@pytest.mark.parametrize("server", SERVERS)
def test_an_hour_of_a_healthy_server_fires_nothing(server: str) -> None:
    hour = list(healthy_time(load(f"healthy-{server}"), HOUR, 1))
    assert hour[-1].clock_ns - hour[0].clock_ns > 0.99 * HOUR * NS
    assert [one.why for _, one in fired(hour, waits=True)] == []


@pytest.mark.parametrize("server", SERVERS)
def test_all_triggers_can_fire_on_a_healthy_server(server: str) -> None:
    hour = healthy_time(load(f"healthy-{server}"), 600, 3)
    result = dry_run(triggerfile.defaults(), hour, {"host.cpus": 2})
    silent = [t.settings.name for t in result.triggers if not t.state.samples]
    assert set(silent) == OF_OTHERS | NOT_RECORDED


@pytest.mark.parametrize("name", STALLS)
def test_a_stall_is_seen_by_samples_alone(name: str) -> None:
    records = load(name)
    there = mark(records, "there")
    found = fired(records, waits=False)
    assert found, "nothing fired"
    assert found[0][0] >= mark(records, "begin"), "fired before the stall"
    assert found[0][0] <= there + WITHIN[name] * NS
    assert {one.trigger for _, one in found} >= STALLS[name][0]


@pytest.mark.parametrize("name", STALLS)
def test_a_stall_is_seen_by_the_wait_programs_and_is_one_breach(name: str) -> None:
    records = load(name)
    found = fired(records, waits=True)
    assert found[0][0] >= mark(records, "begin"), "fired before the stall"
    if STALLS[name][1]:
        by_waits = [(clock, one) for clock, one in found if one.wait is not None]
        assert {one.trigger for _, one in by_waits} >= STALLS[name][1]
        assert by_waits[0][0] <= mark(records, "there") + WITHIN[name] * NS
    over = mark(records, "over")
    breaches = breached(records)
    assert len(breaches) == 1, "one trigger may rest meanwhile, not all of them"
    assert over <= breaches[0][1] <= over + ENDS_WITHIN * NS


def breached(records: Iterable[Record]) -> list[tuple[int, int]]:
    """Return from when to when triggers were breached, by the clock of the records."""
    engine = Engine(triggerfile.defaults(), {"host.cpus": 2})
    found: list[tuple[int, int]] = []
    since: int | None = None
    for record in records:
        if record.sample is not None:
            engine.feed(record.sample)
        elif record.line is not None:
            engine.feed_waits(record.line, record.time_ns, record.clock_ns)
        if engine.breached and since is None:
            since = record.clock_ns
        elif not engine.breached and since is not None:
            found.append((since, record.clock_ns))
            since = None
    return found
