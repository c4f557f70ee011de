# SPDX-License-Identifier: Apache-2.0
"""The docs as a site: no link leads nowhere, each page is in it, its search is its own."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import docsite
import pytest

CHECKOUT = Path(__file__).resolve().parents[2]
BUILD = [sys.executable, "-B", "-P", str(CHECKOUT / "scripts" / "lib" / "docsite.py")]

pytestmark = [pytest.mark.needs("mkdocs"), pytest.mark.large]


def test_the_site_builds_without_warnings(tmp_path: Path) -> None:
    done = subprocess.run(
        [*BUILD, str(tmp_path / "site")], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    site = tmp_path / "site"
    pages = {path.relative_to(CHECKOUT / "docs") for path in (CHECKOUT / "docs").rglob("*.md")}
    missing = [
        str(page)
        for page in pages
        if not (site / page.with_suffix(".html")).exists()
        and not (site / page.parent / "index.html").exists()
    ]
    assert missing == []
    first = (site / "index.html").read_text()
    assert "stallscope snap -p mysqld" in first
    foreign = re.findall(r"(?:src|href)=\"(https?://[^\"]+)\"", first)
    assert not [url for url in foreign if url.endswith((".js", ".css", ".woff2"))]
    assert "unpkg.com" not in first
    index = json.loads((site / "search" / "search_index.json").read_text())
    assert any("endings" in item["text"] for item in index["docs"])


def test_a_link_that_leads_nowhere_stops_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = CHECKOUT / "docs" / "guide.md"
    with pytest.raises(docsite.SiteError, match=r"no-such-page\.md does not exist"):
        docsite.rewritten("[x](no-such-page.md)", source, Path("guide.md"))
    text = "[a](commands/snap.md#output), [b](../meson.build) `[c](no.md)`"
    assert docsite.rewritten(text, source, Path("guide.md")) == (
        "[a](commands/snap.md#output), b (`meson.build` in the checkout) `[c](no.md)`"
    )
