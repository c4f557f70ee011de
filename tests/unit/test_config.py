# SPDX-License-Identifier: Apache-2.0
"""Configuration files of the agent: keys, mistakes with their lines, what wins, secrets."""

from __future__ import annotations

import json
import re
import stat
import textwrap
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stallscope.base.errors import Exit, UsageError
from stallscope.collectors.sql.login import Login
from stallscope.collectors.triggers import triggerfile
from stallscope.commands import _agentoptions, _config, _configreader, _notify
from stallscope.commands._configreader import ACCOUNT_KEYS, TABLES
from stallscope.main import main, parser

ROOT = Path(__file__).parent.parent.parent
DOCS = ROOT / "docs" / "config.md"
TARGET = '[server]\ntarget = "mysqld"\n'


def written(folder: Path, text: str, name: str = "orders.toml") -> Path:
    path = folder / name
    path.write_text(textwrap.dedent(text))
    path.chmod(0o640)
    return path


def load(path: Path | None, *more: str, command: str = "watch") -> _config.Configuration:
    given = [] if path is None else ["--config", str(path)]
    return _config.load(parser([command]).parse_args([command, *given, *more]))


def errors(folder: Path, text: str) -> list[str]:
    path = written(folder, text)
    examined = _config.examine(path)
    assert (examined.configuration is None) == bool(examined.errors)
    return [error.removeprefix(f"{path}:") for error in examined.errors]


def options_of(command: str) -> set[str]:
    words = [
        word
        for action in parser([command])._subparsers._group_actions[0].choices[command]._actions  # type: ignore[union-attr,index]
        for word in action.option_strings[-1:]
    ]
    return {word.removeprefix("--") for word in words} - {"help", "debug"}


@pytest.mark.parametrize("command", ["watch", "cron"])
def test_each_option_is_a_key(command: str) -> None:
    keys = {key for table in _agentoptions.keys().values() for key in table}
    keys |= {*triggerfile.KEYS, *_agentoptions.NOT_KEYS}
    assert (options_of(command) - {"pid"}) - keys == set()
    assert _agentoptions.TARGET in keys  # --pid
    assert options_of("watch") | options_of("cron") >= _agentoptions.NOT_KEYS


def test_the_page_has_each_key() -> None:
    text = DOCS.read_text()
    keys = _agentoptions.keys()
    documented = {
        table: set(re.findall(r"`([a-z-]+)`", " ".join(re.findall(r"^\| (`.*?) \|", part, re.M))))
        for table, part in re.findall(r"^### `\[+(\w+)\]+`\n(.*?)(?=^##|\Z)", text, re.M | re.S)
    }
    assert documented["server"] == {*keys["server"], "name", "sql"}
    assert documented["sql"] == {*keys["sql"], *ACCOUNT_KEYS}
    assert documented["agent"] == set(keys["agent"])
    top = text.partition("\n### ")[0]
    assert {key for key in (*triggerfile.KEYS, *TABLES) if f"`{key}`" not in top} == set()


def test_a_trigger_file_with_a_server_is_a_configuration(tmp_path: Path) -> None:
    path = written(tmp_path, triggerfile.DEFAULTS.read_text() + TARGET)
    (server,) = load(path).servers
    assert server.agent == triggerfile.defaults()
    assert (server.name, server.options.pid) == ("orders", "mysqld")


