# SPDX-License-Identifier: Apache-2.0
"""Where an agent ships its incidents to: from options and settings to what sends them."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import msgspec

from stallscope.base.errors import UsageError
from stallscope.collectors.triggers.settings import AgentSettings
from stallscope.fleet import address
from stallscope.fleet.settings import PASSWORD, ShipSettings, check, has_password
from stallscope.fleet.shipping.shipper import Shipper, Target
from stallscope.fleet.shipping.targets import targets

__all__ = ["FOLDER", "add_argument", "settings_of", "shipper", "targets_of", "url"]

FOLDER = "ship"
"""Of the spools, in the folder of what the store keeps of a server."""


def url(text: str) -> str:
    """Return an address that may be on a command line. Raises: ArgumentTypeError, whose message has
    no password."""
    if has_password(text):
        raise argparse.ArgumentTypeError(
            "a password on a command line is seen by all users of the host: write the address into"
            " a file, with url-file in [ship], or give password-file there"
        )
    try:
        address.parse(text)
    except UsageError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def add_argument(parser: argparse._ActionsContainer) -> None:
    """Add the option of ``watch`` and ``cron``."""
    parser.add_argument(
        "--ship",
        type=url,
        action="append",
        metavar="URL",
        help="ship incidents to the engine at URL, clickhouse+https://user@host/db or"
        " file:///folder, instead of the url of [ship]; can be given several times",
    )


def settings_of(args: argparse.Namespace, settings: AgentSettings) -> ShipSettings:
    """Return the settings: the option wins over the address of the file. Raises: UsageError."""
    found = settings.ship
    if args.ship:
        password = found.password
        if not password and not found.password_file:
            password = os.environ.get(PASSWORD, "") if any("@" in one for one in args.ship) else ""
        found = msgspec.structs.replace(found, url=list(args.ship), url_file="", password=password)
        wrong = check(found)
        if wrong is not None:
            raise UsageError(f"--ship: {wrong[1]}")
    return found


def targets_of(args: argparse.Namespace, settings: AgentSettings) -> list[Target]:
    """Return the destinations. Raises: UsageError."""
    return targets(settings_of(args, settings))


def shipper(
    args: argparse.Namespace,
    settings: AgentSettings,
    state: Path,
    store: Path,
    passes: float,
    *,
    dry: bool,
) -> Shipper:
    """Return what ships for one server, of which ``state`` keeps what is not shipped yet.

    ``passes``: seconds of a pass, where one agent follows the other. ``dry``: nothing is shipped.
    Raises: UsageError.
    """
    return Shipper(
        state / FOLDER,
        settings_of(args, settings),
        [] if dry else targets_of(args, settings),
        store=store,
        signatures=args.signatures or (),
        continues=passes,
    )
