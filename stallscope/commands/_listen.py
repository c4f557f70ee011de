# SPDX-License-Identifier: Apache-2.0
"""The option ``--listen``: the agents of this process over HTTP."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from stallscope.agent.http import address
from stallscope.agent.http.address import Address
from stallscope.agent.liveness import AgentHealth
from stallscope.reporters.exposition import MetricsPage

__all__ = ["add_listen_argument", "listening"]


def add_listen_argument(parser: argparse._ActionsContainer) -> None:
    """Add ``--listen``."""
    parser.add_argument(
        "--listen",
        type=_address,
        metavar="ADDRESS",
        help="serve /metrics, /healthz, /incidents and /report over HTTP, without authentication:"
        f" {address.FORMS}",
    )


def _address(text: str) -> Address:
    try:
        return address.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: {error}") from None


@contextmanager
def listening(
    where: Address | None,
    page: MetricsPage | None,
    health: Callable[[], Sequence[AgentHealth]],
    dest: Path,
    signatures: Sequence[Path],
) -> Iterator[None]:
    """Serve the agents' pages until the block ends, where there is an address. ``health``: that of
    each server's agent. Raises: StallscopeError."""
    if where is None or page is None:
        yield
        return
    from stallscope.agent.http import server
    from stallscope.agent.http.pages import Pages

    with server.listening(where, Pages(page, health, dest, signatures)):
        yield
