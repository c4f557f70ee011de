# SPDX-License-Identifier: Apache-2.0
"""Packs: made by the real probe of programs of several compilers, and read."""

from __future__ import annotations

import json
import random
import re
import shutil
import struct
import subprocess
import zlib
from pathlib import Path

import pytest

from stallscope.base.errors import Exit, StallscopeError
from stallscope.collectors import packs, probe
from stallscope.main import main
from stallscope.model import capturefile
from stallscope.model.capture import Capture, Frame, Module, Process, Thread
from tests.support.chance import SEED

__all__: list[str] = []

pytestmark = pytest.mark.needs("probe", "cc")

BUILD_ID = "abcdef0123456789"
SOURCE = """\
#include <cstddef>
#include <cstdio>

struct ilink {
	ilink *next, *prev;
	virtual ~ilink() {}
};
template <class T> struct sux_lock {
	T lock;
	union {
		int writer;
		struct {
			short low, high;
		};
	};
	static int count;
};
struct Security_context {
	char user[16];
};
struct Statement : ilink {
	struct {
		char *str;
		unsigned long length;
	} query;
	int bits : 3;
};
class THD : public Statement
{
      public:
	sux_lock<long> lock;
	const volatile Security_context main_security_ctx{};
	THD *other;
};
typedef struct {
	THD *thd;
	sux_lock<int> mutex[2];
} mutex_t;
namespace other
{
struct String {
	char *text;
};
} // namespace other

static THD LOCK_thd;
static mutex_t LOCK_open;
other::String text;

__attribute__((noinline)) static int work(int a) { return a * 7 + 1; }

#define SAY(type, member) printf(#type "." #member "=%zu\\n", offsetof(type, member))
#define SIZE(type) printf(#type "#size=%zu\\n", sizeof(type))

int main(int argc, char **)
{
	LOCK_open.thd = &LOCK_thd;
	SAY(THD, next);
	SAY(THD, prev);
	SAY(THD, query);
	SAY(THD, query.length);
	SAY(THD, lock.lock);
	SAY(THD, lock.writer);
	SAY(THD, lock.low);
	SAY(THD, lock.high);
	SAY(THD, main_security_ctx);
	SAY(THD, main_security_ctx.user);
	SAY(THD, other);
	SAY(Statement, query.str);
	SAY(mutex_t, mutex);
	SIZE(THD);
	SIZE(Statement);
	SIZE(mutex_t);
	printf("sux_lock<int>.high=%zu\\n", offsetof(sux_lock<int>, high));
	return work(argc) == 0 || text.text || LOCK_open.mutex[1].high;
}
"""
# Of the class itself, not of what it is made of.
ABSENT = {"THD.bits", "THD.lock.count", "THD.other.next", "mutex_t.mutex.lock", "String#size"}
WAYS = [
    ("g++", "-gdwarf-2"),
    ("g++", "-gdwarf-3"),
    ("g++", "-gdwarf-4", "-fdebug-types-section"),
    ("g++", "-gdwarf-5"),
    ("g++", "-gdwarf-5", "-gz"),
    ("g++", "-g", "-flto"),
    ("clang++", "-gdwarf-4", "-fstandalone-debug"),
    ("clang++", "-gdwarf-5"),
]


def build(folder: Path, compiler: str, *options: str, build_id: str = f"0x{BUILD_ID}") -> Path:
    if shutil.which(compiler) is None:
        pytest.skip(f"no {compiler}")
    folder.mkdir(exist_ok=True)
    (folder / "work.cc").write_text(SOURCE)
    argv = [compiler, "-O1", "-Wno-invalid-offsetof", f"-Wl,--build-id={build_id}", *options]
    subprocess.run([*argv, "-o", "work", "work.cc"], cwd=folder, check=True)
    return folder / "work"


def pack(*words: object) -> int:
    return main(["pack", *map(str, words)])


def pairs(text: str) -> dict[str, int]:
    return {key: int(value) for key, _, value in (line.partition("=") for line in text.split())}


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("program"), "g++", "-g")


