# SPDX-License-Identifier: Apache-2.0
"""What a store is read as that somebody else has written, whole, torn or hostile."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from backports import zstd
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stallscope.base.errors import StallscopeError
from stallscope.model.incident import CaptureEntry, Incident
from stallscope.reporters.incidents import Row, dumps, list_lines, whole, whole_dumps
from stallscope.store import (
    Store,
    StoredIncident,
    appended,
    incident_id,
    layout,
    listing,
    read_incident,
    reading,
)
from stallscope.store.records import encode
from tests.support.servers.waiting import PATIENCE
from tests.unit.costs import cpu_seconds
from tests.unit.storelife import (
    CAPTURE,
    SQL,
    START_NS,
    TEXT,
    Said,
    check,
    fill,
    incident,
    sample,
)

fuzz = settings(suppress_health_check=list(HealthCheck))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return the folder of a whole incident."""
    store = Store.open(tmp_path / "store")
    fill(store, 1, lambda _: None)
    return store.incidents / incident(1).id


def everything(stored: StoredIncident) -> None:
    list(stored.captures())
    stored.samples()
    stored.waits()
    stored.texts()
    stored.raw_sql()


def test_what_was_written_is_read(folder: Path) -> None:
    stored = read_incident(folder)
    assert [c.error for c in stored.captures()] == [None] * 3
    assert [c.entry.reason for c in stored.captures()] == ["trigger", "burst", "burst"]
    assert stored.samples() == [sample(number) for number in range(70)]
    assert stored.texts() == {"innodb-status": TEXT}
    assert stored.raw_sql() == [SQL]
    assert len(stored.waits()) == 1
    assert stored.notes == []
    assert not stored.going_on
    assert read_incident(folder / "incident.json").incident == stored.incident


def test_only_the_owner_can_read(folder: Path) -> None:
    store = folder.parent.parent
    for path in (store, *store.rglob("*")):
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode == (0o700 if path.is_dir() else 0o600), path


@pytest.mark.parametrize("cut", [1, 3, 10, 40])
def test_a_torn_tail_is_cut(folder: Path, cut: int) -> None:
    path = folder / layout.SAMPLES
    data = path.read_bytes()
    path.write_bytes(data[:-cut])
    stored = read_incident(folder)
    assert stored.samples() == [sample(number) for number in range(60)]
    assert [note.code for note in stored.notes] == ["torn"]


def test_zeros_at_the_end_are_cut(folder: Path) -> None:
    with (folder / layout.SAMPLES).open("ab") as file:
        file.write(bytes(4096))
    stored = read_incident(folder)
    assert len(stored.samples()) == 70
    assert "4096 bytes are damaged" in stored.notes[0].message


def test_a_capture_that_is_not_listed_is_found(folder: Path) -> None:
    (folder / "captures" / "0004.jsonl.zst").write_bytes(appended.pack(CAPTURE))
    stored = read_incident(folder)
    assert [c.entry.file for c in stored.captures()][-1] == "captures/0004.jsonl.zst"
    assert [note.code for note in stored.notes] == ["capture-unlisted"]


