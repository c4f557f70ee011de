# SPDX-License-Identifier: Apache-2.0
"""The triggers file: what it may say, and how its mistakes are shown."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from stallscope.base.errors import Exit
from stallscope.collectors.triggers import triggerfile
from stallscope.collectors.triggers.engine import Engine, status_variables
from stallscope.collectors.triggers.expression import FUNCTIONS
from stallscope.collectors.triggers.settings import (
    AgentSettings,
    BurstSettings,
    CommandSettings,
    HookSettings,
    TriggerSettings,
)
from stallscope.collectors.triggers.triggerfile import TriggerFileError
from stallscope.collectors.triggers.waiting import probe_options

TRIGGER = '[[trigger]]\nname = "own"\n'


def load(folder: Path, text: str) -> AgentSettings:
    path = folder / "own.toml"
    path.write_text(text)
    return triggerfile.load(path)


def names(settings: AgentSettings) -> list[str]:
    return [trigger.name for trigger in settings.triggers]


def test_defaults_are_sound() -> None:
    settings = triggerfile.defaults()
    Engine(settings)
    assert len(settings.triggers) > 8
    assert all(trigger.about for trigger in settings.triggers)
    assert settings.burst.captures == 20
    assert settings.disk_bytes_free == 100 << 20
    assert settings.retention_size == 1 << 30


def test_an_empty_file_is_the_defaults(tmp_path: Path) -> None:
    assert load(tmp_path, "") == triggerfile.defaults()


def test_the_defaults_are_a_file_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "copy.toml"
    path.write_bytes(triggerfile.DEFAULTS.read_bytes())
    assert triggerfile.load(path) == triggerfile.defaults()


def test_a_trigger_is_added_replaced_or_switched_off(tmp_path: Path) -> None:
    base = names(triggerfile.defaults())
    assert names(load(tmp_path, f'{TRIGGER}variable = "a > 1"')) == [*base, "own"]
    replaced = load(tmp_path, '[[trigger]]\nname = "row-lock"\nvariable = "a"\nthreshold = 3')
    assert names(replaced) == base
    assert next(t for t in replaced.triggers if t.name == "row-lock").threshold == 3
    off = load(tmp_path, '[[trigger]]\nname = "row-lock"\nenabled = false')
    assert names(off) == [name for name in base if name != "row-lock"]
    assert names(load(tmp_path, f'defaults = false\n{TRIGGER}variable = "a > 1"')) == ["own"]
    assert names(load(tmp_path, "defaults = false")) == []


def test_words_of_pt_stalk(tmp_path: Path) -> None:
    settings = load(
        tmp_path,
        """\
