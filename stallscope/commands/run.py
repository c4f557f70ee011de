# SPDX-License-Identifier: Apache-2.0
"""Start a program with libstallscope.so preloaded."""

from __future__ import annotations

import argparse
import os
import signal
from pathlib import Path

from stallscope.base.errors import Exit, StallscopeError, UsageError
from stallscope.collectors import preload
from stallscope.commands._numbers import count, threshold

__all__ = ["EPILOG", "add_arguments", "run"]

EPILOG = """\
examples:
  stallscope run -- mysqld --defaults-file=/etc/mysql/my.cnf
  stallscope run --ring-dir /run/stallscope --threshold 50 --threshold fsync=20 -- mariadbd
  stallscope run --off -- mysqld --user=mysql

Then, as the same user: stallscope snap -p mysqld --backend inproc
"""

_MAX_THREADS = 16384
"""STALL_RING_MAX_SLOTS of inproc/ring.h."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.add_argument(
        "--ring-dir",
        type=Path,
        metavar="DIR",
        help="directory of the ring (default: /run/stallscope, or a directory of the user)",
    )
    parser.add_argument(
        "--threshold",
        action="append",
        default=[],
        type=_threshold,
        metavar="[K=]MS",
        help="record longer waits with their stacks (default 100)",
    )
    parser.add_argument(
        "--threads", type=_threads, metavar="N", help="maximum number of threads to record"
    )
    parser.add_argument(
        "--keep-ring", action="store_true", help="keep the ring when the program exits cleanly"
    )
    parser.add_argument(
        "--off", action="store_true", help="record nothing until `stallscope inproc on`"
    )
    parser.add_argument(
        "program",
        nargs=argparse.PARSER,
        metavar="COMMAND",
        help="program and arguments, after --",
    )


def _threads(text: str) -> int:
    value = count(text)
    if not 1 <= value <= _MAX_THREADS:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 to {_MAX_THREADS}")
    return value


def _threshold(text: str) -> str:
    if not threshold(text).rpartition("=")[2].isdigit():
        raise argparse.ArgumentTypeError(f"{text!r}: the library takes whole milliseconds")
    return text


def run(args: argparse.Namespace) -> Exit:
    """Execute the program in this process; return only where that fails."""
    words: list[str] = args.program[1:] if args.program[0] == "--" else args.program
    if not words:
        raise UsageError("which program? see `stallscope run --help`")
    library = preload.find()
    path = preload.resolve(words[0])
    preload.check_program(path)
    preload.check_folder(args.ring_dir)
    environment = preload.environment(library, os.environ) | _settings(args)
    for ignored in (
        signal.SIGPIPE,
        signal.SIGXFSZ,
    ):  # ignored by Python; the program would inherit that
        signal.signal(ignored, signal.SIG_DFL)
    try:
        os.execve(path, words, environment)  # noqa: S606
    except OSError as error:
        raise StallscopeError(f"cannot run {path}: {error.strerror or error}") from error


def _settings(args: argparse.Namespace) -> dict[str, str]:
    """Return the environment variables that the library reads (inproc/recorder.h)."""
    settings = {}
    if args.ring_dir is not None:
        settings["STALLSCOPE_RUNTIME_DIR"] = str(args.ring_dir.absolute())
    if args.threshold:
        settings["STALLSCOPE_THRESHOLD"] = ",".join(args.threshold)
    if args.threads is not None:
        settings["STALLSCOPE_THREADS"] = str(args.threads)
    if args.keep_ring:
        settings["STALLSCOPE_KEEP_RING"] = "1"
    if args.off:
        settings["STALLSCOPE_OFF"] = "1"
    return settings
