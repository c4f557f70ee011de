# SPDX-License-Identifier: Apache-2.0
"""Pages in a real browser that record what a report must not do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, Dialog, Page, Request, expect, sync_playwright

from tests.support.servers import PATIENCE

__all__ = ["CHROMIUM", "READY", "axe_finds_nothing", "chromium", "new_page", "quiet_page"]

CHROMIUM = "/usr/bin/chromium-headless-shell"
READY = "html[data-ready=yes]"
_PATIENCE_MS = PATIENCE * 1000
_FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@contextmanager
def chromium() -> Iterator[Browser]:
    """Run Debian's Chromium without the parts that draw windows: half of the CPU time."""
    with sync_playwright() as playwright:
        expect.set_options(timeout=_PATIENCE_MS)
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, args=list(_FLAGS), timeout=_PATIENCE_MS
        )
        try:
            yield browser
        finally:
            browser.close()


def new_page(browser: Browser) -> Page:
    """Return a page that waits as patiently as all tests do."""
    page = browser.new_page()
    page.set_default_timeout(_PATIENCE_MS)
    return page


def axe_finds_nothing(page: Page, axe: str) -> bool:
    """Run axe-core, whose script is ``axe``, and assert that it finds nothing; return whether
    it has checked anything. The page's policy must be switched off."""
    page.evaluate(axe)
    found = page.evaluate("axe.run()")
    said = [
        (rule["id"], [node["target"] for node in rule["nodes"][:3]]) for rule in found["violations"]
    ]
    assert said == []
    return bool(found["passes"])


@contextmanager
def quiet_page(
    browser: Browser,
    path: Path,
    *,
    width: int = 1280,
    height: int = 900,
    scheme: str = "light",
    script: bool = True,
) -> Iterator[Page]:
    """Open a file; at the end, fail if it printed, failed, asked, opened or loaded anything."""
    context = browser.new_context(
        viewport={"width": width, "height": height},
        color_scheme="dark" if scheme == "dark" else "light",
        java_script_enabled=script,
    )
    context.set_default_timeout(_PATIENCE_MS)
    said: list[str] = []
    address = path.resolve().as_uri()

    def asked(dialog: Dialog) -> None:
        said.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def loads(request: Request) -> None:
        if request.url.split("#")[0] != address:
            said.append(f"request: {request.url[:200]}")

    try:
        page = context.new_page()
        page.on("console", lambda message: said.append(f"console: {message.text}"))
        page.on("pageerror", lambda error: said.append(f"error: {error}"))
        page.on("popup", lambda _: said.append("popup"))
        page.on("dialog", asked)
        page.on("request", loads)
        page.goto(address)
        if script:
            page.wait_for_selector(READY)
        yield page
        assert said == []
    finally:
        context.close()
