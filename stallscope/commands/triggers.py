# SPDX-License-Identifier: Apache-2.0
"""Show what the agent captures for, check a file of triggers, or try one on recorded samples."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from stallscope.base.errors import Exit, UsageError
from stallscope.base.text import clean

if TYPE_CHECKING:
    from stallscope.collectors.triggers.dryrun import DryRun, TriggerRun
    from stallscope.collectors.triggers.settings import AgentSettings

__all__ = ["EPILOG", "add_arguments", "run"]

EPILOG = """\
examples:
  stallscope triggers > my-triggers.toml
  stallscope triggers --check my-triggers.toml
  stallscope triggers --check my-triggers.toml --try INCIDENT/samples.jsonl.zst
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.add_argument("--check", type=Path, metavar="FILE", help="check a trigger file")
    parser.add_argument(
        "--try",
        dest="samples",
        type=Path,
        action="append",
        default=[],
        metavar="SAMPLES",
        help="show which triggers fire on recorded samples; several files are read in order",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> Exit:
    """Print the defaults, or that a file is valid, or what fires."""
    from stallscope.collectors.triggers import triggerfile

    settings = triggerfile.defaults() if args.check is None else triggerfile.load(args.check)
    if args.samples:
        _print_tried(_tried(settings, args.samples), json=args.json)
    elif args.json:
        print(msgspec.json.encode(settings).decode())
    elif args.check is not None:
        names = ", ".join(trigger.name for trigger in settings.triggers) or "none"
        count = len(settings.triggers)
        print(f"{clean(str(args.check))}: no errors; {count} triggers are on: {names}")
    else:
        print(triggerfile.DEFAULTS.read_text(encoding="utf-8"), end="")
    return Exit.DONE


def _tried(settings: AgentSettings, paths: list[Path]) -> DryRun:
    from stallscope.collectors.triggers import recording
    from stallscope.collectors.triggers.dryrun import dry_run

    constants = {"host.cpus": float(os.cpu_count() or 1)}
    records = (record for path in paths for record in recording.read(path))
    result = dry_run(settings, records, constants)
    if not result.samples:
        raise UsageError(f"{clean(str(paths[0]))}: no samples; name an incident's samples file")
    return result


def _print_tried(result: DryRun, *, json: bool) -> None:
    from stallscope.collectors.triggers.dryrun import sentence

    if json:
        shown: list[dict[str, Any]] = [_as_json(tried) for tried in result.triggers]
        value = {"samples": result.samples, "seconds": result.seconds, "triggers": shown}
        print(msgspec.json.encode(value).decode())
        return
    print(f"{result.samples} samples of {result.seconds:.0f} seconds")
    width = max((len(tried.settings.name) for tried in result.triggers), default=0)
    for tried in result.triggers:
        print(f"  {tried.settings.name:<{width}}  {clean(sentence(tried))}")


def _as_json(tried: TriggerRun) -> dict[str, Any]:
    from stallscope.collectors.triggers.dryrun import sentence

    return {
        "name": tried.settings.name,
        "fired": tried.fired,
        "state": tried.state,
        "text": sentence(tried),
    }
