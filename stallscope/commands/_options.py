# SPDX-License-Identifier: Apache-2.0
"""Options that several commands have. The agent uses some of them, and must use little memory:
import nothing large here.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from stallscope.base.errors import UsageError
from stallscope.commands._numbers import port

__all__ = [
    "WAIT_BACKENDS",
    "add_force_kernel_argument",
    "add_inproc_arguments",
    "add_pack_argument",
    "add_place_arguments",
    "add_ring_argument",
    "add_signatures_argument",
    "add_target_arguments",
    "add_uprobes_argument",
    "pack_dirs",
]


WAIT_BACKENDS = ("auto", "bpf", "inproc", "poll")


def add_inproc_arguments(parser: argparse._ActionsContainer) -> None:
    """Add the options of commands that watch waits."""
    parser.add_argument(
        "--backend",
        choices=WAIT_BACKENDS,
        default="auto",
        help="how waits are seen; bpf: BPF programs; inproc: the in-process library; poll: polling"
        " /proc; auto: the first of them that works",
    )
    add_ring_argument(parser)


def add_ring_argument(parser: argparse._ActionsContainer) -> None:
    """Add the option that names a ring."""
    parser.add_argument(
        "--ring",
        type=Path,
        metavar="FILE|DIR",
        help="inproc: the server's ring, or its directory (default: search the usual ones)",
    )


def add_pack_argument(parser: argparse._ActionsContainer) -> None:
    """Add the option for directories of packs."""
    parser.add_argument(
        "--pack-dir",
        type=Path,
        action="append",
        default=[],
        metavar="DIR",
        help="directory of packs (stallscope pack), before the user's own and"
        " /usr/share/stallscope/packs",
    )


def pack_dirs(args: argparse.Namespace) -> tuple[Path, ...]:
    """Return the directories that were given."""
    for path in args.pack_dir:
        if not path.is_dir():
            raise UsageError(f"--pack-dir {path}: no such directory")
    return tuple(args.pack_dir)


def add_signatures_argument(parser: argparse._ActionsContainer) -> None:
    """Add the option for the user's own signatures."""
    parser.add_argument(
        "--signatures",
        type=Path,
        action="append",
        default=[],
        metavar="DIR",
        help="also read signatures (*.toml) from DIR",
    )


def add_force_kernel_argument(parser: argparse._ActionsContainer) -> None:
    """Add the option for kernels that are refused."""
    parser.add_argument(
        "--force-kernel",
        action="store_true",
        help="use BPF even on a kernel that it is known to crash",
    )


def add_uprobes_argument(parser: argparse._ActionsContainer) -> None:
    """Add the option that disables uprobes."""
    parser.add_argument(
        "--no-uprobes",
        action="store_true",
        help="set no uprobes in the server's functions: its code is not modified",
    )


def add_target_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that name servers."""
    group = parser.add_argument_group("server")
    group.add_argument(
        "-p",
        "--pid",
        action="append",
        default=[],
        metavar="PID|NAME",
        help="process id or program name; may be given several times",
    )
    add_place_arguments(group)


def add_place_arguments(group: argparse._ActionsContainer) -> None:
    """Add the options that name a server by its address or data directory."""
    group.add_argument(
        "--socket", metavar="PATH", help="the server that listens on this Unix socket"
    )
    group.add_argument(
        "--port", type=port, metavar="N", help="the server that listens on this TCP port"
    )
    group.add_argument("--datadir", metavar="DIR", help="the server with this data directory")
