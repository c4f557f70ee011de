# SPDX-License-Identifier: Apache-2.0
"""Which of the programs of a name is the server, at first, and after a restart."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from stallscope.agent import pinfile
from stallscope.base.errors import UsageError
from stallscope.collectors import pins, processes, procfile
from stallscope.collectors.pins import Guard, Pin
from stallscope.collectors.processes import NotRunningError, Server
from stallscope.model.incident import TargetEntry
from stallscope.store.serverstate import ServerState
from tests.unit.agentlog import Messages

__all__: list[str] = []

MYSQL, PERSON, WEB, NOBODY = 112, 1000, 33, 65_534
EXE = "/usr/sbin/mariadbd"


@pytest.fixture(autouse=True)
def host(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """A host with an account for the server, whose programs are root's if not said otherwise."""
    owners = {EXE: 0}
    monkeypatch.setattr(pins, "_local_users", lambda: {"root": 0, "mysql": MYSQL, "bob": PERSON})
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(pins, "_owner_of", lambda server, datadir: OWNERS.get(datadir))
    monkeypatch.setattr(procfile, "owner", lambda link: (owners.get(str(link), 0), 0o755))
    return owners


OWNERS = {"/var/lib/mysql": MYSQL, "/home/bob/data": PERSON, "/var/www/data": WEB}


def server(
    uid: int | None, datadir: str | None = "/var/lib/mysql", pid: int = 1, exe: str = EXE
) -> Server:
    info = processes.read(os.getpid())
    assert info is not None
    main = msgspec.structs.replace(info, pid=pid, exe=exe)
    return Server(main, (pid,), uid=uid, datadir=datadir)


def chosen(guard: Guard, *found: Server) -> list[int]:
    """Return which are chosen, by pid; none where nothing may be watched."""
    try:
        return [one.main.pid for one in guard.choose(list(found)) if one.chosen]
    except NotRunningError:
        return []


@pytest.mark.parametrize(
    ("uid", "taken"), [(0, True), (MYSQL, True), (WEB, False), (NOBODY, True), (PERSON, False)]
)
def test_at_first_it_is_roots_or_of_an_account_of_the_system(uid: int, taken: bool) -> None:
    """``www-data`` says that the data is its own, and they are another's."""
    datadir = None if uid == NOBODY else "/var/lib/mysql"
    assert bool(chosen(Guard(), server(uid, datadir))) is taken


def test_a_users_own_server_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: PERSON)
    assert chosen(Guard(), server(PERSON, "/home/bob/data", exe="/home/bob/bin/mariadbd")) == [1]


def test_of_several_the_surest_is_taken_and_the_others_are_said_once() -> None:
    guard = Guard()
    found = [
        server(MYSQL, pid=5),
        server(WEB, "/var/www/data", pid=6),
        server(PERSON, "/home/bob/data", pid=7),
        server(None, pid=8),
    ]
    with Messages() as log:
        assert chosen(guard, *found) == [5]
        assert chosen(guard, *found) == [5]
    assert guard.others == (
        "mariadbd (pid 7) is of user bob (1000): if it is meant, say --server-user 1000, or -p 7",
        "mariadbd (pid 6) is of user 33: if it is meant, say --server-user 33, or -p 6",
    )
    assert log.messages == [f"not watched: {why}" for why in guard.others]


def test_a_program_that_others_can_change_is_not_that_of_a_service(host: dict[str, int]) -> None:
    host["/proc/6/exe"] = WEB
    assert chosen(Guard(), server(WEB, "/var/www/data", pid=6)) == []
    assert chosen(Guard(), server(WEB, "/var/www/data", pid=7)) == [7]


def test_who_is_said_is_taken_and_nobody_else() -> None:
    guard = Guard({PERSON})
    assert chosen(guard, server(MYSQL, pid=5), server(PERSON, pid=7)) == [7]
    assert "as --server-user says" in guard.others[0]
    assert pins.user_id("0") == pins.user_id("root") == 0
    with pytest.raises(UsageError, match="no user 'nobody-of-that-name'"):
        pins.user_id("nobody-of-that-name")


