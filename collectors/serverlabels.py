# SPDX-License-Identifier: Apache-2.0
"""The labels of a server's metrics."""

from __future__ import annotations

from collections.abc import Sequence

from stallscope.collectors.processes import Server

__all__ = ["labels_of"]


def labels_of(servers: Sequence[Server]) -> dict[str, str]:
    """Return labels that identify these servers on this host; a restart does not change them."""
    labels = {"server": ",".join(dict.fromkeys(server.name for server in servers))}
    datadirs = [server.datadir for server in servers if server.datadir]
    return {**labels, "datadir": ",".join(datadirs)} if datadirs else labels
