# SPDX-License-Identifier: Apache-2.0
"""Real servers and real stalls for the demo, the tests and the benchmarks.

Each server is a context manager that starts one of its own in a temporary folder and ends it.
"""

from __future__ import annotations

from tests.support.cache import MEMORY, Unavailable, cache_folder, why_missing
from tests.support.servers.child import Child, ChildEnded, program
from tests.support.servers.mariadb import MariaDB
from tests.support.servers.mariadb114 import MariaDB114
from tests.support.servers.mariadb118 import MariaDB118
from tests.support.servers.myrocks import MyRocks
from tests.support.servers.mysql55 import MySQL55
from tests.support.servers.mysql97 import MySQL97
from tests.support.servers.postgres import Postgres, Postgres17
from tests.support.servers.sql import SqlServer
from tests.support.servers.waiting import PATIENCE, Late, wait_until

__all__ = [
    "MEMORY",
    "PATIENCE",
    "Child",
    "ChildEnded",
    "Late",
    "MariaDB",
    "MariaDB114",
    "MariaDB118",
    "MyRocks",
    "MySQL55",
    "MySQL97",
    "Postgres",
    "Postgres17",
    "SqlServer",
    "Unavailable",
    "cache_folder",
    "program",
    "wait_until",
    "why_missing",
]
