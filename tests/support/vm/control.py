#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Runs commands for the host of a virtual machine: lines of JSON over a virtio port."""

import base64
import json
import os
import subprocess
import threading
from typing import Any

PORT = "/dev/virtio-ports/stallscope.control"
MOST = 4 << 20
"""Bytes of what a command prints; more is left out, and said."""


def boot_id() -> str:
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()


def output(data: bytes) -> str:
    return base64.b64encode(data[-MOST:]).decode()


def run(order: dict[str, Any]) -> dict[str, Any]:
    """Run a shell script; the answer has its exit code, -1 where it took too long."""
    try:
        done = subprocess.run(
            ["/bin/bash", "-c", order["script"]],
            input=base64.b64decode(order.get("input", "")),
            capture_output=True,
            timeout=order["seconds"],
            check=False,
            cwd="/root",
            env={
                "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
                "HOME": "/root",
                "LC_ALL": "C.UTF-8",
            },
        )
        code, out, err = done.returncode, done.stdout, done.stderr
    except subprocess.TimeoutExpired as error:
        code, out, err = -1, error.stdout or b"", error.stderr or b""
    return {"id": order["id"], "code": code, "out": output(out), "err": output(err)}


def main() -> None:
    port = os.open(PORT, os.O_RDWR)
    lock = threading.Lock()

    def say(answer: dict[str, Any]) -> None:
        data = json.dumps(answer).encode() + b"\n"
        with lock:
            while data:
                data = data[os.write(port, data) :]

    say({"booted": boot_id()})
    with os.fdopen(port, "rb", closefd=False) as lines:
        while True:
            line = lines.readline()
            if not line:  # the host is gone
                return
            order = json.loads(line)
            threading.Thread(target=lambda order=order: say(run(order))).start()


if __name__ == "__main__":
    main()
