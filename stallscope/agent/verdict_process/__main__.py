# SPDX-License-Identifier: Apache-2.0
"""Answer each request of the agent. Arguments are folders of more signatures."""

from __future__ import annotations

import resource
import sys
from pathlib import Path

import msgspec

from stallscope.agent.verdict_process import Together, VerdictAnswer, VerdictRequest
from stallscope.agent.verdict_process.naming import name_capture, name_together
from stallscope.analyzers import catalog
from stallscope.base.errors import StallscopeError
from stallscope.base.priority import be_expendable
from stallscope.base.text import one_line

__all__ = ["main"]

NICE = 10
MAX_MEMORY = 2 << 30
MAX_CPU_SECONDS = 120


def main(arguments: list[str]) -> int:
    """Answer each request; where a capture cannot be read, the answer says so."""
    _lower_priority()
    try:
        signatures = catalog.load([Path(argument) for argument in arguments])
    except StallscopeError as error:
        print(one_line(str(error), 2000), file=sys.stderr)
        return error.exit_code
    captures = []
    for line in sys.stdin.buffer:
        request = msgspec.json.decode(line, type=VerdictRequest)
        answer, capture = name_capture(request, signatures)
        if capture is not None:
            captures.append(capture)
        if not request.known:
            _say(answer)
    _say(name_together(captures, signatures))
    return 0


def _say(answer: VerdictAnswer | Together) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(answer) + b"\n")
    sys.stdout.buffer.flush()


def _lower_priority() -> None:
    """Get less CPU time than the server, and be killed first when memory runs out."""
    be_expendable(NICE, MAX_MEMORY)
    resource.setrlimit(resource.RLIMIT_CPU, (MAX_CPU_SECONDS, MAX_CPU_SECONDS))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
