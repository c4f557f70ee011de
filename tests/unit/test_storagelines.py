# SPDX-License-Identifier: Apache-2.0
"""Lines of stallscope.storage-files/1."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stallscope.base.errors import StallscopeError
from stallscope.collectors.storage import Options, arguments
from stallscope.model import storage

FILE = {
    "path": "/var/lib/mysql/ib_logfile0",
    "class": "redo",
    "dev": "8:1",
    "ino": 12,
    "deleted": False,
    "direct": False,
    "dsync": False,
    "requests": 3,
    "requested_bytes": 1536,
    "write_ns": 9000,
    "charged_bytes": 4096,
    "syncs": 2,
    "sync_ns": 3000000,
    "sum_n": 1536,
    "sum_nn": 1310720,
    "sum_nt": 2.3e9,
    "sum_tt": 4.6e12,
}
LINE = {
    "schema": storage.SCHEMA,
    "pid": 77,
    "seconds": 1.5,
    "final": True,
    "files": [FILE],
    "io": {"wchar": 1536, "syscw": 3, "write_bytes": 4096, "cancelled_write_bytes": 0},
    "lost": {"keys-full": 0},
    "programs": [{"name": "dirty", "ok": True}],
}


def _loads(line: object) -> storage.StorageLine:
    return storage.loads(json.dumps(line).encode(), "probe", 1)


def test_a_line() -> None:
    line = _loads(LINE)
    assert line.final
    assert not line.ended
    assert line.files[0].file_class == "redo"
    assert line.files[0].sum_nn == 1310720.0
    assert line.io is not None
    assert line.io.write_bytes == 4096


def test_what_is_unknown_is_none() -> None:
    line = _loads(
        LINE
        | {"files": [FILE | {"charged_bytes": None, "path": None}], "charged_why_not": "no BTF"}
        | {"io": None}
    )
    assert line.io is None
    assert line.files[0].charged_bytes is None
    assert line.files[0].path is None
    assert line.charged_why_not == "no BTF"


@pytest.mark.parametrize(
    "wrong",
    [
        {"schema": "stallscope.storage-files/2"},
        {"files": [FILE | {"requests": -1}]},
        {"files": [FILE | {"sum_nn": "1"}]},
        {"pid": None},
        {"io": {}},
    ],
)
def test_what_does_not_match_is_one_line(wrong: dict[str, object]) -> None:
    with pytest.raises(StallscopeError, match=r"^probe: line 1 [^\n]*$"):
        _loads(LINE | wrong)


@given(st.binary(max_size=200))
def test_any_bytes_are_an_error_of_one_line(data: bytes) -> None:
    with pytest.raises(StallscopeError, match=r"^probe: line 1 [^\n]*$"):
        storage.loads(data, "probe", 1)


def test_the_command_line() -> None:
    assert arguments((7, 8), Options()) == ["storage", "--pid", "7", "--pid", "8"]
    assert arguments((7,), Options(seconds=2, interval=0.5, force_kernel=True)) == [
        *("storage", "--pid", "7", "--seconds", "2.000", "--interval", "0.500", "--force")
    ]
