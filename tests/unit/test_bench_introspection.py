# SPDX-License-Identifier: Apache-2.0
"""What scripts/bench introspection counts as right, missing and wrong."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from stallscope.model.sessions import Session
from tests.bench.introspection_clients import Facts
from tests.bench.introspection_compare import Look, Outcome, Said, Tally, compare

__all__: list[str] = []

SAID = Said(
    7, 70, "anna", "localhost", "shop", "Query", "User sleep", "SELECT SLEEP(9)", seconds=3.0
)
IDLE = Said(7, 70, "anna", "localhost", "shop", "Sleep", seconds=3.0, idle=True)
FACTS = Facts(7, "anna", "localhost", "SELECT SLEEP(9)", transaction=False)
SEEN = Session(
    connection=7,
    tid=70,
    user="anna",
    host="localhost",
    database="shop",
    command="Query",
    state="User sleep",
    statement="SELECT SLEEP(9)",
    seconds=3.2,
    transaction=False,
)
RESTING = msgspec.structs.replace(SEEN, command="Sleep", state=None, last=True)


def outcomes(said: Said, facts: Facts | None, session: Session | None) -> dict[str, str]:
    found = compare(said, said, facts, session)
    return {name: one.value for name, one in found.items() if one is not Outcome.RIGHT}


def test_all_is_right() -> None:
    assert outcomes(SAID, FACTS, SEEN) == {}
    assert outcomes(IDLE, FACTS, RESTING) == {}
    assert len(compare(SAID, SAID, FACTS, SEEN)) == 10


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"user": "bert"}, "user"),
        ({"host": "10.0.0.1"}, "host"),
        ({"database": "stock"}, "database"),
        ({"command": "Execute"}, "command"),
        ({"state": "updating"}, "state"),
        ({"statement": "SELECT SLEEP(8)"}, "statement"),
        ({"seconds": 5.0}, "age"),
        ({"transaction": True}, "transaction"),
        ({"tid": 71}, "thread"),
    ],
)
def test_what_differs_is_wrong_and_what_is_unknown_is_missing(
    change: dict[str, Any], name: str
) -> None:
    assert outcomes(SAID, FACTS, msgspec.structs.replace(SEEN, **change)) == {name: "wrong"}
    unknown = msgspec.structs.replace(SEEN, **dict.fromkeys(change))
    assert outcomes(SAID, FACTS, unknown) == {name: "missing"}


def test_a_connection_that_is_not_there_is_missing() -> None:
    assert outcomes(SAID, FACTS, None) == {"connection": "missing"}


def test_the_last_statement_of_another_connection_is_wrong() -> None:
    fresh = Facts(7, "anna", "localhost", None, transaction=False)
    assert outcomes(IDLE, fresh, RESTING) == {"last statement": "wrong"}
    nothing = msgspec.structs.replace(RESTING, statement=None)
    assert outcomes(IDLE, fresh, nothing) == {}
    assert outcomes(IDLE, FACTS, nothing) == {"last statement": "missing"}
    # It sent a ping after its statement.
    pinged = Facts(7, "anna", "localhost", "SELECT 1", is_last=False, transaction=False)
    assert outcomes(IDLE, pinged, nothing) == {}
    assert outcomes(IDLE, pinged, RESTING) == {"last statement": "wrong"}


def test_a_statement_that_was_cut_is_the_beginning_of_it() -> None:
    sent = "SELECT '" + "ö" * 800 + "'"
    facts = Facts(7, "anna", "localhost", sent, transaction=False)
    cut = msgspec.structs.replace(RESTING, statement=sent[:515] + "\ufffd")
    assert outcomes(IDLE, facts, cut) == {}
    other = msgspec.structs.replace(RESTING, statement="UPDATE " + "x" * 1100)
    assert outcomes(IDLE, facts, other) == {"last statement": "wrong"}
    short = msgspec.structs.replace(RESTING, statement=sent[:100])
    assert outcomes(IDLE, facts, short) == {"last statement": "wrong"}


def test_only_connections_that_did_not_change_are_compared() -> None:
    tally = Tally()
    before = Look({7: SAID, 8: SAID}, {7: FACTS})
    later = Facts(7, "anna", "localhost", "SELECT SLEEP(9)", transaction=False)
    tally.add(before, Look({7: SAID}, {7: later}), {7: SEEN})  # it sent the same once more
    tally.add(before, Look({7: IDLE}, {7: FACTS}), {7: RESTING})
    tally.add(Look({}, {}), Look({7: SAID}, {7: FACTS}), {7: SEEN})
    tally.add(before, Look({8: SAID}, {}), {})  # nobody knows what it does
    assert not tally.connections
    tally.add(before, before, {7: SEEN})
    assert tally.connections == {Outcome.RIGHT: 1}
    wrong = msgspec.structs.replace(SEEN, user="bert", state=None)
    tally.add(before, before, {7: wrong})
    assert tally.connections == {Outcome.RIGHT: 1, Outcome.WRONG: 1}
    assert tally.fields["user"] == {Outcome.RIGHT: 1, Outcome.WRONG: 1}
    assert tally.fields["state"] == {Outcome.RIGHT: 1, Outcome.MISSING: 1}
    assert len(tally.examples) == 2
    assert tally.listed == 8