poll-interval = 0.05
retention-time = 7
retention-count = 100
retention-size = 500
disk-bytes-free = "1.5G"
disk-pct-free = 10
captures-an-hour = 12
[burst]
captures = 3
interval = 0.2
[plugin]
before-collect = ["/usr/local/bin/before", "x"]
[notify]
webhook = "https://example.org/hook"
[[trigger]]
name = "running"
variable = "Threads_running"
threshold = 25
""",
    )
    assert settings.poll_interval == 0.05
    assert settings.retention_time == 7
    assert settings.retention_count == 100
    assert settings.retention_size == 500 << 20, "a bare number is MB, as pt-stalk has it"
    assert settings.disk_bytes_free == 3 << 29
    assert settings.disk_pct_free == 10
    assert settings.captures_an_hour == 12
    assert (settings.burst.captures, settings.burst.interval) == (3, 0.2)
    assert settings.plugin.before_collect == ["/usr/local/bin/before", "x"]
    assert settings.notify.webhook == "https://example.org/hook"
    running = settings.triggers[-1]
    assert (running.cycles, running.interval, running.sleep, running.run_time) == (5, 1, 300, 30)


def test_commands(tmp_path: Path) -> None:
    settings = load(
        tmp_path,
        '[[command]]\nname = "queue"\nrun = ["/bin/queue", "-n"]\ninterval = 10\n'
        f"{TRIGGER}variable = 'command(\"queue\")'\nthreshold = 9",
    )
    assert settings.commands == (CommandSettings("queue", ["/bin/queue", "-n"], 10),)


def test_the_probe_gets_the_lowest_threshold_of_all_triggers(tmp_path: Path) -> None:
    settings = load(
        tmp_path,
        'defaults = false\n[[trigger]]\nname = "a"\nwait = "fsync"\nthreshold = 700\n'
        '[[trigger]]\nname = "b"\nwait = "sync"\nthreshold = 900\n'
        '[[trigger]]\nname = "c"\nwait = "mutex"\nthreshold = 200\nconvoy = 8\n'
        '[[trigger]]\nname = "d"\nwait = "lock"\nthreshold = 400\nconvoy = 5\n',
    )
    options = probe_options(settings.triggers)
    assert "--capture-threshold=fsync=700" in options
    assert "--capture-threshold=fdatasync=900" in options
    assert "--threshold=lock=200" in options
    assert "--convoy=5" in options


def test_status_variables(tmp_path: Path) -> None:
    settings = load(
        tmp_path,
        f"defaults = false\n{TRIGGER}variable = 'rate(Com_x) + process.cpu_share'\n"
        "threshold = 'greatest(1, Queries)'\nclear = 'Opens'\n",
    )
    assert status_variables(settings) == {
        "Com_x",
        "Queries",
        "Opens",
        "Uptime",
        "Uptime_since_flush_status",
    }


VARIABLE = f'{TRIGGER}variable = "Threads_running"\n'
WAIT = f'{TRIGGER}wait = "fsync"\n'


@pytest.mark.parametrize(
    ("text", "line", "complaint"),
    [
        # What the file is made of.
        ("poll-interval = \n", 1, "not valid TOML"),
        ("\n\nfunktion = 1\n", 3, "unknown field `funktion`: docs/triggers.md lists"),
        (f"{VARIABLE}threshold = 1\nfunction = 'status'", 5, "write it as 'variable'"),
        (f"{VARIABLE}threshold = 1\nmatch = 'x'", 5, 'write variable = .state."TEXT"'),
        ("poll-interval = 'fast'", 1, "Expected `float`, got `str`"),
        ("poll-interval = 0.01", 1, "Expected `float` >= 0.05"),
        ("captures-an-hour = 0", 1, "Expected `int` >= 1"),
        ("disk-pct-free = 101", 1, "<= 100"),
        ("retention-size = -1", 1, "less than 0"),
        ("retention-size = '5 apples'", 1, "'5 apples' is not a size, write a number with k, M"),
        ("disk-bytes-free = 'much'", 1, "'much' is not a size"),
        ("[burst]\ncaptures = 0\n", 2, "burst.captures: Expected `int` >= 1"),
        # Names.
        ('[[trigger]]\nvariable = "a > 1"\n', 1, "missing required field `name`"),
        ('[[trigger]]\nname = "a b"\nvariable = "a > 1"\n', 2, "a name has letters, digits"),
        (f"{VARIABLE}threshold = 1\n{VARIABLE}threshold = 1", 6, "'own' is defined twice"),
        (f"{TRIGGER}enabled = false", 2, "there is no such trigger to disable"),
        # The names that it reads.
        (f"{TRIGGER}threshold = 1\n", 2, "it has no condition: give a 'variable' or a 'wait'"),
        (f'{VARIABLE}wait = "fsync"\nthreshold = 1', 3, "not both"),
        (f"{TRIGGER}variable = '1 + 2'\nthreshold = 1", 3, "'1 . 2' never changes"),
        (f"{TRIGGER}variable = 'command(\"q\")'\nthreshold = 1", 3, "no \\[\\[command\\]\\] named"),
        (VARIABLE, 3, "it has no 'threshold'"),
        (f"{TRIGGER}variable = 'a > 1'\nthreshold = 1", 4, "is a condition, it has no 'thresh"),
        (f"{TRIGGER}variable = 'a > 1'\nclear = 1", 4, "is a condition, it has no 'clear'"),
        (f"{VARIABLE}threshold = 'a > 1'", 4, "'threshold' is a condition"),
        (f"{VARIABLE}threshold = 'a >'", 4, "unexpected end: a number"),
        (f"{VARIABLE}threshold = inf", 4, "write a number that can be reached"),
        # Values that contradict one another.
        (f"{VARIABLE}threshold = 5\nclear = 6", 5, "clear 6 is above the threshold 5"),
        (f"{VARIABLE}threshold = 5\nwhen='below'\nclear = 4", 6, "clear 4 is below the threshold"),
        (f"{VARIABLE}threshold = 5\nsleep = 10\nrun-time = 20", 6, "longer than sleep 10"),
        (f"{VARIABLE}threshold = 5\nconvoy = 3", 5, "needs 'wait'"),
        (f"{VARIABLE}threshold = 5\ncycles = 0", 5, "Expected `int` >= 1"),
        (f"{VARIABLE}threshold = 5\nclear-cycles = 0", 5, "Expected `int` >= 1"),
        # Waits.
        (
            f'{TRIGGER}wait = "fsnyc"\nthreshold = 1',
            3,
            "'fsnyc' is not a kind of wait; known kinds are",
        ),
        (WAIT, 1, "a number of milliseconds above 0"),
        (f"{WAIT}threshold = 0", 4, "a number of milliseconds above 0"),
        (f"{WAIT}threshold = 'a'", 4, "a number of milliseconds above 0"),
        (f"{WAIT}threshold = 9\nclear = 1", 5, "clear does not apply to a wait"),
        (
            f"{TRIGGER}variable = 'rate(innodb.history_list)'\nthreshold = 1",
            3,
            "'innodb.history_list' was renamed to innodb.history_list_length",
        ),
        (
            f"{TRIGGER}variable = 'innodb.histry_list_length'\nthreshold = 1",
            3,
            "the InnoDB status has no number 'innodb.histry_list_length'; known names are"
            " innodb.check",
        ),
        (f"{WAIT}threshold = 9\nconvoy = 1", 5, "Expected `int` >= 2"),
        # Programs.
        ('[[command]]\nname = "q"\nrun = []', 3, "length >= 1"),
        (
            '[[command]]\nname = "q"\nrun = ["queue"]',
            3,
            "'queue' is not an absolute path; there is no shell",
        ),
        ('[[command]]\nname = "q"\nrun = ["/q"]\ndeadline = 0', 4, "Expected `float` > 0"),
        (
            '[plugin]\nbefore-collect = ["x"]',
            2,
            "plugin.before-collect: 'x' is not an absolute path",
        ),
        ('[notify]\ncommand = ["mail"]', 2, "notify.command: 'mail' is not an absolute path"),
        ('[notify]\nwebhook = "ftp://x"', 2, "it is not a URL, write http"),
    ],
)
def test_mistakes_name_their_line(tmp_path: Path, text: str, line: int, complaint: str) -> None:
    with pytest.raises(TriggerFileError, match=complaint) as caught:
        load(tmp_path, text)
    message = str(caught.value)
    assert message.startswith(f"{tmp_path / 'own.toml'}:{line}: "), message
    assert "\n" not in message
    assert caught.value.exit_code == Exit.USAGE


def test_too_many_triggers(tmp_path: Path) -> None:
    many = "".join(
        f'[[trigger]]\nname = "t{number}"\nvariable = "a > 1"\n' for number in range(201)
    )
    with pytest.raises(TriggerFileError, match=r"own.toml:601: more than 200 triggers"):
        load(tmp_path, many)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(TriggerFileError, match="cannot be read: No such file"):
        triggerfile.load(tmp_path / "missing.toml")
    large = tmp_path / "large.toml"
    large.write_bytes(b"#" * (5 << 20))
    with pytest.raises(TriggerFileError, match="which no triggers file is"):
        triggerfile.load(large)


def test_the_page_has_every_key_trigger_and_function() -> None:
    page = (Path(__file__).parents[2] / "docs" / "triggers.md").read_text()
    keys = [
        key
        for kind in (AgentSettings, TriggerSettings, CommandSettings, HookSettings, BurstSettings)
        for key in kind.__struct_encode_fields__
        if key not in ("commands", "triggers", "destinations")
    ]
    wanted = [*keys, *names(triggerfile.defaults())]
    assert [key for key in wanted if f"`{key}`" not in page and f"`[{key}]`" not in page] == []
    assert [name for name in FUNCTIONS if f"`{name}(" not in page] == []


def test_the_examples_of_the_page_are_sound(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "triggers.md").read_text()
    text = page.partition("## Your own file\n")[2].partition("Triggers of the file are")[0]
    settings = load(tmp_path, textwrap.dedent(text))
    assert {"scans", "leak", "io-pressure", "slow-fsync", "orders"} <= set(names(settings))
    assert "opening-tables" not in names(settings)
