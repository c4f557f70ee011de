# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stallscope.analyzers import catalog
from stallscope.analyzers.excerpts import Excerpts
from stallscope.base.errors import StallscopeError
from stallscope.model import waitlines
from stallscope.model.waitlines import Notice, WaitLine, loads
from stallscope.reporters import waits
from stallscope.reporters.prometheus import Metrics
from tests.unit.metricspages import text_of
from tests.unit.waitsamples import value_of

CHECKOUT = Path(__file__).resolve().parents[2]
SAMPLE = value_of("stalled")
EXCERPTS = Excerpts(catalog.load())


def read(data: object) -> WaitLine:
    line = loads(json.dumps(data).encode(), "probe", 7)
    assert isinstance(line, WaitLine)
    return line


def test_all_of_a_line_is_read() -> None:
    line = read(SAMPLE)
    assert line.kinds["mutex"].count == 31
    assert line.kinds["read"].bytes == 1966637056
    assert line.kinds["fsync"].histogram[0] == (1 << 20, (1 << 21) - 1, 300)
    lock = line.keys[2]
    assert (lock.name, lock.in_flight, lock.owner_tid) == ("LOCK_open", 187, 4713)
    assert lock.waiters[1].label == "raced"
    assert lock.holders[0].tid == 4713
    assert line.keys[1].file_class == "redo"
    assert line.classes is not None
    assert line.classes[0].file_class == "redo"
    assert line.events[0].in_flight
    assert line.lost["ring-full"] == 12
    assert [probe.ok for probe in line.programs] == [True, False]
    assert not line.final


def test_the_least_that_a_line_has() -> None:
    line = read(
        {"schema": "stallscope.waits/1", "ts": 1, "seconds": 1, "kinds": {}, "keys": [], "lost": {}}
    )
    assert line.in_flight_by == "timer"
    assert line.classes is None
    assert not line.sampled
    assert line.interval_ns is None


def test_how_waits_are_sampled_is_read() -> None:
    line = read(
        {**SAMPLE, "source": "poll", "sampled": True, "interval_ns": 7, "longest_interval_ns": 9}
    )
    assert (line.source, line.sampled) == ("poll", True)
    assert (line.interval_ns, line.longest_interval_ns) == (7, 9)


RESTING = {
    "call_added_ns": 44.8,
    "rest": {
        "resting": True,
        "interval_ms": 300.0,
        "threads": 412,
        "arms": 3,
        "refused": 1,
        "why": "cannot load",
        "later": 1,
    },
    "history": [
        {
            "time_ns": 1732395600000000000,
            "threads": 382,
            "rows": [
                {"count": 380, "state": "S", "call": "ppoll", "channel": "do_sys_poll"},
                {"count": 2, "state": None, "call": None, "kind": None, "name": None},
            ],
        }
    ],
}


def test_rest_and_history_are_read() -> None:
    line = read({**SAMPLE, **RESTING})
    assert line.call_added_ns == 44.8
    assert line.rest is not None
    assert (line.rest.resting, line.rest.arms, line.rest.why) == (True, 3, "cannot load")
    (sample,) = line.history
    assert (sample.threads, [row.count for row in sample.rows]) == (382, [380, 2])
    assert read(SAMPLE).rest is None
    assert read(SAMPLE).history == ()


def test_fields_of_a_later_probe_are_let_be() -> None:
    assert read({**SAMPLE, "weather": {"fine": True}}) == read(SAMPLE)


