# SPDX-License-Identifier: Apache-2.0
"""Option files: against the clients' own reading of them, and with what hostile people write."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from stallscope.base.errors import UsageError
from stallscope.collectors.sql import optionfiles, optionlines
from stallscope.collectors.sql.optionfiles import GROUPS, Sources, read
from tests.support.chance import SEED
from tests.support.servers import PATIENCE, program

pytestmark = pytest.mark.usefixtures("private_umask")

EMPTY_ENVIRONMENT = {"HOME": "/nonexistent"}
FIRST = "would have been started with the following arguments:"


def by_us(path: Path, groups: tuple[str, ...], environment: dict[str, str]) -> bytes | None:
    """Return the options as my_print_defaults prints them; None where they are given up."""
    sources = Sources(defaults_file=str(path))
    try:
        found = read(sources, groups=groups, environment=environment)
    except UsageError:
        return None
    return b"".join(argument + b"\n" for argument in arguments(found))


def arguments(found: optionfiles.Found) -> list[bytes]:
    return [
        b"--"
        + os.fsencode(setting.name)
        + (b"" if setting.value is None else b"=" + os.fsencode(setting.value))
        for setting in found.settings
    ]


def by_client(path: Path, groups: tuple[str, ...], environment: dict[str, str]) -> bytes | None:
    tool = program("my_print_defaults")
    if tool is None:
        pytest.skip("no my_print_defaults here: run scripts/setup")
    done = subprocess.run(
        [tool, f"--defaults-file={path}", *groups],
        capture_output=True,
        env=environment,
        cwd=path.parent,
        timeout=PATIENCE,
    )
    return done.stdout if done.returncode == 0 else None


def by_mariadb(path: Path, environment: dict[str, str]) -> bytes | None:
    tool = program("mariadb")
    if tool is None:
        pytest.skip("no mariadb client here: run scripts/setup")
    done = subprocess.run(
        [tool, f"--defaults-file={path}", "--print-defaults"],
        capture_output=True,
        env=environment,
        timeout=PATIENCE,
    )
    if done.returncode != 0:
        return None
    return done.stdout.split(FIRST.encode() + b"\n", 1)[1]


BY_HAND = {
    "plain": "[client]\nuser=a\npassword = b \n[mysql]\nuser=c\n",
    "escapes": "[client]\np=a\\\\b\\\"c\\'d\\se\\nf\\tg\\bh\\ri\\qj\\\nq=\\\n",
    "names with escapes": "[client]\nuser\\q = 1\nus#er=2\n",
    "groups": "[ client]\nu=1\n[client ]\nu=2\n[client] x\nu=3\n[CLIENT]\nu=4\n"
    "[clients]\nu=5\n[]\nu=6\n",
    "open group": "[client]\nu=1\n[client\nu=4\n",
    "no group": "user=1\n[client]\nuser=2\n",
    "comments": "[client]\n#u=1\n ; u=2\nu=3 # c\nu=4;c\nu='5 # c'\nu=\"6' # c\"\nu=7'8#9'\n",
    "quotes": "[client]\np=\"a\nq='\nr=''\ns=\"\"\nt='a\"\nu=\"'a'\"\nv='x' y'\nw='a\\'b#c'\n",
    "escaped quotes": "[client]\na='x\\\\' # c\nb=\"x\\\"y#z\" # c\nc=\\'x # y\n",
    "no value": "[client]\nskip-ssl\nloose-foo \n quick#x\nuser=\nx = \n",
    "duplicates": "[client]\nu=1\n[mysql]\nu=2\n[client]\nu=3\nu=4\n",
    "windows": "[client]\r\nuser=1\r\n[mysql]\r\nx='2'\r\n",
    "latin1 blanks": "[client]\n\u00a0u=1\n",
    "bare directives": "[client]\n!\n!foo\n!includes x\nu=1\n",
    "include without path": "[client]\nu=1\n!include\nu=2\n",
    "missing include": "[client]\n!include /nonexistent\nu=1\n",
    "missing folder": "[client]\n!includedir /nonexistent\nu=1\n",
    "last line": "[client]\nuser=abc",
    "empty": "",
    "spaces": "  \n\t[client]\n\t user \t=\t a b \t\n",
    "separators": "[client]\nu = = 1 =\nu==\n",
    "long line": "[client]\nuser=" + "x" * 5000 + "\nv=2\n",
    "long comment": "[client]\n#" + "x" * 5000 + "=1\nv=2\n",
    "edge 4093": "[client]\nw=" + "y" * 4091 + "\nv=2\n",
    "edge 4094": "[client]\nw=" + "y" * 4092 + "\nv=2\n",
    "edge 4095": "[client]\nw=" + "y" * 4093 + "\nv=2\n",
}


@pytest.mark.parametrize("name", BY_HAND)
def test_by_hand_as_the_clients(name: str, tmp_path: Path) -> None:
    path = tmp_path / "t.cnf"
    path.write_bytes(BY_HAND[name].encode("latin1" if "latin1" in name else "utf-8"))
    for groups in (("client",), ("client", "mysql"), GROUPS):
        expected = by_client(path, groups, EMPTY_ENVIRONMENT)
        assert by_us(path, groups, EMPTY_ENVIRONMENT) == expected
    found = by_mariadb(path, EMPTY_ENVIRONMENT)
    ours = by_us(path, GROUPS, EMPTY_ENVIRONMENT)
    if ours is None:
        assert found is None
    else:
        read_ = read(Sources(defaults_file=str(path)), environment=EMPTY_ENVIRONMENT)
        assert found == b"".join(a + b" " for a in arguments(read_)) + b"\n"


def test_nul_as_the_clients(tmp_path: Path) -> None:
    path = tmp_path / "t.cnf"
    path.write_bytes(b"[client]\nuser=1\x002\nv=\x00\n\x00w=1\nx=2\n")
    expected = by_client(path, ("client",), EMPTY_ENVIRONMENT)
    assert expected
    assert by_us(path, ("client",), EMPTY_ENVIRONMENT) == expected


def test_included_folder_as_the_clients(tmp_path: Path) -> None:
    folder = tmp_path / "d"
    folder.mkdir()
    for name in (
        "b.cnf",
        "B.cnf",
        "a10.cnf",
        "a2.cnf",
        "z.ini",
        "c.conf",
        ".h.cnf",
        "x.y.cnf",
        "x.cnf.bak",
        ".cnf",
        "cnf",
        "e.cnf~",
        "\u00e4.cnf",
    ):
        (folder / name).write_text(f"[client]\nx={name}\n")
    (folder / "sub.cnf").mkdir()
    (folder / "broken.cnf").write_text("[client]\nbefore=1\n[oops\nafter=1\n")
    (folder / "open.cnf").write_text("[client]\nopen=1\n")
    (folder / "open.cnf").chmod(0o666)
    path = tmp_path / "t.cnf"
    for spelled in (str(folder), f"{folder}/", " " + str(folder) + " "):
        path.write_text(f"[client]\nu=1\n!includedir {spelled}\nv=2\n")
        expected = by_client(path, ("client",), EMPTY_ENVIRONMENT)
        assert expected is not None
        assert b"--x=a10.cnf\n--x=a2.cnf\n" in expected
        assert by_us(path, ("client",), EMPTY_ENVIRONMENT) == expected


def test_includes_as_the_clients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other.cnf").write_text("[client]\no=1\n[x]\nq=1\n")
    home = {"HOME": str(tmp_path)}
    monkeypatch.setenv("HOME", str(tmp_path))
    path = tmp_path / "t.cnf"
    for line in (
        "other.cnf\n",
        "./other.cnf\n",
        "~/other.cnf\n",
        f"{tmp_path}/other.cnf\n",
        f"{tmp_path}/other.cnf",
        f"  {tmp_path}/other.cnf  # c\n",
        "t.cnf\n",
        "\n",
    ):
        path.write_text(f"[client]\nu=1\n!include {line}")
        assert by_us(path, ("client",), home) == by_client(path, ("client",), home)
    path.write_text(f"[client]\n!include {path}\n!include {path}\nu=1\n")
    # Twice itself, ten deep: 2047 readings, of which ours stop earlier.
    found = read(Sources(defaults_file=str(path)), environment=home)
    assert len(found.files) == optionfiles.MAX_FILES


def test_default_files_as_the_clients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their order: system, MYSQL_HOME, extra, home; also suffixes of groups."""
    home, other, extra = tmp_path / "home", tmp_path / "other", tmp_path / "extra.cnf"
    for folder in (home, other):
        folder.mkdir()
    groups = "[client]\n{0}=1\n[clientx]\n{0}x=1\n[mysql]\n{0}m=1\n"
    (home / ".my.cnf").write_text(groups.format("home"))
    (other / "my.cnf").write_text(groups.format("other"))
    extra.write_text(groups.format("extra"))
    tool = program("my_print_defaults")
    if tool is None:
        pytest.skip("no my_print_defaults here: run scripts/setup")
    for environment in (
        {"HOME": str(home)},
        {"HOME": str(home), "MYSQL_HOME": str(other)},
        {"HOME": str(home), "MARIADB_HOME": str(other)},
        {"HOME": str(home), "MYSQL_GROUP_SUFFIX": "x"},
        {"HOME": str(home), "MARIADB_GROUP_SUFFIX": "x"},
    ):
        for words, sources in (
            ([], Sources()),
            ([f"--defaults-extra-file={extra}"], Sources(defaults_extra_file=str(extra))),
            (["--defaults-group-suffix=x"], Sources(group_suffix="x")),
            ([f"--defaults-file={extra}"], Sources(defaults_file=str(extra))),
        ):
            done = subprocess.run(
                [tool, *words, "client"], capture_output=True, env=environment, timeout=PATIENCE
            )
            found = read(sources, groups=("client",), environment=environment)
            ours = b"".join(argument + b"\n" for argument in arguments(found))
            assert ours == done.stdout, (environment, words)


