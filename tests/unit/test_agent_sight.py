# SPDX-License-Identifier: Apache-2.0
"""What the agent knows of its server: whether it runs, and since when nothing is known."""

from __future__ import annotations

from stallscope.agent.sight import Sight
from stallscope.model.samples import Sample

NS = 1_000_000_000
REFUSED = "the server refuses 'a' at /s (1045): Access denied"


def beat(second: float, error: str | None = None, **values: float) -> Sample:
    given = {name.replace("__", "."): value for name, value in values.items()}
    ns = int(second * NS)
    return Sample("heartbeat", ns, ns, given, error=error)


class Watched:
    """A server whose clocks both are seconds of the test."""

    def __init__(self, *, sql: bool = True) -> None:
        self.sight = Sight()
        self.use(0, sql=sql)

    def use(self, second: float, *, sql: bool = True) -> None:
        self.sight.use(sql=sql, now_ns=int(second * NS), wall_ns=int(second * NS))

    def see(self, *samples: Sample) -> None:
        for sample in samples:
            self.sight.sample(sample)

    def at(self, second: float, *, running: bool = True) -> dict[str, float]:
        ns = int(second * NS)
        return self.sight.own(ns, ns, running=running).values


def test_nothing_is_known_before_the_first_answer() -> None:
    one = Watched()
    assert one.at(1) == {}
    one.see(beat(1))
    assert one.at(2) == {"server.down": 0.0, "agent.blind_s": 0.0}


def test_a_refused_account_makes_blind_and_says_since_when() -> None:
    one = Watched()
    one.see(beat(1))
    for second in range(2, 90):
        one.see(beat(second, f"{REFUSED}; tried again in {second} s"))
    assert one.at(90)["agent.blind_s"] == 89
    assert one.sight.blind(90 * NS) == (89, NS, REFUSED)
    one.see(beat(91))
    assert one.at(91)["agent.blind_s"] == 0


def test_a_refusal_shows_that_the_server_lives() -> None:
    one = Watched()
    one.see(beat(1, REFUSED))
    assert one.at(2) == {}, "it may come from this side"
    one.see(beat(2, REFUSED, login__code=1045.0))
    assert one.at(3) == {"server.down": 0.0}


def test_a_server_that_owes_an_answer_is_seen_to_hang() -> None:
    one = Watched()
    one.see(beat(1))
    for second in range(2, 90):
        one.see(beat(second, "no answer", heartbeat__unanswered_ms=1e3 * second))
    assert one.sight.owes
    assert one.at(90)["agent.blind_s"] == 0, "that it hangs is known"


def test_while_a_server_is_down_nothing_is_missed() -> None:
    one = Watched()
    one.see(beat(1))
    assert one.at(2, running=False) == {"server.down": 1.0}
    assert one.at(500, running=False) == {"server.down": 1.0}
    one.use(501)
    assert one.at(502) == {}, "the next process has not answered"
    one.see(beat(502, "no server answers at /s: Connection refused"))
    assert one.at(570) == {"agent.blind_s": 70.0}
    one.see(beat(571))
    assert one.at(572) == {"server.down": 0.0, "agent.blind_s": 0.0}


def test_a_probe_that_has_written_lines_is_missed() -> None:
    one = Watched(sql=False)
    assert one.at(100) == {"server.down": 0.0, "agent.blind_s": 0.0}, "nothing is used"
    one.sight.waits(101 * NS, 101 * NS)
    one.sight.no_waits("the probe has ended: no memory")
    assert one.at(200)["agent.blind_s"] == 99
    assert one.sight.blind(200 * NS) == (99, 101 * NS, "the probe has ended: no memory")
    one.sight.waits(201 * NS, 201 * NS)
    assert one.at(201)["agent.blind_s"] == 0


def test_sql_that_was_used_and_cannot_be_any_more_is_missed() -> None:
    one = Watched()
    one.see(beat(1))
    one.use(2, sql=False)
    assert one.at(70)["agent.blind_s"] == 69


def listed(second: float, error: str | None = None) -> Sample:
    ns = int(second * NS)
    return Sample("processlist", ns, ns, error=error)


def test_a_collector_that_has_worked_is_missed_though_the_server_answers() -> None:
    one = Watched()
    one.see(listed(1, "PROCESS is missing"))
    for second in range(1, 90):
        one.see(beat(second))
    assert one.at(90)["agent.blind_s"] == 0, "the account never had the right"
    one.see(listed(90))
    for second in range(91, 190):
        one.see(beat(second), listed(second, "PROCESS is missing"))
    assert one.sight.blind(190 * NS) == (100, 90 * NS, "PROCESS is missing")
    for second in range(190, 290):
        one.see(beat(second, "late", heartbeat__unanswered_ms=9.0), listed(second, "late"))
    assert one.at(290)["agent.blind_s"] == 0, "it hangs"


def test_the_next_agent_goes_on_not_knowing() -> None:
    one = Watched()
    one.see(beat(1), listed(1))
    for second in range(2, 30):
        one.see(beat(second, REFUSED), listed(second, REFUSED))
    later = Watched.__new__(Watched)
    later.sight = Sight()
    later.sight.restore(one.sight.known())
    later.use(40)
    assert later.at(41)["agent.blind_s"] == 40, "since the last answer that anybody got"
    later.see(beat(42), listed(42))
    assert later.at(42)["agent.blind_s"] == 0
    well = Sight()
    well.restore(later.sight.known())
    well.use(sql=True, now_ns=500 * NS, wall_ns=500 * NS)
    assert well.blind(501 * NS) is None
