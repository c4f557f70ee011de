# SPDX-License-Identifier: Apache-2.0
"""Damage what Python reads: ``fuzz_readers.py TARGET [--seed N] [--seconds N] [FILE...]``.

As tests/fuzz/driver.c: each example unchanged, then damaged copies for so many seconds of CPU time.
The seed is printed and repeats the run; an input that fails is written to a file in the current
folder. ``--seconds 0 FILE`` runs it again, alone.
"""

from __future__ import annotations

import argparse
import random
import resource
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from stallscope.analyzers import catalog, engine, importers
from stallscope.analyzers.importers import gdb
from stallscope.base.errors import StallscopeError
from stallscope.model import capturefile, memory, rings, waitlines

__all__ = ["TARGETS", "examples"]

CPU_SECONDS = 20
"""Of one input."""
MEMORY = 3 << 30
DATA = Path(__file__).parents[1] / "data"
CORPUS = Path(__file__).parent / "corpus"
KNOWN = catalog.load()
SMALL_CAPTURES = 8
SPECIAL = (
    b"0", b"-1", b"1e999", b"9" * 30, b"null", b"{}", b"[" * 2000, b'"', b"\\u0000", b"\xff", b"\n",
    b"#0  0x1 in operator<< <a, b(c)> (x=<y>) from /lib/x\n", b"(", b"<", b"::", b"true",
)  # fmt: skip


def refusal(read: Callable[..., object], *arguments: object) -> str:
    """Return the error of one line with which something is refused, "" without one."""
    try:
        read(*arguments)
    except StallscopeError as error:
        said = str(error)
    else:
        said = ""
    if "\n" in said:
        raise AssertionError(said)
    return said


def _capture(data: bytes) -> None:
    capture = capturefile.loads(capturefile.decompress(data, "fuzz"), "fuzz")
    engine.analyze(capture, KNOWN)
    written = capturefile.dumps(capture)
    assert capturefile.dumps(capturefile.loads(written, "fuzz")) == written


def _text(data: bytes) -> None:
    for capture in importers.load(data, "fuzz"):
        engine.analyze(capture, KNOWN)


def _formats(data: bytes) -> None:
    text = data.decode("utf-8", "replace")
    for load in (gdb.load, *(known.load for known in importers.FORMATS)):
        refusal(load, text, "fuzz")


def _lines(data: bytes) -> None:
    for number, line in enumerate(data.splitlines(), 1):
        refusal(waitlines.loads, line, "fuzz", number)
        refusal(memory.decode_growth, line)
    rings.loads(data)


class Target(NamedTuple):
    """What is damaged, and who reads it."""

    run: Callable[[bytes], None]
    files: Callable[[], list[Path]]


def _captures() -> list[Path]:
    found = DATA.glob("corpus/*/capture.jsonl.zst")
    return sorted(found, key=lambda path: (path.stat().st_size, path))[:SMALL_CAPTURES]


def _texts() -> list[Path]:
    return [*sorted(DATA.glob("importers/*.in")), *sorted((CORPUS / "importers").iterdir())]


TARGETS = {
    "captures": Target(_capture, _captures),
    "importers": Target(_text, _texts),
    "formats": Target(_formats, _texts),
    "lines": Target(_lines, lambda: sorted((CORPUS / "lines").iterdir())),
}


def examples(target: Target) -> list[bytes]:
    """Return the examples of a target, as text: damage to compressed data goes no further."""
    return [capturefile.decompress(path.read_bytes(), path.name) for path in target.files()]


def damaged(chance: random.Random, inputs: list[bytes]) -> bytes:
    """Return one of the inputs with bytes, words and parts of others in it."""
    data = bytearray(chance.choice(inputs))
    for _ in range(chance.randrange(1, 12)):
        at = chance.randrange(len(data) + 1)
        length = chance.choice((1, 8, 64, 1024))
        match chance.randrange(7):
            case 0:
                data[at : at + 1] = chance.randbytes(1)
            case 1:
                data[at : at + chance.randrange(9)] = chance.choice(SPECIAL)
            case 2:
                del data[at : at + chance.randrange(length)]
            case 3:
                other = chance.choice(inputs)
                start = chance.randrange(len(other) + 1)
                data[at : at + chance.randrange(length)] = other[start : start + length]
            case 4:
                data[at:at] = data[at : at + length] * chance.randrange(1, 4)
            case 5:  # numbers are what readers count with
                digits = [i for i, byte in enumerate(data[at : at + 64], at) if 48 <= byte < 58]
                if digits:
                    data[digits[0] : digits[0] + 1] = chance.choice(SPECIAL[:5])
            case _:
                # A whole line less, twice, or elsewhere.
                lines = bytes(data).splitlines(keepends=True)
                if lines:
                    lines.insert(chance.randrange(len(lines)), chance.choice(lines))
                    del lines[chance.randrange(len(lines))]
                data = bytearray(b"".join(lines))
    return bytes(data)


def check(target: Target, data: bytes) -> None:
    """Read the input, or raise what is no error of one line."""
    signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
    try:
        refusal(target.run, data)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def _late(*_: object) -> None:
    raise AssertionError(f"an input took {CPU_SECONDS} s of CPU time")


def main() -> int:
    """Run one target."""
    parser = argparse.ArgumentParser()
    parser.add_argument("target", choices=sorted(TARGETS))
    parser.add_argument("--seed", type=int, default=time.time_ns())
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--rounds", type=int, help="so many damaged copies, in place of a time")
    parser.add_argument("files", nargs="*", type=Path)
    asked = parser.parse_args()
    target = TARGETS[asked.target]
    inputs = [path.read_bytes() for path in asked.files] or examples(target)
    chance = random.Random(asked.seed)
    print(f"seed {asked.seed}", file=sys.stderr, flush=True)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    signal.signal(signal.SIGPROF, _late)
    executions = 0
    while executions < len(inputs) or (
        time.process_time() < asked.seconds
        if asked.rounds is None
        else executions < len(inputs) + asked.rounds
    ):
        data = inputs[executions] if executions < len(inputs) else damaged(chance, inputs)
        try:
            check(target, data)
        except BaseException:
            path = Path(f"fuzz-readers-{asked.target}-{asked.seed}.input").resolve()
            path.write_bytes(data)
            print(f"seed {asked.seed}, execution {executions}: the input is in {path}")
            raise
        executions += 1
    print(f"{executions} executions, {len(inputs)} inputs")
    return 0


if __name__ == "__main__":
    sys.exit(main())