# Which functions of stallscope-probe write an object, and what of their keys is not in it: the key
# of the object itself, or what is in another one that they write.
COUNTS = ("write_counts", "write_histogram")
WRITERS: dict[type[msgspec.Struct], tuple[tuple[str, ...], set[str]]] = {
    waitlines.Target: (("write_targets",), {"targets"}),
    waitlines.KindWaits: ((*COUNTS, "write_kinds"), {"kinds"}),
    waitlines.ClassWaits: ((*COUNTS, "write_classes"), {"classes"}),
    waitlines.WaiterStack: (("write_uses",), {"waiters", "holders"}),
    waitlines.HolderStack: (("write_uses",), {"waiters", "holders", "total_ms"}),
    waitlines.Event: (("stall_watch_event_write",), set()),
    waitlines.Hits: (("write_server",), {"server"}),
    waitlines.ProgramState: (("stall_wait_programs_write",), {"programs"}),
    waitlines.Rest: (("write_rest",), {"rest"}),
    waitlines.ThreadRow: (("write_row", "write_call"), set()),
    waitlines.ThreadSample: (("write_sample",), set()),
}
_FUNCTION = re.compile(r"^(?:static )?void (\w+)\([^;{]*\)\n\{\n(.*?)^\}", re.MULTILINE | re.DOTALL)
_KEY = re.compile(r'json, (?:holders \? "(\w+)" : )?"(\w+)"')


def written() -> dict[str, set[str]]:
    """Return the keys that each function of the writer of lines writes."""
    found = {}
    for name in (
        "waits/wait_history.c",
        "waits/wait_json.c",
        "waits/wait_programs.c",
        "watch/watch_events.c",
    ):
        for function, body in _FUNCTION.findall((CHECKOUT / "pmp" / name).read_text()):
            found[function] = {key for pair in _KEY.findall(body) for key in pair if key}
    return found


def fields_of(struct: type[msgspec.Struct]) -> set[str]:
    return {field.encode_name for field in msgspec.structs.fields(struct)}


def test_the_probe_writes_the_fields_that_are_read() -> None:
    keys = written()
    for struct, (functions, others) in WRITERS.items():
        own = set().union(*(keys[function] for function in functions)) - others
        assert own == fields_of(struct), struct
    key = set().union(*(keys[name] for name in (*COUNTS, "write_group", "write_name")))
    assert key | {"waiters", "holders"} == fields_of(waitlines.Key)
    assert {"waiters", "holders"} <= keys["write_uses"]
    parts = {"targets", "kinds", "classes", "programs", "rest", "server"}
    writers = {part: f"write_{part}" for part in parts} | {"programs": "stall_wait_programs_write"}
    assert all(part in keys[writers[part]] for part in parts)
    assert keys["write_line"] | parts == {"type", *fields_of(WaitLine)}


def test_the_documented_fields_are_these() -> None:
    text = (CHECKOUT / "docs" / "waits-schema.md").read_text()
    table = [line.split("|", 4) for line in text.splitlines() if line.startswith("| `")]
    rows = [(cells[1].strip(), cells[4]) for cells in table]
    top = {name for field, _ in rows for name in re.findall(r"^`([a-z_]+)`$", field)}
    assert top == {"type", *fields_of(WaitLine)}
    of_kinds = {
        name
        for field, _ in rows
        if field.startswith("`kinds.")
        for name in re.findall(r"\.([a-z_]+)`", field)
    }
    assert of_kinds == fields_of(waitlines.KindWaits)
    of_keys = {
        name
        for field, _ in rows
        if field.startswith("`keys[]")
        for name in re.findall(r"\.([a-z_]+)`", field)
    }
    assert of_keys == fields_of(waitlines.Key)
    objects: dict[str, type[msgspec.Struct]] = {
        "targets": waitlines.Target,
        "classes": waitlines.ClassWaits,
        "keys[].waiters": waitlines.WaiterStack,
        "keys[].holders": waitlines.HolderStack,
        "events": waitlines.Event,
        "programs": waitlines.ProgramState,
        "rest": waitlines.Rest,
        "server": waitlines.Hits,
        "history": waitlines.ThreadSample,
        "history[].rows": waitlines.ThreadRow,
    }
    meanings = {field.strip("`"): meaning for field, meaning in rows}
    for field, struct in objects.items():
        described = meanings[field]
        listed = described[described.index("{") : described.index("}`")]
        assert set(re.findall(r'"([a-z_]+)"', listed)) == fields_of(struct), field


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "not stallscope.waits/1"),
        (b"garbage \x1b[31m\xff", r"probe: line 7 is not .*garbage \\x1b\[31m"),
        (b"[]", "not stallscope.waits/1"),
        (b"[" * 100_000, "not stallscope.waits/1"),
        (
            json.dumps({**SAMPLE, "schema": "stallscope.waits/2"}).encode(),
            "reads stallscope.waits/1",
        ),
        (json.dumps({**SAMPLE, "seconds": -1}).encode(), "seconds"),
        (json.dumps({**SAMPLE, "lost": {"rate": -1}}).encode(), "lost"),
        (json.dumps({**SAMPLE, "ts": "now"}).encode(), "ts"),
        (
            json.dumps(
                {**SAMPLE, "keys": [{"kind": "mutex", "count": 1, "total_ms": 1, "max_ms": 1}]}
            ).encode(),
            "name",
        ),
        (json.dumps({**SAMPLE, "seconds": 1e300}).encode(), "seconds"),
        (json.dumps({**SAMPLE, "call_added_ns": -1}).encode(), "call_added_ns"),
        (json.dumps({**SAMPLE, "rest": {"resting": True, "threads": -1}}).encode(), "rest"),
        (json.dumps({**SAMPLE, "history": [{"time_ns": 2**70, "threads": 1}]}).encode(), "history"),
        (
            json.dumps(
                {**SAMPLE, "history": [{"time_ns": 1, "threads": 1, "rows": [{"count": 1 << 23}]}]}
            ).encode(),
            "history",
        ),
        (json.dumps(SAMPLE).encode().replace(b"1240.5", b"NaN", 1), "not stallscope.waits/1"),
        (json.dumps(SAMPLE).encode()[:-40], "not stallscope.waits/1"),
    ],
)
def test_an_invalid_line_is_one_line_of_error(data: bytes, why: str) -> None:
    with pytest.raises(StallscopeError, match=why) as error:
        loads(data, "probe", 7)
    assert "\n" not in str(error.value)
    assert str(error.value).isprintable()


