# SPDX-License-Identifier: Apache-2.0
"""A call in a thread of its own."""

from __future__ import annotations

import threading

import pytest

from stallscope.base.meanwhile import Meanwhile

__all__: list[str] = []


def test_it_runs_while_its_caller_goes_on() -> None:
    asked = threading.Event()
    found = Meanwhile(lambda: asked.wait(60), "a call")
    asked.set()
    assert found.result() is True
    assert found.result() is True, "it can be asked again"


def test_its_error_is_that_of_the_result() -> None:
    def fail() -> int:
        raise KeyError("x")

    found = Meanwhile(fail, "a call")
    with pytest.raises(KeyError):
        found.result()
