# SPDX-License-Identifier: Apache-2.0
"""What all tests share: skipping with a reason, and failing instead where a need is insisted on."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.needs import required, why_not

__all__: list[str] = []


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "needs(name, ...): skip, with the reason, where one of tests/needs.py is missing"
    )
    config.addinivalue_line(
        "markers", "alone: it measures time closely, or forks, so no other test runs meanwhile"
    )
    config.addinivalue_line(
        "markers", "slow: it takes seconds; it begins before others, and is no part of --quick"
    )
    config.addinivalue_line(
        "markers", "kernels(group, ...): part of the kernel matrix, and of which lines of its table"
    )
    # Agents keep what they learn of a server there: nothing of the user's is read or written.
    state = tempfile.mkdtemp(prefix="stallscope-state-")
    config.add_cleanup(lambda: shutil.rmtree(state, ignore_errors=True))
    os.environ["XDG_STATE_HOME"] = state
    required()  # complain about a wrong name at once
    # A process in the background of a script, or of nohup, is made to ignore these, and what it
    # ignores its children ignore too: those that tests end by them among them.
    for number in (signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda *_: None)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Let what takes long begin first, where several processes share the tests."""
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: item.get_closest_marker("slow") is None)


def check(name: str) -> None:
    """Skip the running test where ``name`` cannot be had; fail it where it is required."""
    reason = why_not(name)
    if reason is None:
        return
    if name in required():
        pytest.fail(f"{name} is in STALLSCOPE_REQUIRE, but: {reason}", pytrace=False)
    pytest.skip(f"{name}: {reason}")


def pytest_runtest_setup(item: pytest.Item) -> None:
    for marker in item.iter_markers("needs"):
        for name in marker.args:
            check(name)


@pytest.fixture(scope="session")
def require() -> Callable[..., None]:
    """Return a function that skips (or fails) unless all the named needs are met."""

    def require_all(*names: str) -> None:
        for name in names:
            check(name)

    return require_all


@pytest.fixture
def rings() -> Iterator[Path]:
    """Return a folder for rings, in memory: on a disk each write could wait for that."""
    with tempfile.TemporaryDirectory(prefix="stallscope-rings-", dir="/dev/shm") as folder:
        yield Path(folder)


@pytest.fixture
def private_umask() -> Iterator[None]:
    """Let a test write option files that nobody else can write to: others would be ignored."""
    before = os.umask(0o022)
    yield
    os.umask(before)