def test_all_mistakes_are_found_each_with_its_line(tmp_path: Path) -> None:
    found = errors(
        tmp_path,
        """\
        poll-intervall = 1
        burst = {captures = 0}
        [server]
        targt = "mysqld"
        port = "x"
        [sql]
        login-path = [1]
        [agent]
        always-on = 1
        log-format = "xml"
        prometeus = "/x"
        notify-command = "'"
        [[trigger]]
        name = "a b"
        variable = "Threads_running"
        [[trigger]]
        cycles = 3
        [[trigger]]
        name = "zz"
        cycle = 1
        variable = "a > 1"
        [[trigger]]
        name = "last"
        variable = "a > 1"
        run-time = 400
        """,
    )
    said = "\n".join(found)
    for number, text in (
        (1, "unknown key 'poll-intervall': did you mean 'poll-interval'?"),
        (2, "burst.captures: Expected `int` >= 1"),
        (4, "server: unknown key 'targt': did you mean 'target'?"),
        (5, "server.port: 'x' is not a port"),
        (7, "sql.login-path: '[1]' is neither a number nor a string"),
        (9, "agent.always-on: must be true or false"),
        (10, "agent.log-format: 'xml' is none of text, json"),
        (11, "agent: unknown key 'prometeus': did you mean 'prometheus'?"),
        (12, "--notify-command: No closing quotation"),
        (14, "trigger 'a b': a name has letters"),
        (15, "trigger 'a b': it has no 'threshold'"),
        (16, "trigger[1]: Object missing required field `name`"),
        (20, "trigger 'zz': Object contains unknown field `cycle`: did you mean 'cycles'?"),
        (25, "trigger 'last': run-time 400 is longer than sleep 300"),
        (3, "server: which one?"),
    ):
        assert any(e.startswith(f"{number}: ") and text in e for e in found), f"{text}\n{said}"
    assert len(found) == 15, said


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "which one? give target"),
        ("[server]\ntarget = true\n", "'True' is neither"),
        ("server = 1\n", "write it as a table, [server]"),
        ("server = []\n", "0 servers"),
        ("server = [1]\n", "write [[server]]"),
        ("agent = []\n" + TARGET, "write it as a table, [agent]"),
        ("destination = {}\n" + TARGET, "destination: Expected `array`"),
        ("[[server]]\nport = 1\n", "'name' is missing"),
        ('[[server]]\nname = "a/b"\nport = 1\n', "'a/b' is no name"),
        (
            '[[server]]\nname = "a"\nport = 1\n[[server]]\nname = "a"\nport = 2\n',
            "server 'a' is there twice",
        ),
        ('[sql]\npassword = 1\nuser = "a"\n' + TARGET, "sql.password: must be a string"),
        ('[sql]\npassword = "a"\npassword-file = "/x"\n' + TARGET, "either 'password' or"),
        ('[sql]\npassword-file = "/nowhere/x"\n' + TARGET, "cannot read /nowhere/x"),
        ('[sql]\nno-sql = true\ndefaults-file = "/x"\n' + TARGET, "contradict"),
        ('[sql]\npassword = "credential:../x"\n' + TARGET, "is not the name of a credential"),
        ('[agent]\npack-dir = "/nowhere"\n' + TARGET, "no such directory"),
        ('[agent]\nwebhook = "ftp://x"\n' + TARGET, "--webhook: it is not a URL"),
        ('[agent]\ntriggers = "/nowhere"\n' + TARGET, "/nowhere: cannot be read"),
        ("[agent]\nonce = true\n" + TARGET, "unknown key 'once'"),
        ('[agent]\ndest = "a\\u0000b"\n' + TARGET, "null character"),
        ("[server\n", "not valid TOML"),
        ('[burst]\n"`" = 1\n' + TARGET, "unknown field"),
        ('[burst]\n"a.b[0]" = 1\n' + TARGET, "unknown field"),
        (
            '[agent]\nring = "/x"\n[[server]]\nname = "a"\nport = 1\n[[server]]\nname = "b"\n'
            "port = 2\n",
            "name its folder",
        ),
    ],
)
def test_a_mistake_is_named(text: str, said: str, tmp_path: Path) -> None:
    found = errors(tmp_path, text)
    assert any(said in error for error in found), found
    with pytest.raises(UsageError, match=r"orders\.toml|/nowhere"):
        load(tmp_path / "orders.toml")


def test_the_command_line_wins(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        f"""\
        poll-interval = 0.5
        [server]
        target = "mysqld"
        [sql]
        defaults-file = "/from/file"
        [agent]
        dest = "/from/file"
        log-format = "json"
        pack-dir = ["{tmp_path}"]
        seconds = 7
        """,
    )
    (plain,) = load(path).servers
    assert (plain.options.log_format, plain.options.pid) == ("json", "mysqld")
    assert plain.options.pack_dir == [tmp_path]
    assert plain.options.signatures == []
    assert plain.agent.poll_interval == 0.5
    assert load(path, command="cron").options.seconds == 7
    assert load(path, "--seconds", "9", command="cron").options.seconds == 9
    more = ["--dest", "/here", "--log-format", "text", "-p", "mariadbd", "--no-sql"]
    (server,) = load(path, *more).servers
    options = server.options
    assert (str(options.dest), options.log_format, options.pid) == ("/here", "text", "mariadbd")
    assert (options.no_sql, options.defaults_file) == (True, None)
    (server,) = load(path, "--pack-dir", str(tmp_path.parent)).servers
    assert server.options.pack_dir == [tmp_path.parent]


