# SPDX-License-Identifier: Apache-2.0
"""What is sent to others: no name and no data that was planted is in it, compressed or not."""

from __future__ import annotations

import gzip
import io
import os
import random
import stat
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from stallscope.main import main
from stallscope.model import capturefile
from stallscope.model.capture import (
    Capture,
    Frame,
    Lock,
    LockKind,
    Module,
    Note,
    Process,
    Thread,
    Trigger,
)
from stallscope.model.incident import (
    CaptureEntry,
    Fired,
    Incident,
    Origin,
    TargetEntry,
    Verdict,
)
from stallscope.model.samples import Sample
from stallscope.model.waitlines import (
    Event,
    Hits,
    HolderStack,
    Key,
    KindWaits,
    Notice,
    ProgramState,
    Rest,
    Target,
    ThreadRow,
    ThreadSample,
    WaiterStack,
    WaitLine,
    Waker,
)
from stallscope.redaction.words import FILE, Names
from stallscope.store import Store, bundle, layout, listing, read_incident
from stallscope.store.appended import frames
from tests.support.redactionwords import NAMES, words
from tests.unit.captures import convoy
from tests.unit.storelife import START_NS, fill, incident

STAYS = {
    (Frame, "symbol"),
    (Frame, "linkage"),
    (Thread, "state"),
    (ThreadRow, "call"),
    (ThreadRow, "channel"),
    (ThreadRow, "state"),
    (WaiterStack, "frames"),
    (HolderStack, "frames"),
    (Waker, "frames"),
    (Event, "frames"),
}
"""What a bundle keeps: names of functions and of system calls, and states of threads."""
NEEDED = {(Incident, "id"), (CaptureEntry, "file"), (WaitLine, "schema"), (Incident, "schema")}
"""What a reader has to understand, and checks."""

SHAPES: tuple[Callable[[int], tuple[str, tuple[str, ...]]], ...] = (
    lambda n: (f"Sekret{n}", (f"Sekret{n}",)),
    lambda n: (f"jane{n}q@corp{n}q.example", (f"jane{n}q", f"corp{n}q")),
    lambda n: (f"/home/jane{n}w/shop_{n}w.ibd", (f"jane{n}w", f"shop_{n}w")),
    lambda n: (f"10.{n % 200}.33.{n % 190}", (f"10.{n % 200}.33.{n % 190}",)),
    lambda n: (f"fd00:{n % 9000}::{n % 7000}:1", (f"fd00:{n % 9000}::{n % 7000}:1",)),
    lambda n: (f"nandú{n}ñ", (f"nandú{n}ñ", f"{n}ñ")),
    lambda n: (f"card 41111111{n:08d}", (f"41111111{n:08d}",)),
    lambda n: (f"SELECT x{n}y FROM t{n}y WHERE z{n}y = 'p{n}w'", (f"x{n}y", f"t{n}y", f"p{n}w")),
    lambda n: (f"db{n}-prod.acme{n}.internal:3306", (f"db{n}-", f"acme{n}")),
    lambda n: (f"tok_{n}aZ$9", (f"tok_{n}aZ", f"{n}aZ$9")),
    lambda n: (f"name-{n}zz user-{n}zz", (f"{n}zz",)),
)


