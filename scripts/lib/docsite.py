# SPDX-License-Identifier: Apache-2.0
"""Build the docs as a site: the pages of docs/, README.md as its first page, and a search that
needs nothing from elsewhere. Browsers run it over HTTP only, not from a file.

MkDocs takes one folder of pages, so they are copied; links to files of the checkout that are no
page become names of files. A link that leads nowhere, or a page that no part of the site has, is an
error.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
from pathlib import Path

import yaml

CHECKOUT = Path(__file__).resolve().parents[2]
CONFIG = CHECKOUT / "mkdocs.yml"
TOP = {
    "README.md": "index.md",
    "CHANGELOG.md": "CHANGELOG.md",
    "CONTRIBUTING.md": "CONTRIBUTING.md",
    "SECURITY.md": "SECURITY.md",
}
"""Pages of the checkout's own folder, and their names on the site."""
_LINK = re.compile(r"(!?)\[([^\]\n]*)\]\((?!https?://|mailto:|#)([^)#\s]+)(#[^)\s]*)?\)")


class SiteError(Exception):
    """The site could not be built."""


def placed(target: Path) -> Path | None:
    """Return where a file of the checkout is among the pages; None: it is no part of the site."""
    try:
        inside = target.relative_to(CHECKOUT)
    except ValueError:
        return None
    if str(inside) in TOP:
        return Path(TOP[str(inside)])
    if inside.parts[:1] == ("docs",) and target.exists():
        page = _first_page(target) if target.is_dir() else target
        return page.relative_to(CHECKOUT / "docs")
    return None


def _first_page(folder: Path) -> Path:
    """Return the page that a link to a folder opens."""
    index = folder / "README.md"
    return index if index.exists() else min(folder.glob("*.md"))


def rewritten(text: str, source: Path, page: Path) -> str:
    """Return the text of a page with links as the site has them. ``page``: its place there."""

    def link(match: re.Match[str]) -> str:
        mark, words, where, anchor = match.groups()
        target = (source.parent / where).resolve()
        place = placed(target)
        if place is None:
            if not target.exists():
                raise SiteError(f"{source.relative_to(CHECKOUT)}: {where} does not exist")
            return f"{words} (`{target.relative_to(CHECKOUT)}` in the checkout)"
        up = "../" * (len(page.parts) - 1)
        return f"{mark}[{words}]({up}{place}{anchor or ''})"

    outside = re.split(r"(^```.*?^```$|`[^`\n]+`)", text, flags=re.MULTILINE | re.DOTALL)
    return "".join(
        part if number % 2 else _LINK.sub(link, part) for number, part in enumerate(outside)
    )


def copy_pages(pages: Path) -> None:
    """Copy all pages and pictures."""
    shutil.rmtree(pages, ignore_errors=True)
    sources = [CHECKOUT / name for name in TOP]
    sources += [path for path in (CHECKOUT / "docs").rglob("*") if path.is_file()]
    for source in sources:
        place = placed(source)
        assert place is not None
        out = pages / place
        out.parent.mkdir(parents=True, exist_ok=True)
        if source.suffix == ".md":
            out.write_text(rewritten(source.read_text(), source, place))
        else:
            shutil.copyfile(source, out)


def with_files(nav: list[object], pages: Path) -> list[object]:
    """Return the navigation with each ``folder/*`` replaced by the folder's pages, by name."""
    found: list[object] = []
    for item in nav:
        if isinstance(item, str) and item.endswith("/*"):
            names = sorted(path.name for path in (pages / item[:-2]).glob("*.md"))
            found += [f"{item[:-1]}{name}" for name in names if name != "README.md"]
        elif isinstance(item, dict):
            found.append(
                {
                    name: with_files(below, pages) if isinstance(below, list) else below
                    for name, below in item.items()
                }
            )
        else:
            found.append(item)
    return found


def build(out: Path) -> None:
    """Build the site in a folder. Raises: SiteError."""
    pages = out.with_name(f"{out.name}-pages")
    copy_pages(pages)
    config = yaml.safe_load(CONFIG.read_text())
    config |= {"docs_dir": str(pages), "site_dir": str(out)}
    config["nav"] = with_files(config["nav"], pages)
    made = out.with_name(f"{out.name}.yml")
    made.write_text(yaml.safe_dump(config))
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", str(made)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SiteError((done.stderr + done.stdout).strip())


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/site", description=__doc__)
    parser.add_argument(
        "out", nargs="?", type=Path, default=CHECKOUT / "build" / "site", help="build/site"
    )
    arguments = parser.parse_args()
    out = arguments.out.absolute()
    out.parent.mkdir(parents=True, exist_ok=True)
    try:
        build(out)
    except SiteError as error:
        print(f"site: {error}", file=sys.stderr)
        return 1
    print(f"{out}: read it with `python3 -m http.server -b 127.0.0.1 -d {out} 8000`")
    return 0


if __name__ == "__main__":
    sys.exit(main())