def test_options_of_sql_win_over_no_sql_of_the_file(tmp_path: Path) -> None:
    path = written(tmp_path, f"[sql]\nno-sql = true\n{TARGET}")
    assert load(path).options.no_sql
    assert not load(path, "--defaults-file", "/x").options.no_sql


def test_without_a_file_the_options_are_as_they_were() -> None:
    (server,) = load(None, "-p", "mysqld").servers
    assert (server.name, server.options.log_format) == ("mysqld", "text")
    assert server.options.backend == "auto"
    assert load(None, "-p", "..").servers[0].name == "server"
    assert load(None, "--socket", "/run/a b.sock").servers[0].name == "run_a_b.sock"
    with pytest.raises(UsageError, match="which server"):
        load(None)


def test_several_servers_have_logins_of_their_own(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        """\
        [sql]
        user = "watcher"
        password = "all"
        [[server]]
        name = "a"
        port = 3306
        [[server]]
        name = "b"
        socket = "/run/b.sock"
        [server.sql]
        password-file = "PATH"
        login-path = "b"
        """.replace("PATH", str(written(tmp_path, "of b\n", "secret"))),
    )
    configuration = load(path)
    a, b = configuration.servers
    assert (a.account.user, a.account.password) == ("watcher", "all")
    assert (b.account.user, b.account.password) == ("watcher", "of b")
    assert (a.options.login_path, b.options.login_path) == (None, "b")
    assert (a.selector.port, b.selector.socket) == (3306, "/run/b.sock")
    assert b.account.applied(Login("root", password="x")).password == "of b"
    assert "of b" not in repr(b.account)
    with pytest.raises(UsageError, match="several servers"):
        load(path, "-p", "1")


def test_secrets_come_from_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(
        tmp_path,
        """\
        [server]
        target = "mysqld"
        [sql]
        user = "${WATCHER}"
        password = "credential:sql"
        [[destination]]
        kind = "slack"
        url = "https://slack/x"
        [[destination]]
        kind = "webhook"
        url = "https://${HOST}/$${x}"
        """,
    )
    examined = _config.examine(path)
    assert not examined.errors
    lines = [warning.removeprefix(f"{path}:").partition(":")[0] for warning in examined.warnings]
    assert lines == ["4", "5", "11"]
    with pytest.raises(UsageError, match="no variable 'WATCHER'"):
        load(path)
    (tmp_path / "sql").write_text("s3cret\n")
    for name, value in (("WATCHER", "w"), ("HOST", "h"), ("CREDENTIALS_DIRECTORY", str(tmp_path))):
        monkeypatch.setenv(name, value)
    (server,) = load(path).servers
    assert (server.account.user, server.account.password) == ("w", "s3cret")
    assert getattr(server.agent.destinations[1], "url", None) == "https://h/${x}"


@pytest.mark.parametrize(
    ("text", "warned"),
    [
        ('[sql]\npassword = "x"\n', True),
        ('[sql]\npassword = "${HOME}"\n', False),
        ('[sql]\nuser = "x"\n', False),
        ('[[destination]]\nkind = "slack"\nurl = "https://hook/T1"\n', True),
        (
            '[[destination]]\nkind = "webhook"\nurl = "https://${HOME}/"\n'
            '[destination.headers]\nAuthorization = "B"\n',
            True,
        ),
    ],
)
def test_a_secret_that_everybody_can_read_is_a_warning(
    text: str, warned: bool, tmp_path: Path
) -> None:
    path = written(tmp_path, text + TARGET)
    assert _config.examine(path).warnings == ()
    path.chmod(0o644)
    (*found,) = _config.examine(path).warnings
    assert [True] * warned == ["everybody can read it" in warning for warning in found]


def test_a_file_that_everybody_can_write_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, TARGET)
    path.chmod(0o646)
    assert path.stat().st_mode & stat.S_IWOTH
    with pytest.raises(UsageError, match="can be written to by others"):
        load(path)