def test_links_fifos_and_names_that_lead_out(folder: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("secret")
    (folder / "texts" / "stolen.txt").symlink_to(secret)
    os.mkfifo(folder / "texts" / "fifo.txt")
    (folder / layout.WAITS).unlink()
    os.mkfifo(folder / layout.WAITS)
    (folder / layout.SAMPLES).unlink()
    (folder / layout.SAMPLES).mkdir()
    (folder / "captures").rename(tmp_path / "elsewhere")
    (folder / "captures").symlink_to(tmp_path / "elsewhere")
    entries = [
        CaptureEntry(name, 1, "trigger")
        for name in ("../../secret.txt", "/etc/passwd", "captures/../../x", "captures/a\n\x1b[2J")
    ]
    stored = read_incident(folder)
    hostile = msgspec.structs.replace(stored.incident, captures=tuple(entries))
    (folder / "incident.json").write_bytes(encode(hostile))
    stored = read_incident(folder)
    assert all("not the name of a capture" in str(c.error) for c in stored.captures())
    assert "secret" not in "".join(stored.texts().values())
    assert (stored.waits(), stored.samples()) == ([], [])
    assert stored.notes
    assert all(note.message.isprintable() for note in stored.notes)


def test_a_bomb_is_not_unpacked(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "MAX_PLAIN", 1 << 20)
    (folder / layout.SAMPLES).write_bytes(zstd.compress(bytes(64 << 20)))
    stored = read_incident(folder)
    assert stored.samples() == []
    assert "unpacks to more than" in stored.notes[0].message


def test_sizes_are_limited(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "MAX_TEXT", 10)
    monkeypatch.setattr(reading, "MAX_PACKED", 10)
    stored = read_incident(folder)
    assert stored.samples() == []
    assert "larger than 10 bytes" in " ".join(note.message for note in stored.notes)


def test_a_file_of_very_many_frames_takes_no_time() -> None:
    """Each frame must not cost a copy of all that follow it: here that would be 640 GB."""
    data = appended.pack(b"") * 20_000 + bytes(32 << 20)

    def read() -> None:
        torn = f"the last {32 << 20} bytes are damaged and skipped"
        assert appended.frames(data, 1 << 20) == (b"", torn)

    assert cpu_seconds(read, 5) < 5


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"schema": "stallscope.incident/2"}, "stallscope.incident/2"),
        ({"id": "../../etc"}, "is not the id"),
        ({"start_ns": -1}, "start_ns"),
        ({"end_ns": 10**30}, "cannot be read"),
        ({"start_ns": "now"}, "start_ns"),
        ({"target": {"pid": 10**40, "name": "x"}}, "cannot be read"),
        ('{"notes":' + "[" * 100_000, "cannot be read"),
    ],
)
def test_an_incident_that_cannot_be(folder: Path, change: dict[str, Any] | str, what: str) -> None:
    path = folder / "incident.json"
    if isinstance(change, dict):
        change = json.dumps({**json.loads(path.read_bytes()), **change})
    path.write_text(change)
    with pytest.raises(StallscopeError, match=rf"incident\.json.*{what}"):
        read_incident(folder)
    found = listing(folder.parent.parent)
    assert (found.incidents, len(found.notes)) == ([], 1)


def test_a_copy_can_have_any_name(folder: Path, tmp_path: Path) -> None:
    copy = folder.rename(tmp_path / "for support")
    assert [capture.error for capture in read_incident(copy).captures()] == [None] * 3


def test_in_a_store_the_name_is_the_id(folder: Path) -> None:
    folder.rename(folder.parent / incident(2).id)
    found = listing(folder.parent.parent)
    assert (found.incidents, len(found.notes)) == ([], 1)
    assert "of another" in found.notes[0].message


_GOOD = encode(msgspec.structs.replace(incident(1), captures=(CaptureEntry("captures/1", 1, "x"),)))
_JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=6,
)


def read_hostile(folder: Path, data: bytes) -> None:
    (folder / "incident.json").write_bytes(data)
    found = listing(folder.parent.parent)
    if found.notes:
        assert (found.incidents, len(found.notes)) == ([], 1)
        if "of another" not in found.notes[0].message:
            with pytest.raises(StallscopeError, match=r"incident\.json"):
                read_incident(folder)
        return
    assert len(found.incidents) == 1
    stored = read_incident(folder)
    everything(stored)
    row = Row(found.incidents[0], str(folder))
    dumps([row])
    whole_dumps(row, stored, stored.entries())
    for line in (
        *list_lines(folder, [row], 1, 80),
        *whole(stored, stored.entries(), stored.samples(), 80, blocks=False),
    ):
        assert line.text.isprintable()


@pytest.mark.large
@fuzz
@given(name=st.sampled_from(Incident.__struct_fields__), value=_JSON)
def test_any_value_in_any_field(folder: Path, name: str, value: object) -> None:
    fields = {**json.loads(_GOOD), name: value}
    read_hostile(folder, json.dumps(fields).encode("utf-8", "surrogatepass"))


@pytest.mark.large
@fuzz
@given(file=st.sampled_from([layout.SAMPLES, layout.WAITS, layout.RAW_SQL]), data=st.binary())
def test_any_bytes_in_growing_files(folder: Path, file: str, data: bytes) -> None:
    for content in (data, appended.pack(data), appended.pack(data)[:-2] + data):
        (folder / file).write_bytes(content)
        everything(read_incident(folder))


@fuzz
@given(data=st.binary(max_size=400) | _JSON.map(lambda v: json.dumps(v).encode()))
def test_any_index_gives_the_same_list(folder: Path, data: bytes) -> None:
    dest = folder.parent.parent
    (dest / layout.INDEX).write_bytes(data)
    assert [summary.id for summary in listing(dest).incidents] == [folder.name]