def test_a_line_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waitlines, "MAX_LINE", 100)
    with pytest.raises(StallscopeError, match="longer than 100 bytes"):
        loads(b" " * 101, "probe", 1)


def use(line: WaitLine | Notice) -> None:
    """Do with a line all that is ever done with one."""
    if isinstance(line, Notice):
        return
    for row in waits.render(line, waits.Options(server="x", programs=line.programs), EXCERPTS):
        assert row.text.isprintable()
    metrics = Metrics({"server": "x"})
    metrics.add(line)
    text_of(metrics.families())


def read_or_refuse(data: bytes) -> None:
    refusal = None
    try:
        use(loads(data, "probe", 1))
    except StallscopeError as error:
        refusal = str(error)
    assert refusal is None or refusal.isprintable()


@given(st.binary(max_size=300))
def test_bytes_are_read_or_refused(data: bytes) -> None:
    read_or_refuse(data)


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=8,
)


def places(value: object, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """Return the paths to all values of a JSON object."""
    found = [path] if path else []
    items: list[tuple[str | int, object]] = []
    if isinstance(value, dict):
        items = list(value.items())
    elif isinstance(value, list):
        items = list(enumerate(value))
    for name, inner in items:
        found += places(inner, (*path, name))
    return found


PLACES = places({**SAMPLE, **RESTING})


@settings(max_examples=400)
@given(st.lists(st.tuples(st.sampled_from(PLACES), json_values), min_size=1, max_size=3))
@pytest.mark.large
def test_a_line_with_anything_anywhere_is_read_or_refused(
    changes: list[tuple[tuple[str | int, ...], object]],
) -> None:
    line: Any = json.loads(json.dumps({**SAMPLE, **RESTING}))
    for path, value in changes:
        place = line
        try:
            for step in path[:-1]:
                place = place[step]
            place[path[-1]] = value
        except (TypeError, KeyError, IndexError):
            continue  # an earlier change took it away
    read_or_refuse(json.dumps(line).encode())


@settings(max_examples=200)
@given(st.integers(0), st.integers(0, 255))
def test_a_line_with_a_broken_byte_is_read_or_refused(place: int, byte: int) -> None:
    data = bytearray(json.dumps(SAMPLE).encode())
    data[place % len(data)] = byte
    read_or_refuse(bytes(data))