@pytest.fixture(scope="module")
def made(program: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("packs")
    assert pack(program, "-o", folder) == Exit.DONE
    return folder / f"{BUILD_ID}.pack"


@pytest.mark.parametrize("way", WAYS, ids=" ".join)
def test_layouts_are_those_of_the_compiler(tmp_path: Path, way: tuple[str, ...]) -> None:
    program = build(tmp_path, *way)
    assert pack(program, "-o", tmp_path) == Exit.DONE
    found = packs.layout(tmp_path / f"{BUILD_ID}.pack")
    expected = pairs(subprocess.check_output([program], text=True))
    assert len(expected) == 17
    assert {key: found.get(key) for key in expected} == expected
    assert found.keys().isdisjoint(ABSENT)


def test_split_debugging_information_is_said_to_be_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = build(tmp_path, "g++", "-g", "-gsplit-dwarf")
    assert pack(program, "-o", tmp_path, "--json") == Exit.DONE
    (row,) = json.loads(capsys.readouterr().out)["packs"]
    assert ".dwo" in row["layouts_missing"]
    assert row["structures"] == 0
    assert row["functions"] > 5


def test_a_separate_debug_file_gives_the_same_pack(
    made: Path, program: Path, tmp_path: Path
) -> None:
    debug = tmp_path / "work.debug"
    subprocess.run(["objcopy", "--only-keep-debug", program, debug], check=True)
    assert pack(debug, "-o", tmp_path) == Exit.DONE
    assert packs.layout(tmp_path / made.name) == packs.layout(made)
    assert packs.header(tmp_path / made.name).functions == packs.header(made).functions


def test_the_debug_file_of_a_stripped_program_is_used(
    made: Path, program: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stripped = tmp_path / "work"
    subprocess.run(["strip", "-o", stripped, program], check=True)
    debug = tmp_path / ".build-id" / BUILD_ID[:2] / f"{BUILD_ID[2:]}.debug"
    debug.parent.mkdir(parents=True)
    subprocess.run(["objcopy", "--only-keep-debug", program, debug], check=True)
    assert pack(stripped, "-o", tmp_path, "--debug-dir", tmp_path, "--json") == Exit.DONE
    (row,) = json.loads(capsys.readouterr().out)["packs"]
    assert row["debug_file"] == str(debug)
    assert packs.layout(tmp_path / made.name) == packs.layout(made)


def test_a_program_without_build_id_and_its_stripped_copy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = build(tmp_path, "g++", "-g", "-rdynamic", build_id="none")
    stripped, other = tmp_path / "stripped", tmp_path / "other"
    subprocess.run(["strip", "-o", stripped, program], check=True)
    identities = []
    for file in (program, stripped):
        assert pack(file, "-o", tmp_path, "--force", "--json") == Exit.DONE
        (row,) = json.loads(capsys.readouterr().out)["packs"]
        identities.append(row["identity"])
    assert identities[0] == identities[1]
    assert re.fullmatch("crc32-[0-9a-f]{8}-[0-9a-f]+", identities[0])
    assert packs.find(identities[0], [tmp_path]) == tmp_path / f"{identities[0]}.pack"
    # Its code is not in a debug file, so nothing says whose it is.
    subprocess.run(["objcopy", "--only-keep-debug", program, other], check=True)
    assert pack(other, "-o", tmp_path) == Exit.FAILED
    assert "no build-id" in capsys.readouterr().err


def test_a_capture_is_named_by_a_pack(
    made: Path, program: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = subprocess.check_output(["nm", "-C", program], text=True)
    address = re.search(r"^([0-9a-f]+) t work\(int\)", words, re.MULTILINE)
    assert address is not None
    module = Module(process=0, path="/usr/sbin/work", build_id=BUILD_ID, symbols="none")
    frame = Frame(module=module, offset=int(address[1], 16) + 1, pc=1)
    capture = Capture(
        backend="bpf",
        processes=(Process(pid=1),),
        threads=(Thread(tid=1, frames=(frame,)),),
        modules=(module,),
    )
    before, after = tmp_path / "before.jsonl", tmp_path / "after.jsonl"
    capturefile.write(capture, before)
    assert main(["symbolize", str(before), "--pack-dir", str(made.parent), "-o", str(after)]) == 0
    capsys.readouterr()
    named = capturefile.read(after)
    assert [(f.symbol, f.symbol_offset) for f in named.threads[0].frames] == [("work(int)", 1)]
    assert (named.modules[0].symbols, named.modules[0].debug_file) == ("pack", str(made))
    # By name and content of another build.
    shutil.copy(made, tmp_path / "00112233.pack")
    other = b"1 0x10 00112233\n"
    out = probe.run(["symbolize", "--pack-dir", str(tmp_path)], seconds=60, stdin=other)
    assert "another build" in json.loads(out)["error"]


def test_what_cannot_be_packed(
    tmp_path: Path, program: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = pack("/etc/passwd", program, "/no/such", tmp_path, "-o", tmp_path / "packs", "--json")
    assert code == Exit.PARTIAL
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert found["schema"] == "stallscope.pack/1"
    assert [row["identity"] for row in found["packs"]] == [BUILD_ID]
    assert [row["file"] for row in found["failed"]] == ["/etc/passwd", "/no/such", str(tmp_path)]
    assert len(err.splitlines()) == 3
    # Nothing is replaced unless asked, and nothing is left behind.
    assert pack(program, "-o", tmp_path / "packs") == Exit.FAILED
    assert "--force" in capsys.readouterr().err
    assert pack(program, "-o", tmp_path / "packs", "--force") == Exit.DONE
    assert [path.name for path in (tmp_path / "packs").iterdir()] == [f"{BUILD_ID}.pack"]
    assert ((tmp_path / "packs" / f"{BUILD_ID}.pack").stat().st_mode & 0o777) == 0o644


def test_packs_of_the_user(program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    assert packs.directories([tmp_path]) == [tmp_path, packs.SYSTEM]
    assert pack(program) == Exit.DONE
    own = tmp_path / "data" / "stallscope" / "packs"
    assert packs.directories([tmp_path]) == [tmp_path, own, packs.SYSTEM]
    assert packs.find(BUILD_ID, packs.directories()) == own / f"{BUILD_ID}.pack"
    assert packs.probe_options() == ["--pack-dir", str(own)]
    monkeypatch.setenv("XDG_DATA_HOME", "not/absolute")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert packs.own_directory() == tmp_path / ".local/share/stallscope/packs"
    monkeypatch.delenv("HOME")
    assert packs.own_directory() is None


def test_find_takes_no_path(made: Path) -> None:
    assert packs.find(BUILD_ID, [Path("/no/such"), made.parent]) == made
    for name in ("", "..", f"../{made.parent.name}/{BUILD_ID}", BUILD_ID.upper(), "abc"):
        assert packs.find(name, [made.parent]) is None


def signed(data: bytearray) -> bytes:
    """Return it with the right checksum, as an attacker would write it."""
    (size,) = struct.unpack_from("<I", data, 12)
    data[24:28] = bytes(4)
    struct.pack_into("<I", data, 24, zlib.crc32(data[:size]))
    return bytes(data)


def test_damaged_packs_are_refused_in_one_line(made: Path, tmp_path: Path) -> None:
    chance = random.Random(SEED)
    good = made.read_bytes()
    right = packs.layout(made)
    path = tmp_path / "damaged.pack"
    refused = 0
    for _ in range(600):
        data = bytearray(good)
        for _ in range(chance.randrange(1, 4)):
            at = chance.randrange(chance.choice((340, 700, len(data))))
            data[at : at + 4] = chance.choice(
                (bytes(4), b"\xff" * 4, chance.randbytes(1), struct.pack("<I", 1 << 31))
            )
        if chance.random() < 0.2:
            del data[chance.randrange(len(data)) :]
        path.write_bytes(signed(data) if len(data) > 400 and chance.random() < 0.5 else data)
        found, said = layout_or_error(path)
        if said is None:
            assert found == right or not found
        else:
            refused += 1
            assert "\n" not in said
            assert str(path) in said
    assert refused > 300


def layout_or_error(path: Path) -> tuple[dict[str, int], str | None]:
    try:
        return packs.layout(path), None
    except StallscopeError as error:
        return {}, str(error)


def test_what_is_no_pack(tmp_path: Path, made: Path) -> None:
    for content in (b"", b"STLLPACK", b"\x7fELF" + bytes(500), made.read_bytes()[:300]):
        (tmp_path / "no.pack").write_bytes(content)
        with pytest.raises(packs.PackError):
            packs.layout(tmp_path / "no.pack")
    data = bytearray(made.read_bytes())
    data[8] = 9
    (tmp_path / "no.pack").write_bytes(data)
    with pytest.raises(packs.PackError, match="format 9"):
        packs.layout(tmp_path / "no.pack")
    for path in (tmp_path, Path("/no/such"), Path("/dev/null")):
        with pytest.raises(packs.PackError):
            packs.layout(path)


def test_a_directory_that_is_not_there_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["snap", "-p", "1", "--pack-dir", "/no/such"]) == Exit.USAGE
    assert "/no/such" in capsys.readouterr().err
