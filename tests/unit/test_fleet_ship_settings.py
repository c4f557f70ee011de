# SPDX-License-Identifier: Apache-2.0
"""``[ship]`` and ``--ship``: what is wrong is said with its line, and no secret is shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from stallscope.base.errors import StallscopeError, UsageError
from stallscope.collectors.triggers.settings import AgentSettings
from stallscope.commands import _config, _ship
from stallscope.fleet.settings import (
    PASSWORD,
    ShipSettings,
    addresses,
    check,
    has_password,
    spool_bytes,
)
from stallscope.main import main, parser

__all__: list[str] = []

SECRET = "hidden-9931"


def config(tmp_path: Path, ship: str) -> Path:
    file = tmp_path / "agent.toml"
    file.write_text(f'[server]\ntarget = "mysqld"\n\n[ship]\n{ship}\n')
    file.chmod(0o640)
    return file


def ship_of(tmp_path: Path, ship: str) -> ShipSettings:
    return _config.read(config(tmp_path, ship)).servers[0].agent.ship


@pytest.mark.parametrize(
    ("ship", "said"),
    [
        ('url = "nothing"', "5: ship.url: it is no address"),
        ('url = "http://h/db"', "5: ship.url: http:// is not known"),
        ('url = ["file:///a", "file:///a"]', "5: ship.url: an address is there twice"),
        ('url = "file:///a"\nheartbeat = 1', "6: ship.heartbeat"),
        ('urls = "file:///a"', "did you mean 'url'?"),
        ('spool-size = "10k"', "5: ship.spool-size: it must be 1M to 1T"),
        ('spool-size = "much"', "5: ship.spool-size: 'much' is not a size"),
        ('host = "no host"', "5: ship.host"),
        ('url = "file:///a"\npassword = "p"', "6: ship.password: no address of url has a user"),
        ('url = "file:///a"\nurl-file = "/f"', "ship.url: give either url or url-file"),
        ('password = "p"\npassword-file = "/f"', "ship.password: give either password or"),
    ],
)
def test_a_mistake_is_said_with_its_line(tmp_path: Path, ship: str, said: str) -> None:
    with pytest.raises(StallscopeError) as found:
        ship_of(tmp_path, ship)
    assert said in str(found.value)
    assert "\n" not in str(found.value)


@pytest.mark.parametrize(
    "url",
    [
        f"clickhouse+https://u:{SECRET}@h:99999/db",
        f"clickhouse+https://u:{SECRET}@/db",
        f"clickhouse+https://u:{SECRET}@h/d b",
        f"wrong://u:{SECRET}@h/db",
        f"u:{SECRET}@h/db",
        f"clickhouse+https://u:{SECRET}@h/db\x1b[31m",
    ],
)
def test_a_message_about_an_address_has_no_password(tmp_path: Path, url: str) -> None:
    wrong = check(ShipSettings(url=url))
    assert wrong is not None
    assert SECRET not in wrong[1]
    assert wrong[1].isprintable()


def test_secrets_come_from_files_variables_and_credentials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLEET_SECRET", SECRET)
    (tmp_path / "cred").write_text(f"{SECRET}\n")
    (tmp_path / "urls").write_text(f"clickhouse+http://u:{SECRET}@h/db file:///a\n")
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    url = 'url = "clickhouse+http://u@h/db"\n'
    for ship in (
        f'{url}password = "${{FLEET_SECRET}}"',
        f'{url}password = "credential:cred"',
        f'{url}password-file = "{tmp_path}/cred"',
        f'{url}password-file = "cred"',
        f'url-file = "{tmp_path}/urls"',
        'url-file = "urls"',
        'url = "clickhouse+http://u:${FLEET_SECRET}@h/db"',
    ):
        first, *_ = addresses(ship_of(tmp_path, ship))
        assert (first.user, first.password) == ("u", SECRET), ship
    (tmp_path / "cred").write_text("")
    with pytest.raises(UsageError, match="must hold one line"):
        addresses(ship_of(tmp_path, f'{url}password-file = "cred"'))


def test_a_configuration_is_shown_without_secrets(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = config(
        tmp_path,
        f'url = ["clickhouse+http://u:{SECRET}@h/db", "file:///a"]\nspool-size = "5M"',
    )
    for words in (["config", "show", str(file)], ["config", "show", str(file), "--json"]):
        assert main(words) == 0
        shown = capsys.readouterr().out
        assert SECRET not in shown
        assert "5M" in shown
    file.chmod(0o644)
    assert main(["config", "check", str(file)]) == 0
    assert "everybody can read it" in capsys.readouterr().out
    config(tmp_path, 'url = "clickhouse+http://u@h/db"').chmod(0o644)
    assert main(["config", "check", str(file)]) == 0
    assert "everybody can read it" not in capsys.readouterr().out


@pytest.mark.parametrize("command", ["watch", "cron", "incidents"])
def test_a_password_on_the_command_line_is_refused_in_one_line(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, "--ship", f"clickhouse+http://u:{SECRET}@h"]) == 2
    out, error = capsys.readouterr()
    assert SECRET not in out + error
    assert error.count("\n") == 1
    assert "password-file" in error


def test_has_password() -> None:
    assert has_password("clickhouse+http://u:p@h/db")
    assert has_password("broken://u:p@")
    assert has_password("clickhouse+http://u%3Ap@h/db")
    assert not has_password("clickhouse+http://u@h:8123/db")
    assert not has_password("file:///a:b")


def test_the_option_wins_over_the_address_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = config(tmp_path, 'url = "file:///old"\nspool-size = "5M"')
    args = parser(["watch"]).parse_args(
        [
            "watch",
            "--config",
            str(file),
            "--ship",
            "clickhouse+http://u@h/db",
            "--ship",
            "file:///b",
        ]
    )
    (settings,) = _config.load(args).servers
    monkeypatch.setenv(PASSWORD, SECRET)
    found = _ship.settings_of(settings.options, settings.agent)
    assert spool_bytes(found) == 5 << 20
    first, second = addresses(found)
    assert (first.shown, first.password) == ("clickhouse+http://h:8123/db", SECRET)
    assert second.shown == "file:///b"
    assert _ship.settings_of(settings.options, AgentSettings()).heartbeat == 60.0