def test_what_changes_only_with_a_restart(tmp_path: Path) -> None:
    def of(text: str) -> _config.Configuration:
        return load(written(tmp_path, text))

    old = of(TARGET)
    assert _config.changed_keys(old, of(TARGET + "[sql]\nno-sql = true\n")) == []
    assert _config.changed_keys(old, of("captures-an-hour = 1\n" + TARGET)) == []
    assert _config.changed_keys(old, of(TARGET + "[agent]\njson = true\n")) == []
    assert _config.changed_keys(old, of('[server]\ntarget = "other"\n')) == ["target"]
    changed = of(TARGET + '[agent]\ndest = "/x"\nno-probe = true\n')
    assert _config.changed_keys(old, changed) == ["dest", "no-probe"]
    assert _config.changed_keys(old, of('[server]\nname = "new"\ntarget = "mysqld"\n')) == [
        "server"
    ]


def test_check_prints_every_mistake(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = written(tmp_path, TARGET, "good.toml")
    bad = written(tmp_path, "[agent]\nx = 1\n" + TARGET + "y = 2\n", "bad.toml")
    assert main(["config", "check", str(good)]) == Exit.DONE
    assert "good.toml: no errors; watches good; " in capsys.readouterr().out
    assert main(["config", "check", str(good), str(bad)]) == Exit.USAGE
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(": ")[0] for line in lines] == [str(good), "error", "error"]
    assert main(["config", "check", str(good), str(bad), "--json"]) == Exit.USAGE
    found = json.loads(capsys.readouterr().out)
    assert found["schema"] == "stallscope.config/1"
    assert [one["servers"] for one in found["files"]] == [["good"], []]
    assert [error["line"] for error in found["files"][1]["errors"]] == [2, 5]
    assert {error["file"] for error in found["files"][1]["errors"]} == {str(bad)}


def test_check_takes_all_of_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("stallscope.commands.config.FOLDER", tmp_path)
    assert main(["config", "check"]) == Exit.USAGE
    assert "no configuration" in capsys.readouterr().err
    written(tmp_path, TARGET, "a.toml")
    written(tmp_path, TARGET, "b.toml")
    assert main(["config", "check"]) == Exit.DONE
    assert "watches a" in (out := capsys.readouterr().out)
    assert "watches b" in out


@pytest.mark.parametrize(
    ("options", "warned"),
    [
        (("--webhook", "https://h/hooks/T1"), True),
        (("--webhook", "https://u:p@h"), True),
        (("--webhook", "https://h/?token=1"), True),
        (("--webhook", "http://h:80/"), False),
        (("--webhook-file", "/x"), False),
        ((), False),
    ],
)
def test_an_address_on_the_command_line(options: Sequence[str], warned: bool) -> None:
    found = load(None, "-p", "mysqld", *options)
    assert [warning.partition(":")[0] for warning in found.warnings] == ["--webhook"] * warned
    assert not [warning for warning in found.warnings if "//" in warning]
    destinations = _notify.settings_of(found.options, found.servers[0].agent)
    assert [getattr(one, "url_file", "") for one in destinations] == (
        [""] if "--webhook" in options else list(options[1:])
    )


def test_an_address_is_given_once() -> None:
    with pytest.raises(UsageError, match="either --webhook or --webhook-file"):
        load(None, "-p", "mysqld", "--webhook", "http://h/", "--webhook-file", "/x")


