# SPDX-License-Identifier: Apache-2.0
"""``stallscope waits`` with a program in the place of the probe."""

from __future__ import annotations

import codecs
import json
import os
import pty
import re
import select
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from stallscope.base.errors import Exit
from stallscope.collectors import waits
from stallscope.main import main
from tests.support.servers import PATIENCE, wait_until
from tests.unit.programs import python_program
from tests.unit.waitsamples import value_of

CHECKOUT = Path(__file__).resolve().parents[2]
LINES = {name: value_of(name) for name in ("stalled", "final")}

# Writes the lines of a file in its folder, then the final one: at once, or when asked to end.
_PROBE = """\
import json, os, signal, sys
folder = os.path.dirname(os.path.abspath(sys.argv[0]))
with open(folder + "/arguments", "w") as file:
    json.dump(sys.argv[1:], file)
def final(*_):
    os.write(1, open(folder + "/final", "rb").read())
    os._exit({code})
signal.signal(signal.SIGTERM, final)
os.write(1, open(folder + "/lines", "rb").read())
if {wait}:
    words = sys.stdin.readline()
    while words:
        with open(folder + "/words", "a") as file:
            file.write(words)
        words = sys.stdin.readline()
    os._exit(9)
final()
"""

Fake = Callable[..., None]


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fake:
    """Return a function that makes the probe, which says these lines."""

    def make(*lines: dict[str, Any], wait: bool = False, code: int = 0) -> None:
        said = lines or (LINES["stalled"],)
        (tmp_path / "lines").write_bytes(b"".join(json.dumps(x).encode() + b"\n" for x in said))
        (tmp_path / "final").write_bytes(json.dumps(LINES["final"]).encode() + b"\n")
        program = python_program(tmp_path / "probe", _PROBE.format(wait=wait, code=code))
        monkeypatch.setenv("STALLSCOPE_PROBE", str(program))

    return make


@pytest.fixture
def here() -> str:
    """Return the process to watch; the fake probe never reads it."""
    return str(os.getpid())


def test_screens_and_totals(fake: Fake, here: str, capsys: pytest.CaptureFixture[str]) -> None:
    fake(LINES["stalled"], LINES["stalled"])
    assert main(["waits", "-p", here]) == Exit.DONE
    out = capsys.readouterr().out
    assert out.count("187 threads wait for mutex LOCK_open now") == 3, "the totals begin so too"
    assert "last 1 s of 2 s watched" in out
    assert out.rindex("totals of 61.2 s") > out.rindex("last 1 s")
    assert "\x1b" not in out
    assert max(map(len, out.splitlines())) <= 80


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (
            {"source": "bpf", "call_added_ns": 44.8},
            "about 45 ns for each system call on this host.",
        ),
        ({"source": "bpf"}, "by how much was not measured."),
        ({"source": "poll", "sampled": True}, "/proc is polled: this uses up to 5 % of a CPU and"),
        ({"source": "inproc"}, "slows down no system call."),
    ],
)
def test_the_first_line_says_what_it_costs(
    fake: Fake, here: str, capsys: pytest.CaptureFixture[str], more: dict[str, Any], said: str
) -> None:
    fake({**LINES["stalled"], **more}, LINES["stalled"])
    assert main(["waits", "-p", here]) == Exit.DONE
    out = " ".join(capsys.readouterr().out.split())
    assert out.count(said) == 1
    assert out.index(said) < 150