@pytest.mark.parametrize(
    ("next_one", "why"),
    [
        (server(MYSQL), None),
        (server(0), None),
        (server(MYSQL, exe="/opt/new/mariadbd"), None),
        (server(MYSQL, None), None),
        (server(MYSQL, "/"), "one that is just being started"),
        (server(PERSON), r"is of user bob \(1000\), and the server is of user mysql \(112\)"),
        (server(MYSQL, "/data/b"), r"the server's is in /var/lib/mysql: if it was moved, say --da"),
        (server(MYSQL, exe="/tmp/mariadbd", pid=6), r"from /tmp/mariadbd, which belongs to user b"),
    ],
)
def test_after_a_restart_it_is_what_it_was(
    next_one: Server, why: str | None, host: dict[str, int]
) -> None:
    host["/proc/6/exe"] = PERSON
    guard = Guard()
    guard.seen(server(MYSQL))
    if why is None:
        assert chosen(guard, next_one) == [next_one.main.pid]
    else:
        with pytest.raises(NotRunningError, match=why):
            guard.choose([next_one])


def test_one_that_begins_as_root_becomes_the_owner_of_its_data() -> None:
    guard = Guard()
    guard.seen(server(0, "/"))
    assert guard.pin == Pin(0, EXE)
    guard.seen(server(0))
    assert guard.pin == Pin(0, EXE, "/var/lib/mysql", MYSQL)
    assert chosen(guard, server(MYSQL, pid=5), server(PERSON, pid=7)) == [5]


def test_links_to_its_data_are_no_other_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, link = tmp_path / "data", tmp_path / "link"
    data.mkdir()
    link.symlink_to(data)
    guard = Guard(pin=Pin(MYSQL, EXE, str(link)))
    own = os.getpid()
    assert chosen(guard, server(MYSQL, str(data), pid=own)) == [own]
    assert chosen(guard, server(MYSQL, str(tmp_path), pid=own)) == []


@pytest.mark.parametrize(
    ("ids", "uid"),
    [
        ("112 112 112 112", MYSQL),
        ("0 0 0 0", 0),
        ("1000 0 0 0", PERSON),  # mariadbd, a link to passwd(1)
        ("1000 112 112 112", PERSON),
        ("0 112 0 112", MYSQL),
        ("", None),
    ],
)
def test_who_starts_a_setuid_program_is_its_user(ids: str, uid: int | None, tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "status").write_text(f"Name:\tmariadbd\nUid:\t{ids}\n")
    assert processes.user(7, tmp_path) == uid


def test_what_another_user_namespace_has_is_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """All users that a container does not have share one number."""
    monkeypatch.setattr(pins, "_is_known", lambda uid: uid != NOBODY)
    assert chosen(Guard(), server(NOBODY, None)) == []
    assert pins.of(server(NOBODY)) is None


def test_the_next_agent_knows_it(tmp_path: Path) -> None:
    pin = Pin(MYSQL, EXE, "/var/lib/mysql")
    assert pinfile.find(tmp_path, "a") is None
    for name, words in (("one", "a"), ("two", "b")):
        state = ServerState.open(tmp_path, f"{name}-12345678")
        target = TargetEntry(4711, name, 99)
        pinfile.save(state, words, msgspec.structs.replace(pin, exe=name), target)
        assert pinfile.last(state) == target
    found = pinfile.find(tmp_path, "a")
    assert found is not None
    assert (found[0].path.name, found[1].pin.exe) == ("one-12345678", "one")
    assert pinfile.find(tmp_path, "c") is None
    (state.path / "pin.json").write_bytes(b"{" * 1000)
    assert (pinfile.find(tmp_path, "b"), pinfile.last(state)) == (None, None)
