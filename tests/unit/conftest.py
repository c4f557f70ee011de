# SPDX-License-Identifier: Apache-2.0
"""What many of these tests start from."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from stallscope.analyzers import catalog
from tests.support.chance import EXAMPLES
from tests.unit.scenes import Analyze

if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from tests.unit.reportpages import Opener

__all__: list[str] = []

# A busy machine makes anything slow at times, and what is drawn at random is too large at
# times: only wrong results fail a test. What is drawn is the same in each run, unless
# STALLSCOPE_EXAMPLES asks for so many others.
settings.register_profile(
    "stallscope",
    max_examples=EXAMPLES or 100,
    derandomize=not EXAMPLES,
    deadline=None,
    print_blob=True,
    suppress_health_check=[
        HealthCheck.too_slow,
        HealthCheck.data_too_large,
        HealthCheck.large_base_example,
        HealthCheck.filter_too_much,
    ],
)
settings.load_profile("stallscope")


@pytest.fixture(scope="session")
def signatures() -> catalog.Catalog:
    """Return the project's own catalog."""
    return catalog.load()


@pytest.fixture(scope="session")
def analyze(signatures: catalog.Catalog) -> Analyze:
    """Return what analyses a capture by that catalog."""
    return Analyze(signatures)


@pytest.fixture
def fake_probe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the path at which a test writes a program that runs in place of the probe."""
    path = tmp_path / "stallscope-probe"
    monkeypatch.setenv("STALLSCOPE_PROBE", str(path))
    return path


@pytest.fixture(scope="module")
def browser(require: Callable[..., None]) -> Iterator[Browser]:
    """Run a browser for the tests of a module."""
    require("chromium", "web")
    from tests.support.browser import chromium

    with chromium() as running:
        yield running


@pytest.fixture
def opened(browser: Browser) -> Opener:
    """Return what opens a page, and fails at its end if it was not quiet."""
    from tests.support.browser import quiet_page

    return lambda path, **options: quiet_page(browser, path, **options)
