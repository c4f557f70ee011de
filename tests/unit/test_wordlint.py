# SPDX-License-Identifier: Apache-2.0
"""Listed words are found wherever users read: docs, messages, signatures, reports."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import wordlint

PLANTED = {
    "page.md": "How to mend it.\n",
    "command.py": '"""How to fix it."""\n\nHELP = f"how to mend {0}"\n',
    "main.c": '// How to fix it.\nstatic const char help[] = "how to mend it";\n',
    "own.toml": 'remedies = ["Mend it."]\n',
    "page.html.j2": "<p>How to mend it</p>\n",
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_listed_word_is_found(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_text(PLANTED[name])
    (found,) = wordlint.complaints([path], wordlint.words())
    assert found.startswith(f"{path}:")
    assert "write: fix" in found


@pytest.mark.parametrize("text", ["Recommended.", "amended", "a_mend", "Commit and remend"])
def test_only_whole_words_count(tmp_path: Path, text: str) -> None:
    path = tmp_path / "page.md"
    path.write_text(text)
    assert list(wordlint.complaints([path], wordlint.words())) == []


def test_what_no_user_reads_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text('"""Mend."""\n\n\ndef run() -> None:\n    """Mend."""\n    # Mend.\n')
    assert list(wordlint.complaints([path], wordlint.words())) == []


def test_names_and_comments_are_split_into_words(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text("mended = mendThis  # dear\n")
    found = wordlint.complaints([path], wordlint.words(), wordlint.everything)
    assert len(list(found)) == 3


def test_the_texts_have_no_listed_word() -> None:
    assert wordlint.main() == 0
