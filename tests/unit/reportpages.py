# SPDX-License-Identifier: Apache-2.0
"""What tests of the HTML report in a browser share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stallscope.base.errors import Exit
from stallscope.main import main

if TYPE_CHECKING:
    from playwright.sync_api import Page

__all__ = ["Opener", "boxes", "report", "says", "texts"]

Opener = Callable[..., Any]
"""Opens a page, and fails at its end if it was not quiet."""


def report(folder: Path, *words: str | Path) -> Path:
    """Write a report, and return its path."""
    out = folder / "report.html"
    assert main(["report", *map(str, words), "-o", str(out), "--force"]) in (0, Exit.PARTIAL)
    return out


def texts(page: Page, selector: str) -> list[str]:
    """Return what each of these elements shows."""
    return [text.strip() for text in page.locator(selector).all_inner_texts()]


def says(page: Page, selector: str, text: str) -> None:
    """Wait until an element has this text."""
    from playwright.sync_api import expect

    expect(page.locator(selector)).to_have_text(text)


def boxes(page: Page) -> dict[str, float]:
    """Return the width of each box of the flame graph by its name."""
    found = page.eval_on_selector_all(
        "#flame-chart g.frame",
        "all => all.map(g => [g.getAttribute('name'), g.getBoundingClientRect().width])",
    )
    return {name: round(width) for name, width in found}
