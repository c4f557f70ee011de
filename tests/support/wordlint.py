# SPDX-License-Identifier: Apache-2.0
"""Find words of wordlist.txt in what users read: docs, messages, help, signatures, reports."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
WORD_LIST = Path(__file__).with_name("wordlist.txt")
TEXTS = ("README.md", "CONTRIBUTING.md", "docs", "stallscope", "collectors", "analyzers")
CODE = ("pmp", "ebpf", "inproc", "web/src")
EVERYWHERE = ("mend", "anew", "amid", "thereof", "culprit", "for ever")
"""Those of the list that comments and names of Python do not use either: begins of its patterns."""
EXEMPT = ("docs/glossary.md",)
"""It names the words that are not used."""
_C_STRING = re.compile(r'"(?:[^"\\\n]|\\.)*"')


def words(path: Path = WORD_LIST) -> dict[str, str]:
    """Return each pattern of a word list with what to write instead."""
    lines = (line for line in path.read_text().splitlines() if not line.startswith("#"))
    return dict(line.rsplit(" = ", 1) for line in lines if line.strip())


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the parts of a file that users read, with their line numbers."""
    data = path.read_text()
    if path.suffix == ".py":
        tree = ast.parse(data)
        docstrings = {
            node.value
            for node in ast.walk(tree)
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and node not in docstrings:
                yield node.lineno, str(node.value)
    elif path.suffix in (".c", ".h"):
        for number, line in enumerate(data.splitlines(), 1):
            if not line.lstrip().startswith(("//", "#include")):
                yield from ((number, found) for found in _C_STRING.findall(line))
    else:
        yield from enumerate(data.splitlines(), 1)


def everything(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the lines of a file, with names split into their words."""
    for number, line in enumerate(path.read_text().splitlines(), 1):
        yield number, re.sub(r"(?<=[a-z])(?=[A-Z])", " ", line.replace("_", " "))


def complaints(
    paths: Iterable[Path],
    listed: Mapping[str, str],
    parts: Callable[[Path], Iterator[tuple[int, str]]] = texts,
) -> Iterator[str]:
    """Yield a line for each listed word in the texts of the files."""
    compiled = {
        re.compile(rf"(?<![\w-])(?:{word})(?![\w-])", re.IGNORECASE): instead
        for word, instead in listed.items()
    }
    for path in paths:
        for number, text in parts(path):
            for pattern, instead in compiled.items():
                for match in pattern.finditer(text):
                    yield f"{path}:{number}: {match[0]!r}: write: {instead}"


def files(roots: Iterable[str] = (*TEXTS, *CODE)) -> Iterator[Path]:
    """Yield the files to check."""
    suffixes = {".md", ".py", ".toml", ".j2", ".c", ".h", ".js"}
    for root in roots:
        top = CHECKOUT / root
        for path in sorted(top.rglob("*")) if top.is_dir() else [top]:
            if path.suffix in suffixes and path.relative_to(CHECKOUT).as_posix() not in EXEMPT:
                yield path


def main() -> int:
    listed = words()
    found = list(complaints(files(), listed))
    code = [path for path in files((*TEXTS, "tests", "scripts")) if path.suffix == ".py"]
    own = (Path(__file__), CHECKOUT / "tests/unit/test_wordlint.py")
    bare = {word: say for word, say in listed.items() if word.startswith(EVERYWHERE)}
    found += complaints([path for path in code if path not in own], bare, everything)
    print(*found, sep="\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
