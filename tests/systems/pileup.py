#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs inside of the machine: 20 SELECTs behind an ALTER TABLE behind an idle transaction.

It writes the file that is its argument when all of them wait, and ends by SIGTERM.
"""

import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pymysql

WAITERS = 20
ACCOUNT: dict[str, Any] = {
    "unix_socket": "/run/mysqld/mysqld.sock",
    "user": "app",
    "password": "app",
}


def statement(text: str) -> None:
    with pymysql.connect(database="shop", **ACCOUNT) as connection, connection.cursor() as cursor:
        cursor.execute(text)


def main() -> None:
    ready = Path(sys.argv[1])
    holder = pymysql.connect(database="shop", **ACCOUNT)
    holder.begin()
    watching = pymysql.connect(**ACCOUNT)
    with holder.cursor() as cursor, watching.cursor() as states:

        def waiting(count: int) -> None:
            found = -1
            while found != count:
                time.sleep(0.3)
                states.execute(
                    "SELECT COUNT(*) FROM information_schema.PROCESSLIST"
                    " WHERE STATE = 'Waiting for table metadata lock'"
                )
                (found,) = states.fetchone()

        cursor.execute("SELECT SUM(total) FROM orders")
        alter = "ALTER TABLE orders COMMENT = 'later'"
        threading.Thread(target=statement, args=(alter,), daemon=True).start()
        waiting(1)
        for _ in range(WAITERS):
            read = "SELECT SUM(total) FROM orders"
            threading.Thread(target=statement, args=(read,), daemon=True).start()
        waiting(WAITERS + 1)
        ready.write_text("")
        signal.pause()


if __name__ == "__main__":
    main()
