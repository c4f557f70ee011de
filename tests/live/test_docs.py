# SPDX-License-Identifier: Apache-2.0
"""The sessions in the docs are run, and print the text of the pages, except for figures."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import docrun
from tests.support.docblocks import blocks


def runnable() -> list[Path]:
    """Return the pages with a session that can be run."""
    return [
        page
        for page in docrun.PAGES
        if any(block.not_run is None for block in blocks(page.read_text()))
    ]


@pytest.mark.nightly
@pytest.mark.needs("root", "bpf", "waits", "mariadb", "mysql55", "mysql97", "slap", "freeze", "web")
@pytest.mark.parametrize(
    "page", runnable(), ids=lambda page: str(page.relative_to(docrun.CHECKOUT))
)
def test_sessions_print_what_their_page_says(page: Path) -> None:
    assert docrun.differences(page) == []
