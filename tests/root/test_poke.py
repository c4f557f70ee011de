# SPDX-License-Identifier: Apache-2.0
"""Pokes of a program whose words are known: what is refused, and that all of it is undone."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from stallscope.base.errors import StallscopeError
from stallscope.collectors import probe, processes
from stallscope.collectors.poke import allowlist, looking, poking, records
from stallscope.collectors.poke.poking import PokeError
from stallscope.model.pokes import AllowList, Plan, Stored
from tests.root.test_nothing_stalls_it import keeping_its_mmap_lock
from tests.root.test_privileges import NOBODY, SETS, held, own, status
from tests.support.rights import READABLE
from tests.support.servers import PATIENCE, wait_until
from tests.support.targets import Target, trouble

__all__: list[str] = []

pytestmark = pytest.mark.needs("root", "probe")

CHECKOUT = Path(__file__).resolve().parents[2]
SIZES = {"word": 8, "half": 4, "byte": 1, "shared": 8, "constant": 8}
AS_NOBODY = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups")
LONG = 3600.0
"""Seconds that no test waits for."""


def address(target: Target, symbol: str) -> int:
    (fact,) = [one for one in target.facts if one.symbol == symbol]
    return int(fact.address, 16)


def list_for(target: Target, folder: Path, new: str = "{ least = 1, most = 9 }") -> Path:
    """Write an allow-list with the words of this run of the target."""
    looked = looking.look(target.pid, AllowList())
    text = ""
    build = f'build_id = "{looked.build_id}"'
    common = f'server = "a target"\nprogram = "{Path(looked.exe).name}"\n{build}\n'
    common += 'does = "nothing"\nundo = "nothing"\nrisks = "none"\n'
    for symbol, size in SIZES.items():
        text += f'[[poke]]\nname = "{symbol}"\nsymbol = "{symbol}"\n{common}'
        text += f"address = {address(target, symbol) - looked.bias:#x}\nsize = {size}\n"
        values = new if symbol == "word" else "{ least = 1, most = 9 }"
        text += f'old = {{ least = 0, most = 0 }}\nnew = {values}\nread_by = "the test"\n'
    text += f'[[direct_io]]\nname = "redo"\nclass = "redo"\nblock = 512\n{common}'
    path = folder / "pokes.toml"
    path.write_text(text)
    path.chmod(0o600)
    return path


def plan(target: Target, folder: Path, name: str = "word", value: int | None = 1) -> Plan:
    allowed = allowlist.load(list_for(target, folder))
    return poking.word_plan(allowed, name, looking.look(target.pid, allowed), value)


def poke(*words: str | int | Path) -> subprocess.CompletedProcess[str]:
    """Run the command."""
    return subprocess.run(
        [sys.executable, "-P", "-m", "stallscope", "poke", *map(str, words)],
        cwd=CHECKOUT,
        env={**os.environ, "PYTHONPATH": str(CHECKOUT)},
        capture_output=True,
        text=True,
        check=False,
    )


def supervisors(stored: Stored) -> list[int]:
    """Return the pids of those that run."""
    found = []
    for event in records.read(stored.path).events:
        process = processes.read(event.pid) if event.event == "supervised" else None
        if process is not None and process.state not in "ZX":
            found.append(event.pid)
    return found


def wait_undone(stored: Stored) -> Stored:
    wait_until(lambda: records.read(stored.path).end is not None, "it is undone")
    wait_until(lambda: not supervisors(stored), "no supervisor is left")
    return records.read(stored.path)


@pytest.mark.parametrize("name", ["word", "half", "byte"])
def test_set_and_undone(tmp_path: Path, name: str) -> None:
    with Target("pokes") as target:
        stored = poking.write(plan(target, tmp_path, name), tmp_path / "r", None)
        answer = target.ask("read")
        assert {key: answer[key] for key in ("word", "half", "byte")} == {
            key: int(key == name) for key in ("word", "half", "byte")
        }
        assert poking.states(tmp_path / "r")[0][0].life == "active"
        after = poking.undo(stored.record.id, tmp_path / "r")
        assert target.ask("read")[name] == 0
        assert [event.event for event in after.events] == ["written", "undone"]
        assert stored.path.stat().st_mode & 0o777 == 0o600
        with pytest.raises(PokeError, match="was undone by a command already"):
            poking.undo(stored.record.id, tmp_path / "r")
        assert trouble(target.pid) == []


def test_dry_run_writes_nothing(tmp_path: Path) -> None:
    with Target("pokes") as target:
        words = ("-p", target.pid, "--allow-list", list_for(target, tmp_path))
        done = poke("word", "--value", "3", *words, "--records", tmp_path / "r", "--json")
        assert (done.returncode, done.stderr) == (0, "")
        row = json.loads(done.stdout)
        assert (row["action"], row["old"], row["new"]) == ("dry-run", 0, 3)
        assert row["address"] == address(target, "word")
        assert target.ask("read")["word"] == 0
        assert not (tmp_path / "r").exists()


def test_a_supervisor_undoes_it_at_the_deadline(tmp_path: Path) -> None:
    with Target("pokes") as target:
        stored = poking.write(plan(target, tmp_path), tmp_path / "r", 0.3)
        after = wait_undone(stored)
        assert target.ask("read")["word"] == 0
        assert [event.event for event in after.events] == [
            *["supervised"] * 2,
            "written",
            "undone",
        ]
        assert after.events[-1].by == "supervisor"


def test_the_supervisors_are_there_before_the_write_and_hold_little(tmp_path: Path) -> None:
    with Target("pokes") as target:
        stored = poking.write(plan(target, tmp_path), tmp_path / "r", LONG)
        pids = supervisors(stored)
        assert len(pids) == 2
        for pid in pids:
            fields = status(pid)
            assert held(fields) == {"SYS_PTRACE"} & own()
            assert [int(fields[name], 16) for name in SETS] == [0, 0, 0]
            assert fields["NoNewPrivs"] == "1"
            assert os.getsid(pid) == pid
            links = [os.readlink(f"/proc/{pid}/fd/{fd}") for fd in range(3)]
            assert links == ["/dev/null"] * 3
        poking.undo(stored.record.id, tmp_path / "r")
        # They learn of it, and end long before their deadline.
        wait_undone(stored)
        assert target.ask("read")["word"] == 0


def test_one_that_is_killed_is_replaced(tmp_path: Path) -> None:
    with Target("pokes") as target:
        stored = poking.write(plan(target, tmp_path), tmp_path / "r", LONG)
        for _ in range(4):
            first = supervisors(stored)
            os.kill(first[0], signal.SIGKILL)
            wait_until(
                lambda before=set(first): len(set(supervisors(stored)) - before) == 1,  # type: ignore[misc]
                "there is another one",
            )
        # SIGTERM is a request to end, and so to undo it now.
        os.kill(supervisors(stored)[0], signal.SIGTERM)
        wait_undone(stored)
        assert target.ask("read")["word"] == 0


def test_both_killed_at_once_is_said(tmp_path: Path) -> None:
    with Target("pokes") as target:
        stored = poking.write(plan(target, tmp_path), tmp_path / "r", LONG)
        pids = supervisors(stored)
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not supervisors(stored), "both are gone")
        (state,) = poking.states(tmp_path / "r")[0]
        assert (state.life, state.supervisors) == ("active", ())
        done = poke("--undo", "--records", tmp_path / "r")
        assert "its supervisors are gone" in " ".join(done.stdout.split())
        poking.undo(stored.record.id, tmp_path / "r")
        assert target.ask("read")["word"] == 0


def test_hangup_and_interrupt_do_not_end_it(tmp_path: Path) -> None:
    with Target("pokes") as target:
        words = ("-p", target.pid, "--allow-list", list_for(target, tmp_path))
        done = poke("word", "--value", 1, *words, "--for", "1h", "--yes", "--records", tmp_path)
        assert done.returncode == 0, done.stderr
        (state,) = poking.states(tmp_path)[0]
        for pid in state.supervisors:
            os.kill(pid, signal.SIGHUP)
            os.kill(pid, signal.SIGINT)
        assert target.ask("read")["word"] == 1
        assert len(supervisors(state.stored)) == 2
        os.kill(state.supervisors[0], signal.SIGTERM)
        assert wait_undone(state.stored).events[-1].detail == "new"
        assert target.ask("read")["word"] == 0


@pytest.mark.parametrize(
    ("name", "why"),
    [("shared", "is shared with a file or other processes"), ("constant", "may not write to its")],
)
def test_memory_that_is_refused(tmp_path: Path, name: str, why: str) -> None:
    with Target("pokes") as target:
        with pytest.raises(StallscopeError, match=why):
            plan(target, tmp_path, name)
        assert target.ask("read")[name] == 0


def written_by_program(target: Target, record: Path, word: str) -> str:
    """Ask the program itself to write; return its error."""
    identity = looking.look(target.pid, AllowList()).identity
    record.write_text("{}\n")
    record.chmod(0o600)
    words = ["--pid", str(target.pid), "--process", identity, "--record", str(record)]
    done = subprocess.run(
        [probe.find(probe.POKE), *words, "--do", "set", "--word", word],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (1, 2)
    return done.stderr


def test_the_program_refuses_too(tmp_path: Path) -> None:
    with Target("pokes") as target:
        record = tmp_path / "record"
        at = address(target, "word")
        for symbol, size, why in (
            ("odd", 2, "not aligned"),
            ("shared", 8, "is shared"),
            ("constant", 8, "may not write"),
        ):
            assert why in written_by_program(
                target, record, f"{address(target, symbol):x}:{size}:0:1"
            )
        assert "a word has 1, 2, 4 or 8 bytes" in written_by_program(
            target, record, f"{at:x}:16:0:1"
        )
        assert "both values are the same" in written_by_program(target, record, f"{at:x}:8:1:1")
        assert "has no memory at" in written_by_program(target, record, "1000:8:0:1")
        assert "somebody else changed it" in written_by_program(target, record, f"{at:x}:8:5:1")
        assert '"event":"not-written"' in record.read_text()
        answer = target.ask("read")
        assert {answer[name] for name in SIZES} == {0}


def test_somebody_else_changes_it(tmp_path: Path) -> None:
    with Target("pokes") as target:
        first = plan(target, tmp_path)
        target.ask("set 5")
        with pytest.raises(StallscopeError, match="somebody else changed it"):
            poking.write(first, tmp_path / "r", None)
        (state,) = poking.states(tmp_path / "r")[0]
        assert state.life == "not-written"
        with pytest.raises(PokeError, match="is 5 already"):
            plan(target, tmp_path, value=2)
        target.ask("set 77")
        with pytest.raises(PokeError, match="expects 0: somebody else changed it"):
            plan(target, tmp_path)
        target.ask("set 0")
        stored = poking.write(plan(target, tmp_path), tmp_path / "r", 0.2)
        target.ask("set 6")
        wait_until(lambda: records.read(stored.path).last("refused") is not None, "it is refused")
        wait_until(lambda: not supervisors(stored), "no supervisor is left")
        with pytest.raises(StallscopeError, match="somebody else changed it, so it is left"):
            poking.undo(stored.record.id, tmp_path / "r")
        assert poking.states(tmp_path / "r")[0][-1].life == "changed"
        assert target.ask("read")["word"] == 6


def test_two_pokes_of_the_same_word(tmp_path: Path) -> None:
    with Target("pokes") as target:
        first, second = plan(target, tmp_path), plan(target, tmp_path, value=2)
        stored = poking.write(first, tmp_path / "r", None)
        with pytest.raises(PokeError, match="has changed the same and is not undone"):
            poking.write(second, tmp_path / "r", None)
        # With records elsewhere, the value says so.
        with pytest.raises(StallscopeError, match="somebody else changed it"):
            poking.write(second, tmp_path / "other", None)
        poking.undo(stored.record.id, tmp_path / "r")
        poking.undo(poking.write(second, tmp_path / "r", None).record.id, tmp_path / "r")


def test_several_bytes_need_leave(tmp_path: Path) -> None:
    with Target("pokes") as target:
        path = list_for(target, tmp_path, "{ least = 1, most = 70000 }")
        allowed = allowlist.load(path)
        looked = looking.look(target.pid, allowed)
        with pytest.raises(PokeError, match="several bytes change"):
            poking.word_plan(allowed, "word", looked, 65537)
        path.write_text(path.read_text().replace("size = 8\n", "size = 8\nmixed_is_safe = true\n"))
        assert poking.word_plan(allowlist.load(path), "word", looked, 65537).new == 65537


def test_a_program_that_executes_itself_again_is_another_one(tmp_path: Path) -> None:
    with Target("pokes") as target:
        stored = poking.write(plan(target, tmp_path), tmp_path / "r", LONG)
        prepared = plan(target, tmp_path, "half")
        before = looking.look(target.pid, AllowList()).identity

        def is_another() -> bool:
            try:
                return looking.look(target.pid, AllowList()).identity != before
            except StallscopeError:  # its program is about to be replaced
                return False

        target.send("again")
        wait_until(is_another, "it executes")
        with pytest.raises(StallscopeError, match="has executed a program since"):
            poking.write(prepared, tmp_path / "r", None)
        with pytest.raises(StallscopeError, match="has executed a program since"):
            poking.undo(stored.record.id, tmp_path / "r")
        for pid in supervisors(stored):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("how", ["supervisor", "command"])
def test_another_program_at_the_same_addresses_is_left_alone(tmp_path: Path, how: str) -> None:
    """Without address space randomization a program that executes itself again has the same pid,
    start time, stack and addresses; this one has the value of the poke there, of its own."""
    wrapper = ("setarch", "--addr-no-randomize", *READABLE)
    with Target("pokes", wrapper=wrapper) as target:
        seconds = LONG if how == "supervisor" else None
        stored = poking.write(plan(target, tmp_path), tmp_path / "r", seconds)
        facts = list(target.facts)
        target.send("again")
        target.wait_ready()
        assert target.facts == facts
        target.ask("set 1")
        if how == "supervisor":
            os.kill(supervisors(stored)[0], signal.SIGTERM)
            wait_undone(stored)
        else:
            with pytest.raises(StallscopeError, match="has executed a program since"):
                poking.undo(stored.record.id, tmp_path / "r")
        end = records.read(stored.path).end
        assert end is not None
        assert (end.event, end.by) == ("ended", how)
        assert "has executed a program since" in (end.detail or "")
        assert target.ask("read")["word"] == 1


@pytest.mark.needs("freeze")
def test_a_process_that_does_not_answer(tmp_path: Path) -> None:
    with keeping_its_mmap_lock() as target:
        done = subprocess.run(
            [probe.find(probe.POKE), "--pid", str(target.pid), "--deadline", "300"],
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE,
        )
        assert (done.returncode, done.stdout) == (1, "")
        assert f"process {target.pid}, or a file system" in done.stderr
        assert "did not answer in 300 ms" in done.stderr


def test_a_process_that_has_ended(tmp_path: Path) -> None:
    with Target("pokes") as target:
        stored = poking.write(plan(target, tmp_path), tmp_path / "r", LONG)
        prepared = plan(target, tmp_path, "half")
    after = wait_undone(stored)
    assert after.events[-1].event == "ended"
    with pytest.raises(PokeError, match="has ended: there is nothing to undo"):
        poking.undo(stored.record.id, tmp_path / "r")
    with pytest.raises(StallscopeError, match=r"no process|has ended"):
        poking.write(prepared, tmp_path / "r", LONG)


def test_a_stopped_process_is_not_changed_but_undone(tmp_path: Path) -> None:
    with Target("pokes") as target:
        prepared = plan(target, tmp_path, "half")
        stored = poking.write(plan(target, tmp_path), tmp_path / "r", None)
        os.kill(target.pid, signal.SIGSTOP)
        try:
            wait_until(lambda: processes.read(target.pid).state == "T", "it is stopped")  # type: ignore[union-attr]
            with pytest.raises(StallscopeError, match="is stopped, by a signal or a debugger"):
                poking.write(prepared, tmp_path / "r", LONG)
            poking.undo(stored.record.id, tmp_path / "r")
        finally:
            os.kill(target.pid, signal.SIGCONT)
        answer = target.ask("read")
        assert (answer["word"], answer["half"]) == (0, 0)


def test_another_build_is_refused(tmp_path: Path) -> None:
    with Target("pokes") as target:
        path = list_for(target, tmp_path)
        found = allowlist.load(path)
        build = found.poke[0].build_id
        assert build is not None
        path.write_text(path.read_text().replace(build, "0" * len(build)))
        allowed = allowlist.load(path)
        with pytest.raises(PokeError, match="runs another build"):
            poking.word_plan(allowed, "word", looking.look(target.pid, allowed), 1)


def copied(folder: Path, *command: str) -> Path:
    """Return a copy of the program that others may run, after a command on it."""
    copy = folder / probe.POKE
    shutil.copy(probe.find(probe.POKE), copy)
    copy.chmod(0o755)
    folder.chmod(0o755)
    for parent in list(folder.parents)[:3]:
        parent.chmod(parent.stat().st_mode | 0o011)
    if command:
        subprocess.run([*command, str(copy)], check=True)
    return copy


def run_as_nobody(program: Path, *words: str | int) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*AS_NOBODY, str(program), *map(str, words)], capture_output=True, text=True, check=False
    )


def test_a_user_without_the_right(tmp_path: Path) -> None:
    with Target("pokes") as target:
        done = run_as_nobody(copied(tmp_path), "--pid", target.pid)
        assert done.returncode == 1
        assert len(done.stderr.splitlines()) == 1
        assert "permission denied" in done.stderr
        assert "only root" in done.stderr


@pytest.mark.parametrize(
    "command",
    [("setcap", "cap_sys_ptrace,cap_dac_read_search+ep"), ("chmod", "u+s")],
    ids=["capabilities", "set-user-ID"],
)
def test_a_program_with_rights_of_its_own_does_nothing(
    tmp_path: Path, command: tuple[str, ...]
) -> None:
    """Who may run it would else write to every process."""
    program = copied(tmp_path, *command)
    with Target("pokes") as target:
        identity = looking.look(target.pid, AllowList()).identity
        record = tmp_path / "record"
        record.write_text("{}\n")
        record.chmod(0o600)
        os.chown(record, NOBODY, NOBODY)
        word = f"{address(target, 'word'):x}:8:0:1"
        look = ("--pid", target.pid, "--word", word)
        for words in (look, (*look, "--process", identity, "--do", "set", "--record", str(record))):
            done = run_as_nobody(program, *words)
            assert (done.returncode, done.stdout) == (1, "")
            assert "it has rights by its file" in done.stderr
        assert target.ask("read")["word"] == 0


def test_a_server_of_another_user(tmp_path: Path) -> None:
    """Its memory is a file that others may not open, and root is others without capabilities."""
    with Target("pokes", wrapper=AS_NOBODY) as target:
        stored = poking.write(plan(target, tmp_path), tmp_path / "r", LONG)
        assert target.ask("read")["word"] == 1
        for pid in supervisors(stored):
            assert held(status(pid)) == {"SYS_PTRACE"} & own()
        os.kill(supervisors(stored)[0], signal.SIGTERM)
        assert wait_undone(stored).events[-1].event == "undone"
        assert target.ask("read")["word"] == 0
        stored = poking.write(plan(target, tmp_path), tmp_path / "r", None)
        poking.undo(stored.record.id, tmp_path / "r")
        assert target.ask("read")["word"] == 0


def test_the_user_of_a_process_may(tmp_path: Path) -> None:
    """As far as yama lets the parent of none: the program is no ancestor of the target."""
    scope = Path("/proc/sys/kernel/yama/ptrace_scope")
    if scope.exists() and scope.read_text().strip() != "0":
        pytest.skip("yama: only the ancestors of a process may")
    with Target("pokes", wrapper=AS_NOBODY) as target:
        done = run_as_nobody(copied(tmp_path), "--pid", target.pid)
        assert (done.returncode, done.stderr) == (0, "")
        assert json.loads(done.stdout)["pid"] == target.pid


def test_a_target_in_a_pid_namespace(tmp_path: Path) -> None:
    wrapper = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
    with Target("pokes", wrapper=wrapper, listens=False) as target:
        outer = target.pid
        children = Path(f"/proc/{outer}/task/{outer}/children")
        target.pid = int(children.read_text().split()[0])
        stored = poking.write(plan(target, tmp_path), tmp_path / "r", None)
        assert target.ask("read")["word"] == 1
        poking.undo(stored.record.id, tmp_path / "r")
        assert target.ask("read")["word"] == 0


def direct_plan(target: Target, folder: Path) -> Plan:
    allowed = allowlist.load(list_for(target, folder))
    looked = looking.look(target.pid, allowed, files=True)
    return poking.direct_io_plan(allowed, "redo", looked)


def test_direct_io_of_an_open_file(tmp_path: Path) -> None:
    with Target("pokes", str(tmp_path / "ib_logfile0")) as target:
        assert target.ask("write") == {"written": 512, "errno": 0, "direct": 0}
        try:
            prepared = direct_plan(target, tmp_path)
        except PokeError as error:
            pytest.skip(f"{tmp_path}: {error}")
        stored = poking.write(prepared, tmp_path / "r", None)
        assert target.ask("write") == {"written": 512, "errno": 0, "direct": 1}
        with pytest.raises(PokeError, match="is open with O_DIRECT already"):
            direct_plan(target, tmp_path)
        poking.undo(stored.record.id, tmp_path / "r")
        assert target.ask("write") == {"written": 512, "errno": 0, "direct": 0}
        wait_undone(poking.write(prepared, tmp_path / "r", 0.2))
        assert target.ask("write") == {"written": 512, "errno": 0, "direct": 0}


def test_direct_io_where_the_file_system_says_no_alignment(tmp_path: Path) -> None:
    """proc and similar ones say none; tmpfs says none, or that of a page, depending on Linux."""
    folder = Path("/dev/shm") / tmp_path.name
    folder.mkdir(mode=0o700)
    try:
        with Target("pokes", str(folder / "ib_logfile0")) as target:
            with pytest.raises(PokeError, match=r"STATX_DIOALIGN|its writes would fail"):
                direct_plan(target, tmp_path)
            assert target.ask("write") == {"written": 512, "errno": 0, "direct": 0}
    finally:
        shutil.rmtree(folder)
