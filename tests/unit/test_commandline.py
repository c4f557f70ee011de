# SPDX-License-Identifier: Apache-2.0
"""Of a command line only what is listed is shown."""

from __future__ import annotations

import pytest

from stallscope.redaction import commandline
from tests.support.commandlines import HARMLESS, MARK, SECRETS


@pytest.mark.parametrize("arguments", SECRETS, ids=" ".join)
def test_no_secret_is_shown(arguments: tuple[str, ...]) -> None:
    found = commandline.shown(("mytool", *arguments))
    assert MARK not in "".join(found).upper()
    assert len(found) == 1 + len(arguments)
    assert found[0] == "mytool"


@pytest.mark.parametrize(("arguments", "shown"), HARMLESS.items(), ids=str)
def test_what_is_shown(arguments: tuple[str, ...], shown: tuple[str, ...]) -> None:
    assert commandline.shown(arguments) == shown


def test_the_list_has_options_of_servers_alone() -> None:
    """As they are compared: in lower case, with dashes; sorted, each once."""
    names = commandline._OPTIONS.read_text().split()
    assert names == sorted(set(names))
    assert all(len(name) == 1 or name == name.lower().replace("_", "-") for name in names)