pieces = st.one_of(
    st.sampled_from(
        [
            "user",
            "pass word",
            "skip-ssl",
            "a_b",
            "=",
            " = ",
            "'",
            '"',
            "\\",
            "\\n",
            "\\s",
            "\\'",
            '\\"',
            "\\\\",
            "#",
            " # ",
            ";",
            "[",
            "]",
            "!",
            " ",
            "\t",
            "\x0b",
            "\x0c",
            "\r",
            "x",
            "\u00a0",
            "\u00e4",
            "%",
            "~",
            "--",
            "1",
        ]
    ),
    st.text(alphabet=st.characters(min_codepoint=1, max_codepoint=255), max_size=4),
)
lines = st.one_of(
    st.sampled_from(
        [
            "[client]",
            "[mysql]",
            "[other]",
            "[client",
            "!include t2.cnf",
            "!includedir nowhere",
            "!include",
            "",
        ]
    ),
    st.lists(pieces, max_size=8).map("".join),
    st.lists(pieces, min_size=1, max_size=8).map(lambda p: "user=" + "".join(p)),
)


def usable(line: str) -> bool:
    """Leave out what makes the clients read before their buffer: a line that begins with ``=``."""
    data = line.encode("latin1")
    text = data.lstrip(b"\t\n\v\f\r \xa0")
    return not text.startswith(b"=") and b"\n" not in data and b"]" not in text[:1]


