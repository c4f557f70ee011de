# SPDX-License-Identifier: Apache-2.0
"""The probe and the package show the same of a command line."""

from __future__ import annotations

import subprocess
import sys

import pytest

from stallscope.collectors import processes
from stallscope.redaction import commandline
from tests.root.support import snap
from tests.support.commandlines import HARMLESS, MARK, SECRETS

__all__: list[str] = []

pytestmark = pytest.mark.needs("probe")

RUN = ("mytool", "-c", "input()")
LINES = (*SECRETS, *HARMLESS)


def test_no_secret_of_a_command_line_is_in_a_capture() -> None:
    # "--" is in between, so that nothing is the value of the option before it.
    argv = (*RUN, *(argument for line in LINES for argument in ("--", *line)))
    with subprocess.Popen(argv, executable=sys.executable, stdin=subprocess.PIPE) as process:
        taken = snap(process.pid, backend="proc")
        described = processes.described(process.pid)
        process.communicate(b"\n")
    (found,) = taken.whole.processes
    assert found.cmdline == described.cmdline == commandline.shown(argv)
    assert MARK.encode() not in taken.stdout.upper()
