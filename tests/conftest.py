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

from stallscope.collectors.paths import asking
from tests.needs import required, why_not
from tests.support.chance import SEED

__all__: list[str] = []

TESTS = Path(__file__).resolve().parent
SIZES = {
    "small": "the same result each time, in a moment: ./scripts/test",
    "large": "needs more of the machine: ./scripts/test --all",
    "nightly": "takes minutes, or tests what is not the product: ./scripts/test --nightly",
}
NIGHTLY = ("kernels", "systems", "packages")
SIZE_OF_FOLDER = {"unit": "small", **dict.fromkeys(NIGHTLY, "nightly")}
"""Of tests that say nothing else; others are large."""


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "needs(name, ...): skip, with the reason, where one of tests/needs.py is missing"
    )
    config.addinivalue_line(
        "markers", "alone: it measures time closely, or forks, so no other test runs meanwhile"
    )
    for size, holds in SIZES.items():
        config.addinivalue_line("markers", f"{size}: {holds}")
    config.addinivalue_line(
        "markers", "kernels(group, ...): part of the kernel matrix, and of which lines of its table"
    )
    # Agents keep what they learn of a server there: nothing of the user's is read or written.
    state = tempfile.mkdtemp(prefix="stallscope-state-")
    config.add_cleanup(lambda: shutil.rmtree(state, ignore_errors=True))
    os.environ["XDG_STATE_HOME"] = state
    # What tests start in other folders finds the checkout, also where plain pytest runs them.
    os.environ["PYTHONPATH"] = str(TESTS.parent)
    required()  # complain about a wrong name at once
    # A process in the background of a script, or of nohup, is made to ignore these, and what it
    # ignores its children ignore too: those that tests end by them among them.
    for number in (signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda *_: None)


@pytest.fixture(autouse=True)
def _nothing_is_left_running() -> Iterator[None]:
    """A child would be a part of the server of the next test, where that is this process."""
    yield
    asking.close()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--sizes", default=",".join(SIZES), help="small,large,nightly: of these")


def pytest_report_header() -> str:
    return f"STALLSCOPE_SEED={SEED}"


def size(item: pytest.Item) -> str:
    """Return the size of a test: the one that it or its module is marked with, or its folder's."""
    marked = (marker.name for marker in item.iter_markers() if marker.name in SIZES)
    return next(marked, SIZE_OF_FOLDER.get(item.path.relative_to(TESTS).parts[0], "large"))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests of other sizes than the chosen ones."""
    sizes = config.getoption("sizes").split(",")
    others = [item for item in items if size(item) not in sizes]
    if others:
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if size(item) in sizes]


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


def _shared_mounts() -> dict[str, str]:
    """Return the flags of the host's own mounts, and of the file systems behind them."""
    lines = (line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines())
    return {
        words[4]: f"{words[5]} {words[-1].split(',')[0]}"
        for words in lines
        if words[4] in ("/", "/dev", "/dev/shm", "/proc", "/sys", "/tmp")
    }


@pytest.fixture(scope="session", autouse=True)
def _mounts_are_left_alone() -> Iterator[None]:
    """A remount for a namespace of a test can change the file system that the host has, too."""
    before = _shared_mounts()
    yield
    assert _shared_mounts() == before


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
