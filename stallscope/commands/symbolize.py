# SPDX-License-Identifier: Apache-2.0
"""Name the frames of a capture by build-id, on a machine that has the debug files."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from stallscope.base.errors import Exit, UsageError
from stallscope.base.text import one_line
from stallscope.collectors import packs, symbols
from stallscope.commands import _options
from stallscope.model import capturefile

__all__ = ["EPILOG", "add_arguments", "run"]

EPILOG = """\
examples:
  stallscope symbolize stall.jsonl.zst --debug-dir /usr/lib/debug -o named.jsonl.zst
  stallscope symbolize stall.jsonl.zst --pack-dir packs -o named.jsonl.zst
  DEBUGINFOD_URLS=https://debuginfod.debian.net stallscope symbolize stall.jsonl --debuginfod \\
      -o named.jsonl
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.add_argument("capture", type=Path, metavar="CAPTURE")
    parser.add_argument(
        "--debug-dir",
        type=Path,
        metavar="DIR",
        help="directory with .build-id/xx/….debug, like /usr/lib/debug",
    )
    _options.add_pack_argument(parser)
    parser.add_argument(
        "--debuginfod",
        action="store_true",
        help="fetch debug files from $DEBUGINFOD_URLS with debuginfod-find",
    )
    parser.add_argument("--all", action="store_true", help="replace existing names too")
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="write the new capture to FILE"
    )
    parser.add_argument("--force", action="store_true", help="replace FILE if it exists")


def run(args: argparse.Namespace) -> Exit:
    """Rewrite the capture; report on stderr what could not be named."""
    pack_dirs = _options.pack_dirs(args)
    has_packs = any(path.is_dir() for path in packs.directories(pack_dirs))
    if args.debug_dir is None and not args.debuginfod and not has_packs:
        raise UsageError(
            "no debug files and no packs: give --debug-dir DIR, --pack-dir DIR or --debuginfod"
        )
    if args.debug_dir is not None and not args.debug_dir.is_dir():
        raise UsageError(f"no directory {args.debug_dir}")
    capture = capturefile.read(args.capture)
    fetch = symbols.Debuginfod() if args.debuginfod else None
    result = symbols.symbolize(
        capture,
        debug_dir=args.debug_dir,
        pack_dirs=pack_dirs,
        fetch=fetch,
        again=args.all,
    )
    if args.output is not None:
        capturefile.write(result.capture, args.output, force=args.force)
    else:
        sys.stdout.buffer.write(capturefile.dumps(result.capture))
    for problem in result.problems:
        print(f"stallscope: {one_line(problem)}", file=sys.stderr)
    print(
        f"stallscope: {result.named} of {result.wanted} frames named"
        f" in {result.files} of {result.modules} files",
        file=sys.stderr,
    )
    return Exit.PARTIAL if result.problems else Exit.DONE