def test_a_wrong_index_is_not_used(folder: Path) -> None:
    dest = folder.parent.parent
    Store.open(dest).refresh_index()
    path = dest / layout.INDEX
    truth = listing(dest)
    assert truth.read == 0
    index = json.loads(path.read_bytes())
    index["incidents"][0]["captures"] = 99
    index["incidents"][0]["stamp"][1] += 1
    index["incidents"].append({**index["incidents"][0], "id": "../../etc"})
    path.write_text(json.dumps(index))
    found = listing(dest)
    assert (found.incidents, found.read, found.dropped) == (truth.incidents, 1, 1)


@pytest.mark.parametrize("wrong", ["../x", "20261121", "20261121T145012.345Z-a/b", "", "x" * 300])
def test_no_incident_leads_out_of_the_store(tmp_path: Path, wrong: str) -> None:
    store = Store.open(tmp_path)
    with pytest.raises(StallscopeError, match="not the id"):
        store.begin(msgspec.structs.replace(incident(1), id=wrong))
    assert os.listdir(store.incidents) == []


@fuzz
@given(time_ns=st.integers(), name=st.text(), pid=st.integers(0, 1 << 22))
def test_every_id_is_one(time_ns: int, name: str, pid: int) -> None:
    assert layout.is_id(incident_id(time_ns, name, pid))


def test_a_text_is_not_written_elsewhere(tmp_path: Path) -> None:
    with Store.open(tmp_path).begin(incident(1)) as one:
        for name in ("../x", ".hidden", "a/b", ""):
            with pytest.raises(StallscopeError, match="not the name of a text"):
                one.add_text(name, "x")
        assert one.add_text("a", "1").name == "a.txt"
        assert one.add_text("a", "\udc80").name == "a-2.txt"
        assert read_incident(one.path).texts() == {"a": "1", "a-2": "\\udc80"}


def test_what_is_written_without_entries_keeps_them(tmp_path: Path) -> None:
    with Store.open(tmp_path).begin(incident(1)) as one:
        entry = one.add_capture(CAPTURE, CaptureEntry("", 1, "trigger"))
        one.update(msgspec.structs.replace(incident(1), suppressed=3))
        assert (one.incident.captures, one.incident.suppressed) == ((entry,), 3)
        with pytest.raises(StallscopeError, match="not the folder of"):
            one.update(incident(2))
    with pytest.raises(StallscopeError, match="closed"):
        one.append_samples([sample(1)])


def test_lone_surrogates_are_escaped(tmp_path: Path) -> None:
    target = msgspec.structs.replace(incident(1).target, exe="/usr/sbin/\udc80")
    with Store.open(tmp_path).begin(msgspec.structs.replace(incident(1), target=target)) as one:
        assert read_incident(one.path).incident.target.exe == "/usr/sbin/\\udc80"


def test_an_agent_that_was_killed_leaves_an_interrupted_incident(tmp_path: Path) -> None:
    store = Store.open(tmp_path)
    with store.begin(incident(1)) as one:
        assert store.listing().incidents[0].going_on
        assert read_incident(one.path).going_on
        assert store.recover() == []
    assert not store.listing().incidents[0].going_on
    assert store.recover() == [incident(1).id]
    assert read_incident(one.path).incident.interrupted
    assert store.recover() == []
    assert store.listing().incidents[0].start_ns == START_NS + 10**9


AGENT = """
import json, sys
from pathlib import Path
from tests.unit.storelife import life
life(Path(sys.argv[1]), 0, lambda said: print(json.dumps(said)), keep=100)
"""


def test_two_agents_at_once(tmp_path: Path) -> None:
    """They begin incidents of the same id at the same time; each keeps its own."""
    dest = tmp_path / "store"
    command = [sys.executable, "-c", AGENT, str(dest)]
    agents = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(2)]
    outputs = [one.communicate(timeout=PATIENCE)[0] for one in agents]
    assert [one.returncode for one in agents] == [0, 0]
    said: list[Said] = [tuple(json.loads(line)) for out in outputs for line in out.splitlines()]
    check(dest, said)
    names = [name for what, name, _ in said if what == "announced"]
    assert len(set(names)) == len(names) == 6
    assert {summary.id for summary in Store.open(dest).listing().incidents} == set(names)
