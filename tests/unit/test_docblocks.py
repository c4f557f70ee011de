# SPDX-License-Identifier: Apache-2.0
"""Sessions in the docs: how they are read, compared and shortened."""

from __future__ import annotations

import pytest

from tests.support import docblocks
from tests.support.docblocks import DocError

PAGE = """\
# A page

    $ an example, not a session

<!-- run: stall=row-lock until="blocked by" -->
<!-- picture: a.html ../img/a.png -->
```console
$ stallscope snap -p 4711
20 of 37 threads wait
[...]
  snapshot 0.5 ms
$ true
```

<!-- not run: needs systemd -->

```console
$ systemctl start stallscope
```

```
$ not a session either
```
"""


def test_a_page_has_its_sessions_with_what_its_comments_say() -> None:
    first, second = docblocks.blocks(PAGE)
    assert first.context == {"stall": "row-lock", "until": "blocked by"}
    assert first.picture == ("a.html", "../img/a.png")
    assert [command.line for command in first.commands] == ["stallscope snap -p 4711", "true"]
    assert first.commands[0].output[1] == "[...]"
    assert first.commands[1].output == ()
    assert PAGE.splitlines()[first.first] == "```console"
    assert PAGE.splitlines()[first.last] == "```"
    assert second.not_run == "needs systemd"
    assert second.context == {}


@pytest.mark.parametrize(
    "text",
    [
        "<!-- run: stal=row-lock -->\n```console\n$ true\n```",
        "<!-- run: stall= -->\n```console\n$ true\n```",
        "```console\n$ true\n",
        "```console\noutput of nothing\n```",
        "<!-- run: stall=row-lock -->\nA paragraph.\n",
        "<!-- not run: nothing follows -->\n",
    ],
)
def test_a_page_that_cannot_be_run_is_refused(text: str) -> None:
    with pytest.raises(DocError):
        docblocks.blocks(text)


SHOWN = (
    "mysqld 5.5.9 (pid 4711): 20 of 37 threads: Commits wait for the redo log to be",
    "synced [innodb-redo-sync] (confidence 0.86); blocked by thread 2883, waiting.",
    "[...]",
    "Capture",
    "  snapshot 0.5 ms, file: /tmp/x-1/a.zst at 0xfe12",
)


def test_figures_and_breaks_of_lines_may_differ() -> None:
    actual = [
        "mysqld 5.5.9 (pid 123456): 9 of 1207 threads: Commits wait for the redo log to",
        "be synced [innodb-redo-sync] (confidence 0.9); blocked by thread 123499,",
        "waiting.",
        "",
        "Anything here",
        "Capture",
        "  snapshot 1,2 s, file: /tmp/y/b.zst at 0x1",
    ]
    assert docblocks.difference(SHOWN, actual) is None


@pytest.mark.parametrize(
    ("there", "other"),
    [
        ("[innodb-redo-sync]", "[innodb-row-lock]"),
        ("blocked by thread 2883", "the blocker is unknown"),
        ("Capture", "Captures"),
        ("snapshot", "snapshots"),
        ("file:", "file"),
        ("mysqld", "mariadbd"),
    ],
)
def test_words_may_not(there: str, other: str) -> None:
    actual = [line.replace(there, other) for line in SHOWN]
    assert actual != list(SHOWN)
    assert docblocks.difference(SHOWN, actual) is not None


def test_more_or_less_than_is_shown_is_a_difference() -> None:
    lines = ("one line", "another")
    assert docblocks.difference(lines, list(lines)) is None
    assert docblocks.difference(lines, ["before", *lines]) is not None
    assert docblocks.difference(lines, [*lines, "after"]) is not None
    assert docblocks.difference(lines, ["one line"]) is not None
    assert docblocks.difference(("one line", "[...]"), [*lines, "after"]) is None
    assert docblocks.difference(("[...]", "another"), [*lines, "after"]) is not None
    assert docblocks.difference((), ["a warning"]) is not None


def test_a_new_output_is_shortened_where_the_old_one_was() -> None:
    old = ("pid 1: stall", "", "    [...]", "Capture", "  1 thread", "[...]")
    new = ["pid 22: stall", "", "Blocker", "  #0 f", "", "Capture", "  30 thread", "Notes"]
    wanted = ["pid 22: stall", "", "    [...]", "Capture", "  30 thread", "[...]"]
    assert docblocks.elided(old, new) == wanted
    assert docblocks.elided(("a", "b"), new) == new
    assert docblocks.elided(("pid 1: stall", "[...]", "Gone"), new) is None
    assert docblocks.difference(tuple(wanted), new) is None


def test_texts_are_found_however_lines_are_broken() -> None:
    shown = "threads wait for commit\n   0x1 now; the [innodb-\nredo-sync]"
    assert docblocks.missing("wait for commit 0x1; [innodb-redo-sync]", shown) == []
    assert docblocks.missing("wait for; [innodb-row-lock]", shown) == ["[innodb-row-lock]"]