class Planter:
    """Puts another secret into each text of a value."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.cores: list[str] = []
        self.places: set[tuple[str, str]] = set()
        self.number = 100

    def secret(self) -> str:
        self.number += 1
        text, cores = self.rng.choice(SHAPES)(self.number)
        self.cores += cores
        return text

    def plant(self, value: Any, owner: type | None = None, field: str = "") -> Any:
        if isinstance(value, msgspec.Struct):
            kind = type(value)
            return kind(
                **{
                    name: self.plant(getattr(value, name), kind, name)
                    for name in kind.__struct_fields__
                }
            )
        if isinstance(value, (tuple, list)):
            return type(value)(self.plant(one, owner, field) for one in value)
        if isinstance(value, dict):
            return {self.secret(): self.plant(item, owner, field) for item in value.values()}
        if type(value) is not str or owner is None or (owner, field) in STAYS | NEEDED:
            return value
        self.places.add((owner.__name__, field))
        return self.secret()


def full_capture() -> Capture:
    """A capture with something in every text."""
    module = Module(0, "/opt/x/mysqld", 1, 2, 3, "ab12", False, "s", "c", "/d", "e")
    frame = Frame("f(int)", module, 5, 6, 7, "_Zf", False, 0, "/src/x.cc:7")
    thread = Thread(
        tid=11,
        frames=(frame,),
        kernel_frames=(Frame("futex_wait", kernel=True),),
        name="worker",
        state="S",
        label_reason="vfork",
        connection=7,
        lock=0,
        command="Query",
        activity="Sending data",
        query="SELECT 1",
        digest="ab",
        user="u",
        database="d",
        source="memory",
    )
    lock = Lock(0, 64, LockKind.ROW, symbol="shop.orders", created="a.c:1", mode="X", locked_at="b")
    process = Process(11, 1, 5, "mysqld", "/x", False, ("mysqld", "--password=x"), {"version": "8"})
    return Capture(
        backend="bpf",
        processes=(process,),
        threads=(thread,),
        locks=(lock,),
        modules=(module,),
        notes=(Note("code", "message"),),
        time_ns=START_NS,
        host={"nodename": "h", "release": "6.1", "cpus": 4},
        tool={"version": "1"},
        backend_reason="why",
        trigger=Trigger("threshold", "lock", "name", 5),
    )


def full_waits() -> list[Any]:
    """A line of waits with something in every text, and a notice."""
    key = Key(
        1, 1.0, 1.0, kind="sync", name="n", address="0x1", file_class="data",
        waiters=(WaiterStack(1, ("f",), label="l", comm="c"),),
        holders=(HolderStack(1, ("f",), comm="c", label="l"),),
    )  # fmt: skip
    event = Event("lock", "n", comm="c", address="0x2", waker=Waker(1, ("f",)), label="l")
    line = WaitLine(
        "stallscope.waits/1", 1.0, 1.0, {"lock": KindWaits(1, 1.0, 1.0)}, (key,), {"records": 0},
        targets=(Target(1, "c", "/e"),), source="bpf", events=(event,), server={"a": Hits(1)},
        programs=(ProgramState("p", True, "a", "w"),), rest=Rest(True, why="w"),
        history=(ThreadSample(START_NS, 1, (ThreadRow(1, "S", "futex", "k", "n", "c"),)),),
    )  # fmt: skip
    return [line, Notice("error", 1, "message", "/path")]


def full_incident() -> Incident:
    return Incident(
        id=incident(1).id,
        start_ns=START_NS,
        target=TargetEntry(4711, "mariadbd", 5, "/x", "mariadb", "10.11", "h"),
        verdict=Verdict(
            "s", "t", 0.5, 3, "b", remedy="r", statement="s", ending="e", effect="e", lines=("l",)
        ),
        origin=Origin("h", "b", 1),
        triggers=(Fired("t", "w", START_NS, 1.0, 2.0, Trigger("r", "k", "n")),),
        notes=(Note("c", "m"),),
        captures=(),
    )


def planted(dest: Path, planter: Planter) -> list[Any]:
    """An incident in a store, with a secret in each text of each file."""
    store = Store.open(dest)
    folder = store.begin(planter.plant(full_incident()))
    entry = CaptureEntry("", START_NS, "trigger", "t", sessions="s", verdict=Verdict("s", "t", 1.0))
    folder.add_capture(capturefile.dumps(planter.plant(full_capture())), planter.plant(entry))
    folder.append_samples([planter.plant(Sample("status", 1, 2, {"a": 1.0}, error="e"))])
    line, notice = full_waits()
    folder.append_waits([msgspec.json.encode(planter.plant(line))])
    type_ = {"type": planter.secret(), "message": planter.secret(), "more": planter.secret()}
    folder.append_waits([msgspec.json.encode(type_)])
    assert isinstance(notice, Notice)
    folder.append_raw_sql([planter.secret().encode()])
    for name in ("processlist", "innodb-status"):
        folder.add_text(name, "\n".join(planter.secret() for _ in range(30)))
    folder.add_text(f"Sekret{planter.number}.name", planter.secret())
    planter.cores.append(f"Sekret{planter.number - 1}.name")
    folder.finish(msgspec.structs.replace(folder.incident, end_ns=START_NS + 5))
    return [read_incident(folder.path)]


def contents(path: Path) -> dict[str, bytes]:
    """The files of a bundle, unpacked in each layer."""
    found = {}
    with tarfile.open(path) as archive:
        for member in archive.getmembers():
            if member.isfile():
                file = archive.extractfile(member)
                assert file is not None
                data = file.read()
                if member.name.endswith(".zst"):
                    data, torn = frames(data, 1 << 28)
                    assert torn is None
                found[member.name] = data
    return found


@pytest.mark.parametrize("seed", range(5))
def test_no_secret_is_in_a_redacted_bundle(tmp_path: Path, seed: int) -> None:
    planter = Planter(seed)
    stored = planted(tmp_path / "store", planter)
    out = tmp_path / "bundle.tar.gz"
    bundle.write(out, stored, redact=True)
    found = contents(out)
    text = b"\n".join([*found.values(), *(name.encode() for name in found)]).decode()
    text += text.encode().decode("unicode_escape", "ignore")
    left = [core for core in planter.cores if core.casefold() in text.casefold()]
    assert left == []
    assert not any(name.endswith(layout.RAW_SQL) for name in found)


def test_secrets_were_planted_everywhere() -> None:
    planter = Planter(1)
    for value in (full_capture(), full_incident(), *full_waits(), Sample("s", 1, 2, error="e")):
        planter.plant(value)
    planter.plant(CaptureEntry("", 1, "r", "t", sessions="s"))
    texts = {
        (kind.__name__, field.name)
        for kind in (Capture, Frame, Lock, Module, Process, Thread, Trigger, Note, TargetEntry,
                     Incident, CaptureEntry, Fired, Verdict, Origin, Sample, Key, Event, Target,
                     WaiterStack, HolderStack, ProgramState, Rest, ThreadRow, WaitLine, Notice)
        for field in msgspec.structs.fields(kind)
        if field.type in (str, str | None) or field.type == tuple[str, ...]
        if (kind, field.name) not in STAYS | NEEDED
    }  # fmt: skip
    assert texts - planter.places == {("Capture", "path")}, "it is in no file"


def test_an_unredacted_bundle_has_them(tmp_path: Path) -> None:
    """The test above can fail."""
    planter = Planter(7)
    stored = planted(tmp_path / "store", planter)
    out = tmp_path / "bundle.tar.gz"
    bundle.write(out, stored, redact=False)
    found = contents(out)
    text = b"\n".join(found.values()).decode()
    assert sum(core in text for core in planter.cores) > len(planter.cores) / 2
    assert any(name.endswith(layout.RAW_SQL) for name in found)


def example(dest: Path, many: int = 2) -> Store:
    store = Store.open(dest)
    for number in range(1, many + 1):
        fill(store, number, lambda _: None)
    return store


class Done(NamedTuple):
    code: int
    out: str
    err: str


Run = Callable[..., Done]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    return lambda *words: Done(main([*map(str, words)]), *capsys.readouterr())


def unpack(path: Path, to: Path) -> Path:
    to.mkdir(parents=True, exist_ok=True)
    subprocess.run(["tar", "-xf", path, "-C", to], check=True)
    return to / bundle.TOP


@pytest.mark.parametrize("redact", [True, False])
def test_a_bundle_is_a_store(run: Run, tmp_path: Path, redact: bool) -> None:
    example(tmp_path / "store")
    out = tmp_path / "out.tar.gz"
    more = ["--redact"] if redact else []
    ids = [incident(1).id, incident(2).id]
    done = run("incidents", "export", *ids, "--dest", tmp_path / "store", "--out", out, *more)
    assert done.code == 0, done.err
    assert done.out.startswith(f"{out}: 2 incidents, ")
    assert ("--redact" in done.err) is not redact
    assert stat.S_IMODE(out.stat().st_mode) == 0o600
    top = unpack(out, tmp_path / "there")
    found = listing(top)
    assert [one.id for one in found.incidents] == ids
    assert found.notes == []
    stored = read_incident(top / layout.INCIDENTS / ids[0])
    assert len(list(stored.captures())) == 3
    assert all(one.capture is not None for one in stored.captures())
    assert (len(stored.samples()), len(stored.waits())) == (70, 1)
    assert stored.notes == []
    shown = run("incidents", ids[0], "--dest", top)
    assert shown.code == 0, shown.err
    assert "A metadata lock" in shown.out
    report = tmp_path / "report.html"
    made = run("report", top / layout.INCIDENTS / ids[0], "-o", report)
    assert made.code == 3, "the example is partial"
    assert report.stat().st_size > 10_000
    one = Path(layout.INCIDENTS) / ids[0] / "captures" / "0001.jsonl.zst"
    before, after = (
        msgspec.json.decode(run("analyze", where / one, "--json").out)
        for where in (tmp_path / "store", top)
    )
    assert before["findings"]
    assert before["findings"] == after["findings"]


def test_the_same_incidents_make_the_same_bytes(tmp_path: Path) -> None:
    store = example(tmp_path / "store")
    stored = [read_incident(store.incidents / one.id) for one in store.listing().incidents]
    for redact in (True, False):
        both = [tmp_path / f"{redact}-{n}.tar.gz" for n in (1, 2)]
        for path in both:
            bundle.write(path, stored, redact=redact)
        assert both[0].read_bytes() == both[1].read_bytes()
    with gzip.open(both[0]) as file, tarfile.open(fileobj=io.BytesIO(file.read())) as archive:
        for member in archive.getmembers():
            assert (member.uid, member.uname, member.mtime) == (0, "", 0)
            assert member.name.startswith(bundle.TOP)


def test_one_name_for_one_thing(tmp_path: Path) -> None:
    store = Store.open(tmp_path)
    thread = msgspec.structs.replace(convoy().threads[0], user="Alice", database="status")
    capture = msgspec.structs.replace(convoy(), threads=(thread, *convoy().threads[1:]))
    with store.begin(incident(1)) as folder:
        folder.add_capture(capturefile.dumps(capture), CaptureEntry("", 1, "trigger"))
        folder.add_text("processlist", "1 Query alice status Waiting for table metadata lock")
        folder.finish(msgspec.structs.replace(folder.incident, end_ns=START_NS))
    out = tmp_path / "out.tar.gz"
    bundle.write(out, [read_incident(folder.path)], redact=True)
    again = read_incident(unpack(out, tmp_path / "x") / layout.INCIDENTS / incident(1).id)
    (one,) = again.captures()
    assert one.capture is not None
    assert one.capture.threads[0].user == "user-1"
    assert one.capture.threads[0].database == "schema-1"
    line = again.texts()["processlist"]
    assert line == "1 Query user-1 schema-1 Waiting for table metadata lock"


def test_usage(run: Run, tmp_path: Path) -> None:
    example(tmp_path / "store", 1)
    dest = ("--dest", tmp_path / "store")
    name = incident(1).id
    out = tmp_path / "out.tar.gz"
    for argv, said in (
        (("export",), "export which incidents"),
        (("export", "nothing", "--out", out), "no incident nothing"),
        ((name, "--redact"), "needs `export ID` or --ship"),
        ((name, name), "one ID at a time"),
        (("export", name, "--json"), "export takes IDs"),
    ):
        done = run("incidents", *argv, *dest)
        assert done.code == 2, argv
        assert said in done.err
        assert len(done.err.splitlines()) == 1
    assert not out.exists()
    out.write_text("mine")
    done = run("incidents", "export", name, "--redact", "--out", out, *dest)
    assert done.code == 1
    assert "--force" in done.err
    assert out.read_text() == "mine"
    assert run("incidents", "export", name, "--redact", "--out", out, "--force", *dest).code == 0


def test_a_capture_that_cannot_be_read_is_left_out_and_said(run: Run, tmp_path: Path) -> None:
    store = example(tmp_path / "store", 1)
    name = incident(1).id
    (store.incidents / name / "captures/0001.jsonl.zst").write_bytes(b"no capture of Sekret1")
    out = tmp_path / "out.tar.gz"
    done = run("incidents", "export", name, "--redact", "--out", out, "--dest", store.dest)
    assert done.code == 3
    assert "0001.jsonl.zst" in done.err
    assert not any(b"Sekret1" in data for data in contents(out).values())
    assert sum("captures/0" in file for file in contents(out)) == 2


def test_words_of_messages_and_signatures_stay() -> None:
    known = frozenset(FILE.read_text().split())
    assert not known & set(NAMES.split())
    missing = words() - known
    assert len(missing) < 0.05 * len(known), (
        "write them again with `.venv/bin/python -m tests.support.redactionwords`"
    )


@pytest.mark.parametrize(
    "text",
    [
        "Threads_running is 187, over 40; in 2 samples in a row",
        'thread 4711 "connection", waiting for a metadata lock since 12.5 s',
        "Waiting for table metadata lock",
        "no answer within 1.5 s at 14:50:03",
        "buf_pool.mutex at 0x7f0012ab, Innodb_row_lock_current_waits, 10.11.6-MariaDB",
        "",
    ],
)
def test_what_says_what_happened_stays(text: str) -> None:
    assert Names().text(text) == text


def test_any_text_is_taken() -> None:
    rng = random.Random(1)
    names = Names()
    for _ in range(300):
        text = "".join(
            chr(rng.choice((rng.randrange(128), rng.randrange(0x3000)))) for _ in range(80)
        )
        names.text(text)
        names.code(text)
    long = "a" * 200_000 + ":" * 50_000 + "1." * 50_000
    assert len(Names().text(long)) < 400_000


def test_the_file_is_removed_where_it_cannot_be_written(tmp_path: Path) -> None:
    store = example(tmp_path / "store", 1)
    stored = [read_incident(store.incidents / incident(1).id)]
    with pytest.raises(Exception, match="there is no directory"):
        bundle.write(tmp_path / "none" / "out.tar.gz", stored, redact=True)
    assert os.listdir(tmp_path) == ["store"]