SECRET_TABLES = """\
[sql]
password = "S3CR3T"
[agent]
notify-command = "/bin/a --token S3CR3T"
webhook = "https://u:S3CR3T@S3CR3T/S3CR3T?S3CR3T"
[plugin]
before-stalk = ["/bin/b", "-pS3CR3T"]
after-stalk = ["/bin/c", "S3CR3T"]
[notify]
link = "https://w/{id}?S3CR3T"
command = ["/bin/d", "S3CR3T"]
[ship]
url = "clickhouse+https://u:S3CR3T@S3CR3T/d"
[[command]]
name = "e"
run = ["/bin/e", "S3CR3T", "--x=S3CR3T"]
[[destination]]
kind = "command"
run = ["/bin/f", "S3CR3T"]
[[destination]]
kind = "webhook"
url = "https://h/S3CR3T"
secret = "S3CR3T"
[destination.headers]
X-Any = "S3CR3T"
Content-Type = "S3CR3T"
[[destination]]
kind = "apprise"
url = "tgram://S3CR3T/1"
[[destination]]
kind = "pagerduty"
routing-key = "S3CR3T"
"""


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_show_prints_no_secret(
    form: Sequence[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path, TARGET + SECRET_TABLES)
    assert main(["config", "show", str(path), *form]) == Exit.DONE
    out = capsys.readouterr().out
    assert "S3CR3T" not in out
    for program in "abcdef":
        assert f"/bin/{program}" in out
    assert "X-Any" in out


def test_which_keys_show_hides() -> None:
    """A key that is added is hidden until it is listed."""
    numbers = {
        *(
            "allow-redo",
            "captures",
            "captures-an-hour",
            "clear-cycles",
            "convoy",
            "critical-threads",
        ),
        *(
            "cycles",
            "deadline",
            "defaults",
            "disk-pct-free",
            "duration",
            "enabled",
            "every-minutes",
        ),
        *("heartbeat", "hold", "interval", "least-firing", "poll-interval", "port", "redact"),
        *("repeat", "resolve", "retention-count", "retention-time", "run-time", "seconds", "sleep"),
        "waits-every",
    }
    keys = {
        key
        for kind, table in _agentoptions.keys().items()
        for key, action in table.items()
        if action.nargs != 0
    }
    keys |= {key for table in triggerfile._TABLES.values() for key in table}
    tables = set(triggerfile._TABLES)
    assert keys - tables - numbers - _config._SHOWN - _config.COMMANDS == {
        *("api-key", "headers", "link", "password", "routing-key", "secret", "token", "url"),
        "webhook",
    }


def test_what_show_prints_is_a_file_with_the_same_meaning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(
        tmp_path,
        f"""\
        retention-size = 500
        [sql]
        user = "w"
        password = "s3cret"
        [agent]
        pack-dir = ["{tmp_path}"]
        [[server]]
        name = "a"
        port = 1
        [[server]]
        name = "b"
        socket = "/tmp/\\u007f\\"b"
        [[command]]
        name = "c"
        run = ["/bin/true"]
        [[destination]]
        kind = "slack"
        url = "https://hook/T1"
        """,
    )
    assert main(["config", "show", str(path)]) == Exit.DONE
    out = capsys.readouterr().out
    assert "s3cret" not in out
    assert "hook" not in out
    again = load(written(tmp_path, out, "again.toml"))
    before = load(path)
    for one, other in zip(again.servers, before.servers, strict=True):
        (masked,) = one.agent.destinations
        assert getattr(masked, "url", None) == "https://***"
        assert (
            msgspec.structs.replace(one.agent, destinations=other.agent.destinations) == other.agent
        )
        assert vars(one.options) | {"config": None} == vars(other.options) | {"config": None}
        assert (one.name, one.account.user) == (other.name, other.account.user)
    assert main(["config", "show", str(path), "--json"]) == Exit.DONE
    assert json.loads(capsys.readouterr().out)["server"][1]["name"] == "b"


@pytest.mark.parametrize("args", [["show"], ["show", "a", "b"], ["what"], ["show", "/nowhere"]])
def test_config_refuses(args: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", *args]) == Exit.USAGE
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=8,
)
_KEYS = [*triggerfile.KEYS, *TABLES, "name", "run", "sql", "target", "variable", "dest", "json"]
_HOSTILE = st.dictionaries(
    st.sampled_from(_KEYS) | st.text(max_size=6),
    st.dictionaries(st.sampled_from(_KEYS), _VALUES, max_size=4)
    | st.lists(st.dictionaries(st.sampled_from(_KEYS), _VALUES, max_size=4), max_size=3)
    | _VALUES,
    max_size=6,
)


@settings(max_examples=30)
@given(_HOSTILE)
def test_any_values_are_examined(
    tmp_path_factory: pytest.TempPathFactory, value: dict[str, object]
) -> None:
    path = tmp_path_factory.getbasetemp() / "hostile.toml"
    path.write_text("")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_configreader._reader, "load", lambda path: value)
        examined = _config.examine(path)
    assert (examined.configuration is None) == bool(examined.errors)
