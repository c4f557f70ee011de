# SPDX-License-Identifier: Apache-2.0
"""For any content of a file, its reader returns a Capture or says in one line what is wrong."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stallscope.model import capturefile
from stallscope.model.capture import Capture
from tests.unit.captures import convoy

pytestmark = pytest.mark.slow

_GOOD = capturefile.dumps(convoy())
_RECORDS: list[dict[str, Any]] = [json.loads(line) for line in _GOOD.splitlines()]
_JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.just("0xffff"),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


def read(data: bytes) -> Capture | None:
    try:
        return capturefile.loads(data, "fuzz")
    except capturefile.CaptureFileError as error:
        message = str(error)
    assert message.startswith("fuzz: ")
    return None


@given(st.binary(max_size=2000))
def test_any_bytes(data: bytes) -> None:
    read(data)


@settings(max_examples=300)
@given(st.integers(0, len(_GOOD) - 1), st.binary(max_size=8), st.integers(0, 40))
def test_any_bytes_in_the_place_of_others(at: int, new: bytes, old: int) -> None:
    read(_GOOD[:at] + new + _GOOD[at + old :])


@settings(max_examples=500)
@given(st.data())
def test_any_value_in_any_field(data: st.DataObject) -> None:
    records = [dict(record) for record in _RECORDS]
    record = records[data.draw(st.integers(0, len(records) - 1))]
    record[data.draw(st.sampled_from(sorted(record)))] = data.draw(_JSON)
    capture = read(b"\n".join(json.dumps(r).encode() for r in records))
    if capture is not None:
        again = capturefile.loads(capturefile.dumps(capture), "again")
        assert (again.threads, again.releases) == (capture.threads, capture.releases)


@settings(max_examples=100)
@given(st.permutations(range(len(_RECORDS))))
def test_any_order_of_the_records(order: list[int]) -> None:
    read(b"\n".join(json.dumps(_RECORDS[i]).encode() for i in order))
