# SPDX-License-Identifier: Apache-2.0
"""Take one capture now, say what it shows, and keep it if asked."""

from __future__ import annotations

import argparse
from pathlib import Path

import msgspec

from stallscope import atomicfile, capturefile
from stallscope.analyzers import catalog
from stallscope.collectors import processes, snapshot
from stallscope.commands import _common
from stallscope.errors import Exit, UsageError
from stallscope.model import Capture

__all__ = ["EPILOG", "HELP", "add_arguments", "run"]

HELP = "take one capture of a live server now and name its stall"
EPILOG = """\
examples:
  stallscope snap -p mysqld
  stallscope snap -p mariadbd --socket /run/mysqld/mysqld.sock -o stall.jsonl.zst
  stallscope snap -p 1234 --json | jq -r '.findings[0].signature'
  stallscope snap --core core.1234 --exe /usr/sbin/mysqld
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    _common.add_target_arguments(parser)
    how = parser.add_argument_group("capture")
    how.add_argument(
        "--backend",
        choices=snapshot.BACKENDS,
        default="auto",
        help="how the stacks are taken; auto never stops a thread without --allow-stop",
    )
    how.add_argument(
        "--allow-stop",
        action="store_true",
        help="let auto take a backend that stops threads (ptrace, then gdb)",
    )
    how.add_argument(
        "--stop-blocked-reads",
        action="store_true",
        help="ptrace: stop threads blocked in a read too; their read may return EINTR",
    )
    how.add_argument("--core", type=Path, metavar="FILE", help="a core file instead of a process")
    how.add_argument("--exe", type=Path, metavar="FILE", help="the program of the core file")
    how.add_argument("--sysroot", type=Path, metavar="DIR", help="where the core's libraries are")
    how.add_argument("--debug-dir", type=Path, metavar="DIR", help="debug files by build-id")
    how.add_argument(
        "--deadline",
        type=_common.seconds,
        default=10.0,
        metavar="SECONDS",
        help="for the capture (default 10)",
    )
    how.add_argument("--max-threads", type=_common.count, metavar="N", help="default 65536")
    how.add_argument(
        "--max-stack", type=_common.count, metavar="BYTES", help="of each stack (default 131072)"
    )
    how.add_argument(
        "--passes", type=_common.count, metavar="N", help="reads of a thread that keeps running"
    )
    how.add_argument("--no-kernel-stacks", action="store_true", help="leave kernel frames out")
    how.add_argument(
        "--force-kernel",
        action="store_true",
        help="use BPF even on a kernel that is known to crash under it",
    )
    save = parser.add_argument_group("file")
    save.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="save the capture; .zst compresses it"
    )
    save.add_argument("--force", action="store_true", help="replace FILE where it exists")
    _common.add_report_arguments(parser)


def run(args: argparse.Namespace) -> Exit:
    """Capture, save, analyze, print."""
    _check(args)
    signatures = catalog.load(args.signatures)
    if args.output is not None:
        atomicfile.check_can_create(args.output, force=args.force)
    capture = _capture(args)
    if args.output is not None:
        capturefile.write(capture, args.output, force=args.force)
        capture = msgspec.structs.replace(capture, path=str(args.output))
    inputs: tuple[dict[str, str | int], ...] = ()
    if args.core is not None:
        inputs = ({"path": str(args.core), "format": "core", "captures": 1},)
    analysis = _common.analyze(capture, signatures, lines=args.lines, inputs=inputs)
    _common.print_report(analysis, args)
    return _common.exit_code(
        partial=bool(capture.notes),
        stall=bool(analysis.findings),
        fail_on_stall=args.fail_on_stall,
    )


def _check(args: argparse.Namespace) -> None:
    """Refuse words that contradict each other, before anything is touched."""
    selected = args.pid or _common.selector(args)
    if args.backend == "core" and args.core is None:
        raise UsageError("--backend core needs --core FILE")
    if args.core is not None and args.backend not in ("auto", "core"):
        raise UsageError(f"--core goes with --backend core, not {args.backend}")
    if args.core is not None and selected:
        raise UsageError("a capture is of a process or of a core file: give -p or --core")
    if args.core is None and (args.exe is not None or args.sysroot is not None):
        raise UsageError("--exe and --sysroot go with --core")


def _capture(args: argparse.Namespace) -> Capture:
    options = snapshot.Options(
        backend=args.backend,
        allow_stop=args.allow_stop,
        stop_blocked_reads=args.stop_blocked_reads,
        kernel_stacks=not args.no_kernel_stacks,
        max_threads=args.max_threads,
        max_stack=args.max_stack,
        passes=args.passes,
        seconds=args.deadline,
        debug_dir=args.debug_dir,
        force_kernel=args.force_kernel,
    )
    if args.core is not None:
        return snapshot.take_core(args.core, args.exe, args.sysroot, options)
    pids, servers = processes.resolve(args.pid, _common.selector(args))
    return snapshot.take(pids, servers, options)
