# SPDX-License-Identifier: Apache-2.0
"""Listed words are found in docs, messages, reports, comments and names.

That the project's own files have none is a step of ./scripts/test.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import wordlint

__all__: list[str] = []

PLANTED = {
    "page.md": ("How to mend it.\n", 1),
    "message.py": ('"""How to fix it."""\n\nHELP = f"how to mend {0}"\n', 3),
    "docstring.py": ('"""How to fix it.\n\nHow to mend it.\n"""\n', 3),
    "comment.py": ("fixed = 1\n# Mended.\n", 2),
    "name.py": ("fixed = 1\nto_mend = 2\n", 2),
    "class.py": ("fixed = 1\n\n\nclass ToMend:\n    pass\n", 4),
    "wrapped.py": ("# It is tried again for\n# ever.\n", 1),
    "main.c": ('// How to fix it.\nstatic const char help[] = "how to mend it";\n', 2),
    "line.h": ("int fixed; // not mended\n", 1),
    "block.bpf.h": ("/* It is tried again for\n * ever. */\n", 1),
    "function.c": ("int fixed;\nint stall_mend(void);\n", 2),
    "macro.h": ("#define STALL_MEND 1\n", 1),
    "include.c": ('#include "base/mend.h"\n', 1),
    "own.toml": ('remedies = ["Mend it."]\n', 1),
    "page.html.j2": ("<p>How to mend it</p>\n", 1),
}


def complaints(path: Path) -> list[str]:
    return list(wordlint.complaints([path], wordlint.words()))


@pytest.mark.parametrize("name", PLANTED)
def test_a_listed_word_is_found(tmp_path: Path, name: str) -> None:
    text, line = PLANTED[name]
    path = tmp_path / name
    path.write_text(text)
    (found,) = complaints(path)
    assert found.startswith(f"{path}:{line}: ")
    assert ": write: f" in found


@pytest.mark.parametrize("text", ["Recommended.", "amended", "a-mend", "Commit and remend"])
def test_only_whole_words_count(tmp_path: Path, text: str) -> None:
    path = tmp_path / "page.md"
    path.write_text(text)
    assert complaints(path) == []


def test_every_word_of_a_line_is_found(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text("mended = mendThis  # dear\n")
    assert len(complaints(path)) == 3


@pytest.mark.parametrize("folder", wordlint.ROOTS)
def test_every_folder_is_checked(folder: str) -> None:
    assert list(wordlint.files([folder]))