@seed(SEED)
@settings(max_examples=60, suppress_health_check=list(HealthCheck))
@given(st.lists(st.lists(lines.filter(usable), max_size=12), min_size=10, max_size=40))
@pytest.mark.large
def test_generated_as_the_clients(
    tmp_path_factory: pytest.TempPathFactory, files: list[list[str]]
) -> None:
    """Each file stands by itself, and one includes them all: one run of the client."""
    folder = tmp_path_factory.mktemp("generated", numbered=True)
    here = os.getcwd()
    os.chdir(folder)
    try:
        (folder / "t2.cnf").write_bytes(b"[client]\nincluded=1\n")
        main = folder / "main.cnf"
        text = b""
        for number, content in enumerate(files):
            path = folder / f"f{number}.cnf"
            path.write_bytes(b"[client]\n" + "\n".join(content).encode("latin1") + b"\n")
            text += b"!include %s\n[client]\nend=%d\n" % (os.fsencode(path), number)
        main.write_bytes(text)
        groups = ("client", "mysql")
        assert by_us(main, groups, EMPTY_ENVIRONMENT) == by_client(main, groups, EMPTY_ENVIRONMENT)
    finally:
        os.chdir(here)


@seed(SEED)
@settings(max_examples=300)
@given(st.binary(max_size=400))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    try:
        items = list(optionlines.parse(b"[client]\n" + data))
    except optionlines.LineError:
        return
    assert len(items) <= data.count(b"\n") + 2


def test_limits(tmp_path: Path) -> None:
    path = tmp_path / "t.cnf"
    with path.open("wb") as file:
        file.truncate(optionfiles.MAX_BYTES + 1)
    with pytest.raises(UsageError, match="more than"):
        read(Sources(defaults_file=str(path)), environment=EMPTY_ENVIRONMENT)
    path.write_bytes(b"[client]\n" + b"a=1\n" * (optionfiles.MAX_SETTINGS + 1))
    with pytest.raises(UsageError, match="more than"):
        read(Sources(defaults_file=str(path)), environment=EMPTY_ENVIRONMENT)
    fifo = tmp_path / "fifo.cnf"
    os.mkfifo(fifo)
    with pytest.raises(UsageError, match="no regular file"):
        read(Sources(defaults_file=str(fifo)), environment=EMPTY_ENVIRONMENT)
    with pytest.raises(UsageError, match="No such file"):
        read(Sources(defaults_file=str(tmp_path / "none")), environment=EMPTY_ENVIRONMENT)


def test_what_everybody_can_write_is_ignored(tmp_path: Path) -> None:
    path = tmp_path / "t.cnf"
    path.write_text("[client]\nuser=1\n")
    path.chmod(0o606)
    found = read(Sources(defaults_file=str(path)), environment=EMPTY_ENVIRONMENT)
    assert found.settings == ()
    assert found.notes == (f"{path} is ignored because everybody can write to it",)


def test_passwords_stay_out_of_repr(tmp_path: Path) -> None:
    path = tmp_path / "t.cnf"
    path.write_text("[client]\npassword=secret7\n")
    found = read(Sources(defaults_file=str(path)), environment=EMPTY_ENVIRONMENT)
    assert found.settings[0].value == "secret7"
    assert "secret7" not in repr(found)
