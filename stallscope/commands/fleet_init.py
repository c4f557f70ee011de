# SPDX-License-Identifier: Apache-2.0
"""Create the tables of a fleet, or bring them to this version."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from stallscope.base.errors import Exit, StallscopeError, UsageError
from stallscope.base.text import one_line
from stallscope.commands import _fleet

if TYPE_CHECKING:
    from stallscope.fleet.address import Address

__all__ = ["EPILOG", "add_arguments", "run"]

EPILOG = """\
examples:
  stallscope fleet init file:///var/lib/fleet
  stallscope fleet init clickhouse+https://admin@ch1:8443/stallscope
  stallscope fleet init clickhouse+https://admin@ch1:8443/stallscope --cluster fleet
"""

_CLUSTER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
_FOLDER_MODE = 0o750


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this part."""
    parser.add_argument(
        "--cluster",
        type=_cluster,
        metavar="NAME",
        help="create the tables on all nodes of this cluster of the server's configuration"
        " (remote_servers), replicated where it has a ZooKeeper",
    )
    _fleet.add_place_arguments(parser, "url", "the engine; may be given several times")


def run(args: argparse.Namespace) -> Exit:
    """Create what is not there; print a line for each thing that was done."""
    places = _fleet.places(args, several=True)
    servers = [place.address for place in places if place.address.path is None]
    if args.cluster and len(servers) < len(places):
        raise UsageError("--cluster is for ClickHouse, not for a folder")
    for place in places:
        if place.address.path is not None:
            print(one_line(f"{place.address.shown}: {_folder(place.address.path)}"))
    return _servers(servers, args.cluster or "", places[0].ca_file) if servers else Exit.DONE


def _servers(servers: Sequence[Address], cluster: str, ca_file: str) -> Exit:
    from stallscope.fleet.engines import clickhousetables

    report = clickhousetables.init(servers, cluster, ca_file=ca_file)
    where = " ".join(dict.fromkeys(address.shown for address in servers))
    for text in report.done:
        print(one_line(f"{where}: {text}"))
    if not report.done:
        print(one_line(f"{where}: the tables are there, of this version"))
    for text in report.wrong:
        print(f"stallscope: {one_line(text)}", file=sys.stderr)
    return Exit.PARTIAL if report.wrong else Exit.DONE


def _folder(path: Path) -> str:
    try:
        if path.is_dir():
            return "is there"
        path.mkdir(mode=_FOLDER_MODE, parents=True)
    except OSError as error:
        raise StallscopeError(f"cannot make {path}: {error.strerror or error}") from None
    return "created"


def _cluster(text: str) -> str:
    if _CLUSTER.fullmatch(text) is None:
        raise argparse.ArgumentTypeError(f"{one_line(text, 40)!r} is no name of a cluster")
    return text
