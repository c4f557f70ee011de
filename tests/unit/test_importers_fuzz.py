# SPDX-License-Identifier: Apache-2.0
"""For any content of a file, each importer returns a result, in time, or an error of one line.

One target an importer: its own examples, torn and mixed with pieces of all formats. Hypothesis
prints what reproduces a failure. For hours: tests/fuzz/fuzz_readers.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stallscope.analyzers import catalog, engine, importers
from stallscope.analyzers.importers import dump, gdb
from stallscope.base.errors import StallscopeError
from stallscope.model import capturefile
from stallscope.model.capture import Capture
from tests.unit.costs import cpu_seconds

pytestmark = pytest.mark.large

DATA = Path(__file__).parent.parent / "data" / "importers"
EXAMPLES = {path.stem: path.read_text() for path in sorted(DATA.glob("*.in"))}
FORMATS = {"gdb": gdb.load, **{known.name: known.load for known in importers.FORMATS}}
SECONDS = 10.0
SOON = 5.0
KNOWN = catalog.load()

PIECES = st.sampled_from(sorted({line for text in EXAMPLES.values() for line in text.split("\n")}))
WORDS = st.sampled_from(
    ["(", ")", "<", ">", "::", ";", ",", "|", "\t", "    ", "0x", "#0 ", "9" * 30, "\0", "\ufffd",
     "99999999999999999999", "-1", "é", "\\", '"', "'", "`", "*" * 27, "operator", "_Z", "[",
     "]: 5", "#1  0x1 in operator<< <a, b(c)> (x=<y>) from /lib/x",
     "#99999999999999999999 0x1 in x ()",
     "---Type <return> to continue---", "#0  <signal handler called>"]
)  # fmt: skip


def answer(text: str | bytes, name: str | None = None, seconds: float = SECONDS) -> list[Capture]:
    """Read the text by one importer, or as a file; an error must be one line, and soon."""
    captures: list[Capture] = []
    message = ""

    def read() -> None:
        nonlocal captures, message
        try:
            if isinstance(text, bytes):
                captures = importers.load(text, "fuzz")
            elif name is None:
                captures = importers.load(text.encode("utf-8", "replace"), "fuzz")
            else:
                captures, rest = FORMATS[name](text, "fuzz")
                assert len(rest) <= len(text) + 1
        except StallscopeError as error:
            message = str(error)

    assert cpu_seconds(read, seconds) < seconds
    assert "\n" not in message
    return captures


def check(captures: list[Capture]) -> None:
    """Analyze and write what was read: nothing in it may be out of bounds."""
    for capture in captures:
        engine.analyze(capture, KNOWN)
        for thread in capture.threads:
            assert len(thread.frames) <= dump.MAX_FRAMES
            assert thread.count >= 1
        (again,) = importers.load(capturefile.dumps(capture), "again")
        assert len(again.threads) == len(capture.threads)


@st.composite
def texts(draw: st.DrawFn, name: str) -> str:
    """Make text of a format's examples with damage."""
    own = [text for stem, text in EXAMPLES.items() if stem.startswith(name.split(" ")[0])]
    text = draw(st.sampled_from(own or list(EXAMPLES.values())))
    start = draw(st.integers(0, len(text)))
    text = text[start : start + 4000]
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, len(text)))
        new = draw(PIECES.map(lambda line: f"\n{line}\n") | WORDS | st.text(max_size=8))
        text = text[:at] + new + text[at + draw(st.integers(0, 60)) :]
    return text


@pytest.mark.parametrize("name", FORMATS)
@settings(max_examples=60)
@given(data=st.data())
def test_damaged_text(name: str, data: st.DataObject) -> None:
    check(answer(data.draw(texts(name)), name))


@given(st.binary(max_size=3000))
def test_any_bytes(data: bytes) -> None:
    answer(data)


@settings(max_examples=150)
@given(st.lists(PIECES | WORDS, max_size=40))
def test_lines_of_all_formats_together(lines: list[str]) -> None:
    check(answer("\n".join(lines)))


REPEATED = [
    "(", "<", "a<", "a::", "operator", ";", "a;", ",a", "|", "\t", " ", "0x1 ", "#0 ", "9", "`",
    "- ", '"\\', "_ZN1aI", "a,(", "a.b(", "[", "thread #1 ", "TID 1:", "@[", ": 1 ", "Thread 1 (",
]  # fmt: skip


@pytest.mark.parametrize("unit", REPEATED)
def test_one_long_line_is_read_in_time(unit: str) -> None:
    heads = [
        "#0  0x1 in f (",
        "  12 a,",
        "main;",
        '"t" #1 prio=1 ',
        "--Thread 1 has waited at ",
        "",
    ]
    for head in heads:
        answer(head + unit * (300_000 // len(unit)))


# In which dump, behind what, and what is repeated there.
GROWN = [
    ("crash-mysql8", "mysqld got ", "(a:1)"),
    ("crash-mariadb", "[ERROR] ", "1 anonymous"),
    ("drgn", "#3  _ZN5stall9in_lambdaEv+0x25/", "\t"),
    ("eu-stack-i", "__GI___libc_read", "\r"),
    ("folded", ";", "; "),
    ("lldb", " at ", "a at "),
    ("py-spy", "    inner (spy.py", " -"),
    ("py-spy", "Python v3.1", "0"),
    ("quickstack", "() from /usr/lib", "\t"),
]


@pytest.mark.parametrize(("stem", "where", "unit"), GROWN)
def test_a_line_that_grew_in_its_middle_is_read_in_time(stem: str, where: str, unit: str) -> None:
    text = EXAMPLES[stem]
    at = text.index(where) + len(where)
    answer(f"{text[:at]}{unit * (60_000 // len(unit))}{text[at:]}", seconds=SOON)


@pytest.mark.parametrize("unit", ["\n", "\r\n", " \n", "\x85\n"])
def test_nothing_but_blank_lines_is_read_in_time(unit: str) -> None:
    """They are what is left of a dump of thousands of threads."""
    answer(unit * 100_000, seconds=SOON)
    answer(EXAMPLES["gdb-bt-full"] + unit * 100_000, seconds=SOON)


@pytest.mark.parametrize("name", FORMATS)
def test_one_line_thousands_of_times(name: str) -> None:
    """No importer takes more than linear time over equal lines."""
    own = [text for stem, text in EXAMPLES.items() if stem.startswith(name.split(" ")[0])]
    lines = sorted({line for text in own for line in text.split("\n") if line.strip()})[:12]
    for line in lines:
        answer(f"{line}\n" * min(5_000, 1_000_000 // len(line)), name)
