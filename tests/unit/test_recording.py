# SPDX-License-Identifier: Apache-2.0
"""The recording in the docs is that of the guide's session, and well-formed."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from tests.support.recording import CHECKOUT, COLUMNS, ROWS, commands, drawing, lines

pytestmark = pytest.mark.nightly


def test_the_recording_is_of_the_guide() -> None:
    svg = (CHECKOUT / "docs" / "img" / "recording.svg").read_text()
    wanted = ".venv/bin/python -m tests.support.recording draws it again"
    assert svg == drawing(commands()), wanted


def test_it_fits_and_is_xml() -> None:
    recorded = commands()
    root = ET.fromstring(drawing(recorded))
    texts = [element.text or "" for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert len(texts) == sum(len(list(lines(command))) for command in recorded)
    assert max(map(len, texts)) <= COLUMNS
    assert all(len(list(lines(command))) <= ROWS for command in recorded)
    assert any("KILL" in text for text in texts)
