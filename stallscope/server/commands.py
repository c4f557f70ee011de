# SPDX-License-Identifier: Apache-2.0
"""Commands of MySQL's protocol by their numbers, in the words of the processlist."""

from __future__ import annotations

__all__ = ["NAMES"]

NAMES = dict(
    enumerate(
        (
            "Sleep",
            "Quit",
            "Init DB",
            "Query",
            "Field List",
            "Create DB",
            "Drop DB",
            "Refresh",
            "Shutdown",
            "Statistics",
            "Processlist",
            "Connect",
            "Kill",
            "Debug",
            "Ping",
            "Time",
            "Delayed insert",
            "Change user",
            "Binlog Dump",
            "Table Dump",
            "Connect Out",
            "Register Slave",
            "Prepare",
            "Execute",
            "Long Data",
            "Close stmt",
            "Reset stmt",
            "Set option",
            "Fetch",
            "Daemon",
        )
    )
) | {30: "Binlog Dump GTID", 31: "Reset Connection", 32: "Clone"}
"""MariaDB has the same up to 29; 30 and above are MySQL's (my_command.h, from 5.6 on)."""
