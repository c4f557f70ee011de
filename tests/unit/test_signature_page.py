# SPDX-License-Identifier: Apache-2.0
"""docs/signatures.md is what the catalog says, and the command prints it."""

from __future__ import annotations

from pathlib import Path

import pytest

from stallscope.analyzers import catalog
from stallscope.main import main
from stallscope.reporters.signaturepage import markdown

PAGE = Path(__file__).resolve().parents[2] / "docs" / "signatures.md"


def test_the_page_is_up_to_date() -> None:
    how = "write it again: python -m stallscope signatures --markdown > docs/signatures.md"
    assert PAGE.read_text() == markdown(catalog.load()), how


def test_the_page_has_every_signature() -> None:
    text = PAGE.read_text()
    for signature in catalog.load().signatures:
        assert text.count(f"\n### {signature.id}\n") == 1
        assert signature.title in text


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["signatures", "--markdown"]) == 0
    assert capsys.readouterr().out == PAGE.read_text()
    assert main(["signatures", "--markdown", "metadata-lock"]) == 2
    assert "do not give an ID" in capsys.readouterr().err
