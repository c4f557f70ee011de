# SPDX-License-Identifier: Apache-2.0
"""A wrong use of the probe is one line on standard error, and nothing is done."""

from __future__ import annotations

import shlex

import pytest

from tests.root.support import ONE_LINE, run_probe

pytestmark = [pytest.mark.needs("probe"), pytest.mark.small]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("", ""),
        ("capture", ""),
        ("core", ""),
        ("ring", "--ring is missing"),
        ("snap", ""),
        ("snap --pid 0", ""),
        ("snap --pid -1", ""),
        ("snap --pid 12x", ""),
        ("snap --pid ''", ""),
        ("snap --pid 99999999999999999999", ""),
        ("snap --pid 1 --backend magic", ""),
        ("snap --pid 1 --max-stack -5", ""),
        ("snap --pid 1 --nonsense", ""),
        ("snap --pid 1 extra", ""),
        ("serve --pid 1 --captures /tmp", ""),
        ("growth", ""),
        ("growth --pid 1 --pid 2", ""),
        ("growth --pid 1 --duration x", ""),
        ("growth --pid 1 --stacks 1", ""),
        ("storage -p 1 --seconds x", ""),
        ("storage -p 1 --interval 0.001", ""),
        ("storage -p 1 --top 3", ""),
        ("storage -p 1 --backend poll", ""),
        ("cache", "--pid is missing"),
        ("cache -p 1 -p 1", "given twice"),
        ("cache -p x", "--pid"),
        ("cache -p 1 --yes", "need --uncache"),
        ("cache -p 1 --uncache data", "binlog, relay, redo"),
        ("cache -p 1 --uncache ''", "no class"),
        ("cache -p 1 --uncache binlog --after 1", "--after needs --yes"),
        ("cache -p 1 --uncache binlog --keep-files 1 --keep-bytes 1", "once"),
        ("cache -p 1 --log-dir relative", "not an absolute path"),
        ("cache -p 1 --nope", "unknown option"),
        ("cache -p 1 more", "unexpected argument"),
        ("waits", ""),
        ("waits --pid 1 --kind nonsense", ""),
        ("waits --pid 1 --threshold nonsense", ""),
        ("waits --pid 1 --threshold mutex=", ""),
        ("waits --pid 1 --threshold -1", ""),
        ("waits --pid 1 --interval 1", ""),
        ("waits --pid 1 --top 0", ""),
        ("waits --pid 1 --duration x", ""),
        ("waits --pid 1 --backend proc", ""),
        ("waits --pid 1 x", ""),
        *((f"waits --pid 1 --poll-interval {value}", "") for value in ("0", "x", "10001", "-1")),
    ],
)
def test_wrong_usage(words: str, said: str) -> None:
    taken = run_probe(*shlex.split(words))
    assert taken.code == 2
    assert ONE_LINE.match(taken.stderr), taken.stderr
    assert said in taken.stderr
    assert taken.stdout == b""
