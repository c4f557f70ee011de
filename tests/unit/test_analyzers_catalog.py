# SPDX-License-Identifier: Apache-2.0
"""The catalog: what the package ships is sound, and mistakes in a user's file are explained."""

from __future__ import annotations

from pathlib import Path

import pytest

from stallscope.analyzers import catalog
from stallscope.analyzers.catalog import CatalogError

SIGNATURE = """\
[[signature]]
id = "own-stall"
title = "A stall of our own"
servers = ["any"]
versions = "any"
precedence = 70
meaning = "Something waits."
remedies = ["Do something."]
references = ["https://example.com/"]
"""
WAITER = '[[signature.waiter]]\nstack = ["own_wait"]\n'
SOUND = f'family = "own"\n{SIGNATURE}{WAITER}'


def write(folder: Path, text: str) -> Path:
    path = folder / "own.toml"
    path.write_text(text)
    return path


@pytest.mark.parametrize("signature", catalog.load().signatures, ids=lambda s: s.id)
def test_each_signature_helps_its_reader(signature: catalog.Signature) -> None:
    assert len(signature.meaning) > 80
    assert len(signature.remedies) >= 2
    assert signature.references
    assert all(reference.startswith("https://") for reference in signature.references)
    assert signature.title[0].isupper()
    assert not signature.title.endswith(".")
    assert signature.versions


def test_a_users_folder_adds_and_replaces(tmp_path: Path) -> None:
    write(tmp_path, SOUND)
    assert "own-stall" in catalog.load([tmp_path]).by_id
    write(tmp_path, SOUND.replace("own-stall", "metadata-lock"))
    assert catalog.load([tmp_path]).by_id["metadata-lock"].title == "A stall of our own"


def test_check_names_the_problems_of_the_file(tmp_path: Path) -> None:
    assert [s.id for s in catalog.check(write(tmp_path, SOUND))] == ["own-stall"]


def test_check_of_a_file_of_the_package() -> None:
    path = catalog.PACKAGE_DATA / "common.toml"
    assert "mutex-deadlock" in [s.id for s in catalog.check(path)]


def test_a_folder_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(CatalogError, match="not a folder"):
        catalog.load([tmp_path / "nowhere"])


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(CatalogError, match="cannot be read"):
        catalog.check(tmp_path / "nowhere.toml")


LINES = SOUND.splitlines()


@pytest.mark.parametrize(
    ("change", "line", "complaint"),
    [
        # what is written → what the mistake is, and on which line it has to be found
        (("family = ", "family : "), 1, "not valid TOML"),
        (('stack = ["own_wait"]', 'stack = ["own_wait"'), 12, "not valid TOML"),
        (("own-stall", "Own Stall"), 3, "signature 'Own Stall'.id: lower-case letters"),
        (('title = "A stall of our own"\n', ""), 2, "missing required field `title`"),
        (
            ("precedence = 70", 'precedence = "high"'),
            7,
            "'own-stall'.precedence: Expected `int`, got `str`",
        ),
        (("precedence = 70", "precedence = -1"), 7, "0 or more"),
        (("precedence", "precedent"), 7, "unknown field `precedent`"),
        (("precedence = 70", "precedence = 70\nmin_waiters = 0"), 8, "1 or more"),
        (("precedence = 70", 'precedence = 70\nholders = "maybe"'), 8, "one of optional"),
        (("precedence = 70", 'precedence = 70\nholders = "required"'), 2, "there is none"),
        (
            ("precedence = 70", 'precedence = 70\nexplains = ["no-such"]'),
            8,
            "no signature is called",
        ),
        (("precedence = 70", 'precedence = 70\ncauses = ["no-such"]'), 8, "no signature is"),
        (("precedence = 70", 'precedence = 70\nsites = ["a of"]'), 8, "PLACE"),
        (("https://example.com/", "see the manual"), 10, "no address"),
        (
            ("own_wait", "own wait"),
            12,
            "'own-stall'.waiter: 'own wait': 'own wait' has a blank in it",
        ),
        (("own_wait", "@nothing"), 12, "no set is called @nothing"),
        (('["own_wait"]', "[]"), 12, "it has no pattern"),
        (('["own_wait"]', "[7]"), 12, "Expected `str`, got `int`"),
        (('stack = ["own_wait"]', 'stacks = ["own_wait"]'), 12, "unknown field `stacks`"),
        (('stack = ["own_wait"]', 'versions = "x"'), 11, "missing required field `stack`"),
        (("[[signature.waiter]]", "[[signature.witer]]"), 11, "unknown field `witer`"),
        (
            ("[[signature]]", '[[idle]]\nwhat = "x"\nstack = ["a, ..."]\n[[signature]]'),
            4,
            "idle[0].stack: 'a, ...': it ends with",
        ),
        (("[[signature]]", '[[wait]]\nkind = "x"\nframes = ["a b"]\n[[signature]]'), 4, "blank"),
        (
            ("[[signature]]", '[sets]\nftwrl = ["other"]\n[[signature]]'),
            3,
            "sets.ftwrl: another file has a set",
        ),
        (('family = "own"\n', ""), None, "missing required field `family`"),
        ((WAITER, ""), 2, "nothing to find"),
        ((WAITER, WAITER + '[[signature.release]]\nrole = "x"\nstack = []\n'), 15, "no pattern"),
        (
            (WAITER, WAITER + '[[signature.release]]\nstack = ["f"]\n'),
            13,
            "release[0]: Object missing required field `role`",
        ),
        (
            (WAITER, WAITER + '[[signature.release]]\nrole = "x"\nstack = ["f"]\nthen = ["f("]\n'),
            16,
            "'f(' has arguments",
        ),
        (("[[signature]]", '[sets]\na = ["@a"]\n[[signature]]'), None, None),
    ],
    ids=lambda value: value[1] if isinstance(value, tuple) else None,
)
def test_mistakes_name_their_line(
    tmp_path: Path, change: tuple[str, str], line: int | None, complaint: str | None
) -> None:
    assert change[0] in SOUND
    path = write(tmp_path, SOUND.replace(*change, 1))
    if complaint is None:  # a set that nothing uses is not read
        assert catalog.check(path)
        return
    with pytest.raises(CatalogError) as caught:
        catalog.check(path)
    assert complaint in str(caught.value)
    place = str(path) if line is None else f"{path}:{line}"
    assert str(caught.value).startswith(f"{place}: ")
    assert "\n" not in str(caught.value)
    with pytest.raises(CatalogError, match=r"own\.toml"):
        catalog.load([tmp_path])


def test_a_mistake_in_the_second_signature_names_its_own_line(tmp_path: Path) -> None:
    second = SIGNATURE.replace("own-stall", "own-stall-two") + WAITER.replace("own_wait", "a b")
    path = write(tmp_path, SOUND + second)
    with pytest.raises(CatalogError, match=r"'own-stall-two'\.waiter: 'a b'") as caught:
        catalog.check(path)
    assert str(caught.value).startswith(f"{path}:{2 * len(LINES) - 1}: ")


def test_an_id_that_is_there_twice(tmp_path: Path) -> None:
    path = write(tmp_path, SOUND + SIGNATURE + WAITER)
    with pytest.raises(CatalogError, match="twice in this file") as caught:
        catalog.check(path)
    assert str(caught.value).startswith(f"{path}:{len(LINES) + 2}: ")
