# SPDX-License-Identifier: Apache-2.0
"""Find words of wordlist.txt in docs, messages, reports, comments and names."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
WORD_LIST = Path(__file__).with_name("wordlist.txt")
ROOTS = (
    *(
        "README.md",
        "CONTRIBUTING.md",
        "SECURITY.md",
        "docs",
        "stallscope",
        "collectors",
        "analyzers",
    ),
    *("pmp", "ebpf", "inproc", "web/src", "scripts", "tests"),
)
SUFFIXES = (".md", ".py", ".toml", ".j2", ".c", ".h", ".js")
EXEMPT = ("docs/glossary.md", "tests/support/wordlint.py", "tests/unit/test_wordlint.py")
"""These files name the words that are not used."""
DATA = "tests/data/"
"""Texts of other tools and servers."""
_GAP = r"""[\s#/*"']+"""
"""What can be between two words: a line can end there, also in a comment or a string."""


def words(path: Path = WORD_LIST) -> dict[str, str]:
    """Return each pattern of a word list with what to write instead."""
    lines = (line for line in path.read_text().splitlines() if not line.startswith("#"))
    return dict(line.rsplit(" = ", 1) for line in lines if line.strip())


def readable(path: Path) -> str:
    """Return what is checked of a file, in lower case, with names split into their words."""
    text = path.read_text()
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", text.replace("_", " ")).lower()


def complaints(paths: Iterable[Path], listed: Mapping[str, str]) -> Iterator[str]:
    """Yield a line for each listed word in the files."""
    patterns = {pattern.replace(" ", _GAP): instead for pattern, instead in listed.items()}
    # One alternation for all: a search for each word would take five times as long.
    searched = re.compile(rf"(?<![\w-])(?:{'|'.join(patterns)})(?![\w-])")
    for path in paths:
        text = readable(path)
        for match in searched.finditer(text):
            line = text.count("\n", 0, match.start()) + 1
            found = " ".join(match[0].split())
            instead = next(say for one, say in patterns.items() if re.fullmatch(one, match[0]))
            yield f"{path}:{line}: {found!r}: write: {instead}"


def files(roots: Iterable[str] = ROOTS) -> Iterator[Path]:
    """Yield the files to check."""
    for root in roots:
        top = CHECKOUT / root
        for path in sorted(top.rglob("*")) if top.is_dir() else [top]:
            name = path.relative_to(CHECKOUT).as_posix()
            if path.suffix in SUFFIXES and name not in EXEMPT and not name.startswith(DATA):
                yield path


def main() -> int:
    found = list(complaints(files(), words()))
    print(*found, sep="\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
