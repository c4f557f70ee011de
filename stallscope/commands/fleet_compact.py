# SPDX-License-Identifier: Apache-2.0
"""Make one file a day of the files of a folder."""

from __future__ import annotations

import argparse
import sys

from stallscope.base import extras
from stallscope.base.errors import Exit, UsageError
from stallscope.base.text import one_line
from stallscope.commands import _fleet

__all__ = ["EPILOG", "add_arguments", "run"]

EPILOG = """\
examples:
  stallscope fleet compact file:///var/lib/fleet
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this part."""
    _fleet.add_place_arguments(parser, "url", "the folder, file:///folder")


def run(args: argparse.Namespace) -> Exit:
    """Make the files; print what they replace."""
    from stallscope.reporters import units

    (place,) = _fleet.places(args)
    path = place.address.path
    if path is None:
        raise UsageError(f"compact is for folders: {place.address.shown} merges its rows itself")
    extras.require("parquet", "stallscope fleet compact")
    from stallscope.fleet.engines import duckdbcompaction

    done = duckdbcompaction.compact(path)
    print(
        one_line(
            f"{place.address.shown}: {done.files_before} files of {units.size(done.bytes_before)}"
            f" are {done.days} of {units.size(done.bytes_after)} now, {done.rows} rows"
        )
    )
    for note in done.notes:
        print(f"stallscope: {one_line(note)}", file=sys.stderr)
    return Exit.PARTIAL if done.notes else Exit.DONE
