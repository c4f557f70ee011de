# SPDX-License-Identifier: Apache-2.0
"""Which fleet a command reads or writes: options, the environment, a configuration."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from stallscope.base import secretfiles
from stallscope.base.errors import UsageError
from stallscope.commands import _store
from stallscope.fleet.settings import PASSWORD, has_password

if TYPE_CHECKING:
    from stallscope.fleet.address import Address
    from stallscope.fleet.destination import Engine

__all__ = [
    "ENVIRONMENT",
    "Place",
    "add_access_arguments",
    "add_place_arguments",
    "add_since_arguments",
    "opened",
    "places",
    "since_until",
]

ENVIRONMENT = "STALLSCOPE_FLEET"
_FORMS = "clickhouse+https://user@host:8443/db, clickhouse+http://… or file:///folder"


class Place(msgspec.Struct, frozen=True):
    """An engine, with the password of its user."""

    address: Address
    ca_file: str = ""

    def __repr__(self) -> str:
        """Without the password: this text can get into logs."""
        return f"Place({self.address.shown})"


def add_place_arguments(parser: argparse.ArgumentParser, option: str, what: str) -> None:
    """Add the options that say where the fleet is. ``option``: ``--from``, ``--to``, or ``url``
    for words of their own."""
    group = parser.add_argument_group("fleet")
    text = f"{what}: {_FORMS} (default: ${ENVIRONMENT}, then [ship] url of --config)"
    if option.startswith("-"):
        group.add_argument(option, dest="url", action="append", metavar="URL", help=text)
    else:
        group.add_argument(option, nargs="*", metavar="URL", help=text)
    group.add_argument(
        "--config", type=Path, metavar="FILE", help="a configuration of the agent with [ship]"
    )
    add_access_arguments(group)


def add_access_arguments(group: argparse._ActionsContainer) -> None:
    """Add the options that say how to log in to it."""
    group.add_argument(
        "--password-file",
        type=Path,
        metavar="FILE",
        help=f"the password of the user in URL (default: ${PASSWORD}); all users of a host can"
        " read a command line",
    )
    group.add_argument(
        "--ca-file",
        type=Path,
        metavar="FILE",
        help="certificates (PEM) to trust instead of the system's",
    )


def add_since_arguments(parser: argparse.ArgumentParser, default: str) -> None:
    """Add the options for a range of time."""
    parser.add_argument(
        "--since",
        default=default,
        metavar="TIME",
        help=f"from TIME on: '2026-11-21 14:50' (local), or 30min, 3h, 2d ago (default {default})",
    )
    parser.add_argument(
        "--until", metavar="TIME", help="up to TIME, written in the same way (default: now)"
    )


def since_until(args: argparse.Namespace, now_ms: int) -> tuple[int, int]:
    """Return the range in ms. Raises: UsageError."""
    since_ms = _moment("--since", args.since, now_ms)
    until_ms = now_ms if args.until is None else _moment("--until", args.until, now_ms)
    if until_ms <= since_ms:
        raise UsageError("--until is not after --since")
    return since_ms, until_ms


def _moment(option: str, text: str, now_ms: int) -> int:
    from stallscope.base import times

    try:
        return max(0, times.since(text, now_ms * 10**6) // 10**6)
    except ValueError:
        raise UsageError(f"{option} {text!r}: write a time as {_store.SINCE}") from None


def places(args: argparse.Namespace, *, several: bool = False) -> list[Place]:
    """Return the engines that are meant, at least one. Raises: UsageError, whose message has no
    user and no password."""
    given = _words(args.url)
    if any(map(has_password, given)):
        raise UsageError(
            "an address with a password: all users of this host can read a command line; set"
            f" {PASSWORD} or give --password-file FILE"
        )
    configured, ca_file = _configured(args.config)
    found = _parsed(given) or _parsed(_words([os.environ.get(ENVIRONMENT, "")])) or configured
    if not found:
        raise UsageError(
            f"which fleet? give its address, {_FORMS}; or set {ENVIRONMENT}, or give --config FILE"
        )
    if len(found) > 1 and not several:
        raise UsageError("one fleet at a time: give one address")
    if args.ca_file is not None:
        ca_file = str(args.ca_file)
    if ca_file and not Path(ca_file).is_file():
        raise UsageError(f"--ca-file {ca_file}: no such file")
    password = _password(args)
    return [Place(_with(one, password), ca_file) for one in found]


def _words(given: Sequence[str] | None) -> list[str]:
    return [word for text in given or () for word in text.split()]


def _parsed(texts: Sequence[str]) -> list[Address]:
    from stallscope.fleet import address

    return [address.parse(text) for text in texts]


def _configured(path: Path | None) -> tuple[list[Address], str]:
    """Return the addresses of a configuration, and its file of certificates."""
    if path is None:
        return [], ""
    from stallscope.commands import _config
    from stallscope.fleet.settings import addresses

    settings = _config.read(path).servers[0].agent.ship
    return addresses(settings), settings.ca_file


def _password(args: argparse.Namespace) -> str:
    if args.password_file is not None:
        return secretfiles.read(args.password_file)
    return os.environ.get(PASSWORD, "")


def _with(address: Address, password: str) -> Address:
    if not password or address.path is not None or address.password:
        return address
    return msgspec.structs.replace(address, password=password)


@contextmanager
def opened(place: Place) -> Iterator[Engine]:
    """Open an engine for questions. Raises: EngineError."""
    from stallscope.fleet.engines import opening

    engine = opening.engine(place.address, ca_file=place.ca_file)
    try:
        yield engine
    finally:
        engine.close()