def test_json_passes_lines_through(
    fake: Fake, here: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    fake({**LINES["stalled"], "weather": [1, 2.50, "é"]})
    assert main(["waits", "-p", here, "--json"]) == Exit.DONE
    out = capsys.readouterr().out
    assert out.encode() == (tmp_path / "lines").read_bytes() + (tmp_path / "final").read_bytes()


def test_what_the_probe_says_between_its_lines(
    fake: Fake, here: str, capsys: pytest.CaptureFixture[str]
) -> None:
    fake(
        {"type": "ready"},
        LINES["stalled"],
        {"type": "error", "message": "no process 7\x1b[2J"},
        {"type": "ended", "pid": 7},
    )
    assert main(["waits", "-p", here, "--json"]) == Exit.DONE
    captured = capsys.readouterr()
    assert [json.loads(line)["type"] for line in captured.out.splitlines()] == ["waits"] * 2
    assert captured.err == "stallscope: no process 7\\x1b[2J\n"


def test_what_was_lost_is_done_in_part(
    fake: Fake, here: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fake(code=3)
    final = {**LINES["final"], "lost": {"ring-full": 12}}
    (tmp_path / "final").write_bytes(json.dumps(final).encode() + b"\n")
    assert main(["waits", "-p", here]) == Exit.PARTIAL
    assert "12 ring-full" in capsys.readouterr().out


def test_the_options_reach_the_probe(
    fake: Fake, here: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fake()
    words = (
        f"waits -p {here} --interval 0.5 --duration 90 --kind fsync --kind lock --threshold 20"
        " --threshold fsync=2.5 --top 7 --events --no-uprobes --force-kernel"
    )
    assert main(words.split()) == Exit.DONE
    arguments = json.loads((tmp_path / "arguments").read_bytes())
    assert " ".join(arguments) == (
        f"waits --backend auto --pid {here} --force --interval 500 --top 200 --no-uprobes"
        " --threshold 20 --threshold fsync=2.5 --duration 90.000 --kind fsync --kind lock --events"
    )


@pytest.mark.parametrize(
    "words",
    [
        "",
        "-p mysqld --kind spoon",
        "-p mysqld --threshold spoon=1",
        "-p mysqld --threshold fsync=",
        "-p mysqld --threshold 1e3",
        "-p mysqld --threshold -1",
        "-p mysqld --threshold 3600001",
        "-p mysqld --interval 0",
        "-p mysqld --duration nan",
        "-p mysqld --top 0",
    ],
)
def test_wrong_words(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["waits", *words.split()]) == Exit.USAGE
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        (b"garbage\n", "line 1 is not stallscope.waits/1"),
        (b"", "ended without its final line"),
        (json.dumps(LINES["final"]).encode() * 2 + b"\n", "line 1 is not"),
        (b"\n".join([json.dumps(LINES["final"]).encode()] * 2) + b"\n", "follows the final one"),
    ],
)
def test_a_probe_that_talks_nonsense_is_one_line(
    fake: Fake,
    here: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    lines: bytes,
    why: str,
) -> None:
    fake()
    (tmp_path / "lines").write_bytes(lines)
    (tmp_path / "final").write_bytes(b"")
    assert main(["waits", "-p", here]) == Exit.FAILED
    err = capsys.readouterr().err
    assert why in err
    assert err.count("\n") == 1


def test_a_probe_that_dies_is_one_line(
    here: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    program = python_program(tmp_path / "probe", "import os; os.kill(os.getpid(), 9)")
    monkeypatch.setenv("STALLSCOPE_PROBE", str(program))
    assert main(["waits", "-p", here]) == Exit.FAILED
    assert capsys.readouterr().err.endswith("killed by signal 9; try again, or another --backend\n")


def test_metrics(fake: Fake, here: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fake(LINES["stalled"], LINES["stalled"])
    path = tmp_path / "stalls.prom"
    before = os.umask(0o077)
    try:
        assert main(["waits", "-p", here, "--prometheus", str(path)]) == Exit.DONE
        assert main(["waits", "-p", here, "--prometheus", str(path)]) == Exit.DONE
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    text = path.read_text()
    assert re.search(r'_count\{kind="mutex",server="[^"]+"\} 62\.0\n', text)
    assert "in_flight" not in text
    assert {p.name for p in tmp_path.iterdir()} == {
        "arguments",
        "final",
        "lines",
        "probe",
        path.name,
    }
    assert capsys.readouterr().err == ""


def test_metrics_replace_nothing_else(
    fake: Fake, here: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fake()
    other = tmp_path / "precious.prom"
    other.write_text("node_up 1\n")
    assert main(["waits", "-p", here, "--prometheus", str(other)]) == Exit.FAILED
    assert "does not contain stallscope metrics" in capsys.readouterr().err
    assert other.read_text() == "node_up 1\n"
    assert main(["waits", "-p", here, "--prometheus", "/dev/null"]) == Exit.FAILED


def test_metrics_that_cannot_be_written_any_more(
    fake: Fake,
    here: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The watch goes on, and says so once."""
    fake(LINES["stalled"], LINES["stalled"])
    folder = tmp_path / "metrics"
    folder.mkdir()
    program = (tmp_path / "probe").read_text()
    (tmp_path / "probe").write_text(
        program.replace("import json", f"import os; os.rmdir({str(folder)!r})\nimport json", 1)
    )
    code = main(["waits", "-p", here, "--prometheus", str(folder / "a.prom")])
    captured = capsys.readouterr()
    assert code == Exit.PARTIAL
    assert captured.err.count("no directory") == 1
    assert "totals of" in captured.out


def test_a_metrics_file_that_nobody_reads(
    fake: Fake, here: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fake()
    assert main(["waits", "-p", here, "--prometheus", str(tmp_path / "stalls.txt")]) == Exit.DONE
    assert "names end in .prom" in capsys.readouterr().err


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Return a function that starts the command; what runs at the end of the test is ended."""
    processes: list[subprocess.Popen[str]] = []

    def begin(*words: str, **options: Any) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "stallscope", "waits", *words]
        process = subprocess.Popen(
            command,
            cwd=CHECKOUT,
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            **{"stdout": subprocess.PIPE, **options},
        )
        processes.append(process)
        return process

    yield begin
    for process in processes:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_end_it_with_the_totals(
    fake: Fake, here: str, start: Callable[..., subprocess.Popen[str]], number: int
) -> None:
    fake(wait=True)
    process = start("-p", here, "--json")
    assert process.stdout is not None
    assert json.loads(process.stdout.readline())["keys"]
    process.send_signal(number)
    out, err = process.communicate(timeout=PATIENCE)
    assert json.loads(out)["final"]
    assert (process.returncode, err) == (0, "")


def test_a_second_ctrl_c_interrupts(
    fake: Fake, here: str, start: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    fake(wait=True)
    # It does not care to be asked, and says when it was.
    text = (tmp_path / "probe").read_text()
    deaf = "def final(*_):\n    os.write(1, open(folder + '/lines', 'rb').read())\n    return"
    (tmp_path / "probe").write_text(text.replace("def final(*_):", deaf))
    process = start("-p", here, "--json")
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(signal.SIGINT)
    process.stdout.readline()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    assert err == "stallscope: interrupted\n"


def test_a_reader_that_has_seen_enough(
    fake: Fake, here: str, start: Callable[..., subprocess.Popen[str]]
) -> None:
    fake(*[LINES["stalled"]] * 200, wait=True)
    process = start("-p", here, "--json")
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.wait(PATIENCE) == 0
    assert process.stderr is not None
    assert process.stderr.read() == ""


SLEEPER = """\
import signal
print("ready", flush=True)
while True:
    signal.pause()
"""


class Sleepers:
    """Processes of one name, one after the other."""

    def __init__(self, folder: Path) -> None:
        # Its command line distinguishes it from all others of its program.
        self.name = f"slp{os.getpid()}"
        self.program = os.path.basename(os.path.realpath(sys.executable))
        self._path = folder / self.name
        self._path.symlink_to(sys.executable)
        self.process: subprocess.Popen[str] | None = None

    def begin(self) -> int:
        self.process = subprocess.Popen(
            [str(self._path), "-c", SLEEPER], stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n"
        return self.process.pid

    def end(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.communicate()
            self.process = None


@pytest.fixture
def sleepers(tmp_path: Path) -> Iterator[Sleepers]:
    made = Sleepers(tmp_path)
    yield made
    made.end()


class Screen:
    """What is sent to the terminal."""

    def __init__(self, start: Callable[..., subprocess.Popen[str]], *words: str) -> None:
        self._master, slave = pty.openpty()
        self.process = start(*words, stdout=slave)
        os.close(slave)
        self.text = ""
        # What is read at once can end within a character.
        self._decoder = codecs.getincrementaldecoder("utf-8")()

    def until(self, text: str) -> None:
        """Read until this was sent."""
        while text not in self.text:
            ready, _, _ = select.select([self._master], [], [], PATIENCE)
            assert ready, f"not shown: {text!r}; shown: {self.text!r}"
            self.text += self._decoder.decode(os.read(self._master, 65536))

    def rest(self) -> str:
        """Read to the end."""
        while True:
            try:
                data = os.read(self._master, 65536)
            except OSError:  # EIO: nobody writes any more
                break
            self.text += self._decoder.decode(data)
        os.close(self._master)
        return self.text


@pytest.mark.parametrize("colour", [True, False])
def test_a_terminal_is_drawn_in_place(
    fake: Fake,
    sleepers: Sleepers,
    start: Callable[..., subprocess.Popen[str]],
    monkeypatch: pytest.MonkeyPatch,
    colour: bool,
) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("LINES", "30")
    monkeypatch.delenv("NO_COLOR", raising=False)
    if not colour:
        monkeypatch.setenv("NO_COLOR", "1")
    fake(wait=True)
    screen = Screen(start, "-p", str(sleepers.begin()))
    screen.until("187 threads wait for")
    screen.process.send_signal(signal.SIGINT)
    text = screen.rest()
    assert screen.process.wait(PATIENCE) == 0
    assert "totals of 61.2 s" in text
    assert "\x1b[?25h" in text  # the cursor is back
    assert ("\x1b[1;31m" in text) == colour


def test_a_dumb_terminal_gets_plain_text(
    fake: Fake,
    here: str,
    start: Callable[..., subprocess.Popen[str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TERM", "dumb")
    fake()
    screen = Screen(start, "-p", here)
    text = screen.rest()
    assert "\x1b" not in text
    assert "totals of 61.2 s" in text


def test_a_server_that_is_back_is_followed(
    fake: Fake, sleepers: Sleepers, start: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    fake(wait=True)
    first = sleepers.begin()
    process = start("--follow", sleepers.name, "--json")
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.readline()
    assert "--follow" in json.loads((tmp_path / "arguments").read_bytes())
    sent: list[str] = []
    for _ in range(2):
        sleepers.end()
        assert process.stderr.readline() == (
            f"stallscope: {sleepers.program} (pid {first}) has ended; waiting for it\n"
        )
        first = sleepers.begin()
        assert process.stderr.readline() == (
            f"stallscope: watching {sleepers.program} (pid {first})\n"
        )
        sent.append(f"target {first}\n")
    words = tmp_path / "words"
    wait_until(
        lambda: words.exists() and words.read_text() == "".join(sent), "the probe got the lines"
    )
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE)
    assert json.loads(out)["final"]
    assert (process.returncode, err) == (0, "")


def test_the_end_of_the_server_is_said(
    fake: Fake, sleepers: Sleepers, start: Callable[..., subprocess.Popen[str]]
) -> None:
    fake(wait=True)
    pid = sleepers.begin()
    process = start("-p", str(pid), "--json")
    assert process.stdout is not None
    process.stdout.readline()
    sleepers.end()
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=PATIENCE)
    assert err == f"stallscope: {sleepers.program} (pid {pid}) has ended\n"


def test_signals_are_as_they_were() -> None:
    before = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    ended = []
    with waits.ended_by_signals(lambda: ended.append(1)):
        os.kill(os.getpid(), signal.SIGTERM)
    assert ended == [1]
    assert before == [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]


def test_a_signal_that_is_ignored_stays_so() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with waits.ended_by_signals(lambda: None):
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
