# SPDX-License-Identifier: Apache-2.0
"""The spool: its limit, its order and its counts, whatever happens to it."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stallscope.fleet import batch as batches
from stallscope.fleet.address import parse
from stallscope.fleet.shipping import spool as spooling
from stallscope.fleet.shipping.spool import Spool, folder_name, put_all, tidy
from tests.unit.shipfakes import names_of, stacks

__all__: list[str] = []


def contents(spool: Spool) -> list[list[str]]:
    found = []
    for one in spool.oldest(10_000):
        batch = spool.read(one)
        assert batch is not None
        found.append(names_of(batch))
    return found


@settings(max_examples=50)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("put"), st.integers(1, 5)),
            st.tuples(st.just("remove"), st.integers(0, 3)),
            st.tuples(st.just("kill"), st.just(0)),
        ),
        max_size=30,
    ),
    st.integers(1, 6),
)
def test_any_sequence_keeps_limit_order_and_counts(steps: list[tuple[str, int]], room: int) -> None:
    size = len(batches.dumps(stacks("0000")))
    limit = room * (size + 40)
    with tempfile.TemporaryDirectory() as above:
        spool = Spool(Path(above) / "one", limit)
        put = taken = 0
        expected: list[list[str]] = []
        for step, amount in steps:
            if step == "put":
                names = [f"{put:03d}{number}" for number in range(amount)]
                put += amount
                put_all(Path(above), [spool], stacks(*names))
                expected.append(names)
                while len(expected) > len(spool):
                    expected.pop(0)
            elif step == "remove":
                oldest = spool.oldest(amount)
                taken += sum(one.rows for one in oldest)
                spool.remove(oldest)
                del expected[: len(oldest)]
            else:
                (Path(above) / f".{'0' * 16}.tmp").write_bytes(b"torn")
                tidy(Path(above))
                spool = Spool(Path(above) / "one", limit)
            assert contents(spool) == expected
            assert spool.size <= limit
            on_disk = [one.stat().st_size for one in (Path(above) / "one").glob("*.zst")]
            assert sum(on_disk) == spool.size
            assert spool.counts.rows == put - taken - sum(map(len, expected))
        assert {one.name for one in Path(above).iterdir()} <= {"one"}


def test_files_are_the_owners_alone_and_one_file_for_all(tmp_path: Path) -> None:
    above = tmp_path / "ship"
    spools = [Spool(above / name, 1 << 20) for name in ("one", "two")]
    assert put_all(above, spools, stacks("a"))
    files = [next(iter((above / name).glob("*.zst"))) for name in ("one", "two")]
    assert os.path.samefile(*files)
    assert stat.S_IMODE(files[0].stat().st_mode) == 0o600
    for folder in (above, above / "one", above / "two"):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    spools[0].remove(spools[0].oldest(1))
    assert contents(spools[1]) == [["a"]]


def test_a_damaged_file_is_set_aside_and_counted(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "one", 1 << 20)
    put_all(tmp_path, [spool], stacks("a", "b"))
    put_all(tmp_path, [spool], stacks("c"))
    first = spool.oldest(1)[0]
    (tmp_path / "one" / first.name).write_bytes(b"\x28\xb5\x2f\xfdgarbage")
    again = Spool(tmp_path / "one", 1 << 20)
    assert again.read(again.oldest(1)[0]) is None
    assert contents(again) == [["c"]]
    assert (again.counts.damaged, again.counts.rows) == (1, 2)
    assert (tmp_path / "one" / f"{first.name}.damaged").exists()
    assert Spool(tmp_path / "one", 1 << 20).counts.damaged == 1


@pytest.mark.parametrize("content", [b"", b"{", b'{"rows": -1}', b"\xff" * 10, b"[1]"])
def test_damaged_counts_begin_again(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / spooling.COUNTS).write_bytes(content)
    spool = Spool(tmp_path / "one", 1 << 20)
    assert spool.counts.rows == 0
    assert put_all(tmp_path, [spool], stacks("a"))


def test_a_folder_that_cannot_be_written_drops_and_counts(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    above = tmp_path / "file" / "ship"
    spool = Spool(above / "one", 1 << 20)
    caplog.clear()
    for _ in range(3):
        assert not put_all(above, [spool], stacks("a", "b"))
    assert (spool.counts.rows, spool.counts.batches) == (6, 3)
    assert len(caplog.messages) == 1, "it is said once"


def test_a_full_disk_drops_and_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spool = Spool(tmp_path / "one", 1 << 20)

    def full(path: Path, data: bytes) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(spooling, "_write", full)
        assert not put_all(tmp_path, [spool], stacks("a"))
    assert "No space left" in spool.counts.why
    assert put_all(tmp_path, [spool], stacks("b"))
    assert contents(spool) == [["b"]]
    assert spool.counts.rows == 1


def test_links_and_foreign_names_are_left_alone(tmp_path: Path) -> None:
    folder = tmp_path / "one"
    folder.mkdir()
    (folder / "000000000001-1.zst").symlink_to("/etc/passwd")
    (folder / "999999999999-1.zst").write_bytes(b"")
    (folder / "notes.txt").write_text("mine")
    spool = Spool(folder, 1 << 20)
    assert len(spool) == 0
    put_all(tmp_path, [spool], stacks("a"))
    assert contents(spool) == [["a"]]
    assert (folder / "notes.txt").exists()


def test_the_folder_is_named_without_the_password() -> None:
    with_one = folder_name(parse("clickhouse+http://u:secret@h/db"))
    assert with_one == folder_name(parse("clickhouse+http://u:other@h/db"))
    assert with_one != folder_name(parse("clickhouse+http://v:secret@h/db"))
    assert "secret" not in with_one


def test_a_kill_leaves_whole_batches(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path;"
        "from stallscope.fleet.shipping.spool import Spool, put_all;"
        "from tests.unit.shipfakes import stacks;"
        "above = Path(sys.argv[1]); spools = [Spool(above / n, 1 << 30) for n in 'ab'];"
        "[(put_all(above, spools, stacks(f'{i:05d}')), print(i, flush=True))"
        " for i in range(99999)]"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)],
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[2],
        text=True,
    ) as child:
        assert child.stdout is not None
        said = [int(child.stdout.readline()) for _ in range(30)]
        child.send_signal(signal.SIGKILL)
        rest = child.stdout.read().split("\n")[:-1]
    last = max([*said, *map(int, rest)])
    tidy(tmp_path)
    for name in "ab":
        found = contents(Spool(tmp_path / name, 1 << 30))
        assert found[: last + 1] == [[f"{number:05d}"] for number in range(last + 1)]
    assert {one.name for one in tmp_path.iterdir()} == {"a", "b"}
