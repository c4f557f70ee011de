# SPDX-License-Identifier: Apache-2.0
"""The doctor on hosts that are made of files, and as others than root."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from stallscope.base import trust
from stallscope.base.errors import StallscopeError
from stallscope.collectors import processes, rings
from stallscope.collectors.doctor import confinement, disk, features, host, inproc, packages, target
from stallscope.collectors.doctor.checks import Check, Place, Task, run
from stallscope.collectors.paths import asking
from stallscope.model.capture import Capture, Module, Process
from tests.support.ringimages import of_this_process
from tests.support.servers import PATIENCE
from tests.unit.programs import python_program

ROOT = Path(__file__).parent.parent.parent
FULL = "CapEff:\t000001ffffffffff"


def file(root: Path, path: str, text: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text)


def link(root: Path, path: str, text: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).symlink_to(text)


def only(checks: Iterable[Check]) -> Check:
    (check,) = checks
    return check


@pytest.mark.parametrize(
    ("text", "status", "said"),
    [
        ("[none] integrity confidentiality\n", "ok", "none"),
        ("none [integrity] confidentiality\n", "ok", "integrity"),
        ("none integrity [confidentiality]\n", "degraded", "no BPF backend"),
        (None, "ok", ""),
    ],
)
def test_lockdown(tmp_path: Path, text: str | None, status: str, said: str) -> None:
    if text is not None:
        file(tmp_path, "sys/kernel/security/lockdown", text)
    check = only(host.lockdown(Place(root=tmp_path)))
    assert check.status == status
    assert said in check.what
    assert (check.fix is None) == (status == "ok")


@pytest.mark.parametrize(
    ("scope", "uid", "status"),
    [
        ("0", 1000, "ok"),
        ("1", 1000, "degraded"),
        ("2", 1000, "degraded"),
        ("1", 0, "ok"),
        ("3", 0, "missing"),
        ("3", 1000, "missing"),
    ],
)
def test_yama(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scope: str, uid: int, status: str
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    assert only(host.yama(Place(root=tmp_path))).status == "ok"
    file(tmp_path, "proc/sys/kernel/yama/ptrace_scope", f"{scope}\n")
    check = only(host.yama(Place(root=tmp_path)))
    assert check.status == status
    assert f"ptrace_scope = {scope}" in check.what


def test_privileges(tmp_path: Path) -> None:
    file(tmp_path, "proc/self/status", f"Name:\tx\n{FULL}\n")
    assert [c.status for c in host.privileges(Place(root=tmp_path))] == ["ok", "ok"]
    # Docker's default set.
    file(tmp_path, "proc/self/status", "CapEff:\t00000000a80425fb\n")
    _, check = host.privileges(Place(root=tmp_path))
    assert check.status == "degraded"
    assert "without CAP_SYS_PTRACE, CAP_PERFMON, CAP_BPF" in check.what
    assert "no wait programs" in check.what
    assert check.fix is not None
    assert "setcap" in check.fix
    file(tmp_path, "proc/self/status", "")
    _, check = host.privileges(Place(root=tmp_path))
    assert "does not show" in check.what


def with_file_capabilities(
    monkeypatch: pytest.MonkeyPatch, program: Path, data: bytes | None
) -> None:
    """Make a program the probe, and its capabilities what the kernel would give."""
    program.touch(mode=0o755)
    monkeypatch.setenv("STALLSCOPE_PROBE", str(program))

    def attribute(path: Path, name: str) -> bytes:
        assert (path, name) == (program, "security.capability")
        if data is None:
            raise OSError(61, "No data available")
        return data

    monkeypatch.setattr(os, "getxattr", attribute)


FROM_FILE = struct.pack("<IIIII", 0x02000001, 1 << 19, 0, 0b111 << 6, 0)
"""As of `setcap cap_bpf,cap_perfmon,cap_sys_ptrace,cap_checkpoint_restore+ep`."""


@pytest.mark.parametrize(
    ("data", "status", "no_new_privs", "said"),
    [
        (FROM_FILE, "ok", "0", "the probe's file"),
        (FROM_FILE, "degraded", "1", "no_new_privs"),
        (b"\0" + FROM_FILE[1:], "degraded", "0", "without CAP_SYS_PTRACE"),
        (FROM_FILE[:8] + bytes(12), "degraded", "0", "without CAP_PERFMON"),
        (FROM_FILE[:10], "degraded", "0", "without CAP_SYS_PTRACE"),
        (None, "degraded", "0", "without CAP_SYS_PTRACE"),
    ],
)
def test_the_probe_has_its_capabilities_from_its_file(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    data: bytes | None,
    status: str,
    no_new_privs: str,
    said: str,
) -> None:
    with_file_capabilities(monkeypatch, tmp_path / "probe", data)
    monkeypatch.setattr(os, "geteuid", lambda: 991)
    text = f"CapEff:\t0000000000000000\nNoNewPrivs:\t{no_new_privs}\n"
    file(tmp_path, "proc/self/status", text)
    file(tmp_path, "proc/sys/kernel/yama/ptrace_scope", "1\n")
    place = Place(root=tmp_path)
    _, check = host.privileges(place)
    assert check.status == status
    assert said in check.what
    traces = data is not None and data[0] == 1 and len(data) == 20 and no_new_privs == "0"
    assert only(host.yama(place)).status == ("ok" if traces else "degraded")


def test_who_is_confined(tmp_path: Path) -> None:
    place = Place(root=tmp_path, server=server())
    its, own = f"proc/{os.getpid()}/attr/current", "proc/self/attr/current"
    assert "no profile" in only(confinement.confinement(place)).what
    for label in ("unconfined\n", "system_u:unconfined_r:unconfined_t:s0\0"):
        file(tmp_path, its, label)
        assert "no profile" in only(confinement.confinement(place)).what
    file(tmp_path, its, "mariadbd (enforce)\n")
    check = only(confinement.confinement(place))
    assert check.status == "ok"
    assert "mariadbd (enforce) confines the server" in check.what
    file(tmp_path, own, "stallscope (enforce)\n")
    _, check = confinement.confinement(place)
    assert (check.name, check.status) == ("own-confinement", "degraded")


def test_a_server_that_was_refused_the_library(tmp_path: Path) -> None:
    pid = 4711
    file(tmp_path, f"proc/{pid}/maps", "")
    file(tmp_path, f"proc/{pid}/environ", "A=b\0LD_PRELOAD=/usr/lib/libstallscope.so\0")
    file(tmp_path, f"proc/{pid}/attr/current", "mariadbd (enforce)\n")
    check = only(inproc.agent(Place(root=tmp_path), (pid,)))
    assert check.status == "degraded"
    assert "names the library, but it is not loaded" in check.what
    assert "mariadbd (enforce)" in check.what
    assert "docs/inproc.md" in (check.fix or "")


def test_we_are_in_a_container(tmp_path: Path) -> None:
    link(tmp_path, "proc/self/ns/pid", "pid:[4026531836]")
    link(tmp_path, "proc/self/ns/user", "user:[4026531837]")
    assert only(host.container(Place(root=tmp_path))).status == "ok"
    inner = tmp_path / "inner"
    link(inner, "proc/self/ns/pid", "pid:[4026532999]")
    link(inner, "proc/self/ns/user", "user:[4026533000]")
    check = only(host.container(Place(root=inner)))
    assert check.status == "degraded"
    assert "pid and user namespace" in check.what
    assert "--pid=host" in (check.fix or "")
    assert only(host.container(Place(root=tmp_path / "nothing"))).status == "degraded"


def server(datadir: str | None = None) -> processes.Server:
    main = processes.read(os.getpid())
    assert main is not None
    return processes.Server(main=main, pids=(main.pid,), datadir=datadir)


def test_the_server_is_in_a_container(tmp_path: Path) -> None:
    pid = os.getpid()
    for name in ("pid", "mnt", "net", "user", "cgroup"):
        link(tmp_path, f"proc/self/ns/{name}", f"{name}:[1]")
        other = "2" if name in ("pid", "mnt") else "1"
        link(tmp_path, f"proc/{pid}/ns/{name}", f"{name}:[{other}]")
    file(tmp_path, f"proc/{pid}/cgroup", "0::/system.slice/docker-abc.scope\n")
    check = only(target.namespaces(Place(root=tmp_path, server=server())))
    assert check.status == "ok"
    for part in ("(pid, mnt)", "/proc/PID/root", "docker-abc.scope"):
        assert part in check.what
    (tmp_path / f"proc/{pid}/ns/mnt").unlink()
    assert only(target.namespaces(Place(root=tmp_path, server=server()))).fix == "run it with sudo"
    same = Place(server=server())
    assert only(target.namespaces(same)).what == "the server is not in a container"


def test_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checks = {c.name: c for c in disk.disk(Place(dest=tmp_path / "new"))}
    assert checks["store"].status == "ok"
    assert "(will be created)" in checks["store"].what
    place = Place(server=server(str(tmp_path)), dest=tmp_path)
    checks = {c.name: c for c in disk.disk(place)}
    assert checks["store-disk"].status == "degraded"
    monkeypatch.setattr(disk, "too_little_space", lambda *_: "the disk is full")
    monkeypatch.setattr(asking, "may", lambda *_: False)
    checks = {c.name: c for c in disk.disk(Place(dest=tmp_path))}
    assert checks["store"].status == checks["disk"].status == "degraded"


def test_how_to_get_symbols(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = Module(0, "/usr/sbin/mysqld", build_id="ab12")
    monkeypatch.setattr(packages, "package_of", lambda _: "apt-get install x-dbgsym")
    text = packages.how_to_get("/usr/sbin/mysqld", module) or ""
    assert text.startswith("apt-get install x-dbgsym; or DEBUGINFOD_URLS=https://")
    assert "--debug-dir" in text
    assert packages.how_to_get("(no file)", None) == "apt-get install x-dbgsym"
    monkeypatch.undo()
    assert packages.package_of("(no file)") is None
    assert packages.package_of(str(tmp_path / "of no package")) is None


def test_a_package_is_found_by_the_name_that_dpkg_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def answer(argv: list[str]) -> str | None:
        asked.append(argv[-1])
        return "libc6:amd64: /lib/x/libc.so.6" if argv[-1].startswith("/lib/") else None

    monkeypatch.setattr(packages, "_first_line", answer)
    monkeypatch.setattr(trust, "find_program", lambda name: f"/usr/bin/{name}")
    assert "libc6-dbgsym" in (packages.package_of("/usr/lib/x/libc.so.6") or "")
    assert asked == ["/usr/lib/x/libc.so.6", "/lib/x/libc.so.6"]


def test_a_late_check_keeps_nobody_waiting() -> None:
    release = threading.Event()

    def slow() -> Iterator[Check]:
        release.wait(60)
        yield Check("slow", "ok", "at last")

    def broken() -> Iterator[Check]:
        raise StallscopeError("no such thing")

    fast = Task("fast", lambda: [Check("fast", "ok", "here")])
    found = list(run([Task("slow", slow, 0.01), Task("broken", broken), fast]))
    release.set()
    assert [(c.name, c.status) for c in found] == [
        ("slow", "degraded"),
        ("broken", "degraded"),
        ("fast", "ok"),
    ]
    assert "within 0.01 s" in found[0].what
    assert "no such thing" in found[1].what


@pytest.mark.large
@pytest.mark.needs("root", "probe")
def test_an_ordinary_user() -> None:
    user = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    argv = [*user, sys.executable, "-m", "stallscope", "doctor", "--json"]
    done = subprocess.run(
        argv, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert (done.returncode in (1, 3), done.stderr) == (True, "")
    checks = {found["name"]: found for found in json.loads(done.stdout)["checks"]}
    assert checks["user"]["what"] == "uid 65534"
    assert checks["privileges"]["status"] == "degraded"
    assert "CAP_BPF" in checks["privileges"]["what"]


@pytest.fixture
def rings_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder in which rings are, in the place of the machine's own."""
    folder = tmp_path / "rings"
    folder.mkdir()
    monkeypatch.setenv("STALLSCOPE_RUNTIME_DIR", str(folder))
    return folder


def test_the_library_that_is_loaded_into_servers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "libstallscope.so"
    monkeypatch.setenv("STALLSCOPE_LIBRARY", str(path))
    check = only(inproc.library())
    assert check.status == "degraded"
    assert "no in-process library" in check.what
    path.touch()
    assert only(inproc.library()) == Check("libstallscope.so", "ok", str(path))


@pytest.mark.parametrize(
    ("mode", "uid", "status"),
    [(0o1777, 1000, "ok"), (0o755, 1000, "degraded"), (0o755, 0, "ok"), (None, 1000, "degraded")],
)
def test_where_a_ring_can_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int | None, uid: int, status: str
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    monkeypatch.setenv("STALLSCOPE_RUNTIME_DIR", "/somewhere")
    if mode is not None:
        (tmp_path / "somewhere").mkdir()
        (tmp_path / "somewhere").chmod(mode)
    check = only(inproc.folder(Place(root=tmp_path)))
    assert check.status == status
    assert f"uid {uid}" in check.what


def test_the_servers_own_ring(rings_here: Path) -> None:
    place, pids = Place(), (os.getpid(),)
    check = only(inproc.agent(place, pids))
    assert check.status == "ok"
    assert "not loaded" in check.what
    path = of_this_process(rings_here)
    check = only(inproc.agent(place, pids))
    assert check.status == "ok"
    assert str(path) in check.what
    rings.switch(path, on=False)
    check = only(inproc.agent(place, pids))
    assert check.status == "degraded"
    assert "turned off" in check.what
    of_this_process(rings_here, slots=2)
    check = only(inproc.agent(place, pids))
    assert check.status == "degraded"
    assert "--threads 4" in (check.fix or "")


def test_a_library_without_a_ring(tmp_path: Path, rings_here: Path) -> None:
    file(tmp_path, "proc/77/maps", "7f00-7f01 r-xp 0 00:1 1 /usr/lib/stallscope/libstallscope.so\n")
    check = only(inproc.agent(Place(root=tmp_path), (77,)))
    assert check.status == "degraded"
    assert "there is no ring" in check.what
    check = only(inproc.agent(Place(root=tmp_path), (78,)))
    assert check.status == "ok"
    assert "cannot be read" in check.what


def test_a_host_without_such_servers_lacks_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def said(**feature: object) -> list[tuple[str, str]]:
        answer = {"schema": features.SCHEMA, "features": {"inproc": feature, "btf": {"ok": False}}}
        program = python_program(tmp_path / "probe", f"print({json.dumps(json.dumps(answer))})")
        monkeypatch.setenv("STALLSCOPE_PROBE", str(program))
        return [(check.name, str(check.status)) for check in features.features()][1:]

    assert said(ok=False, why="no ring here") == [("btf", "degraded")]
    assert said(ok=True) == [("inproc", "ok"), ("btf", "degraded")]


def test_each_mapped_file_says_where_its_names_come_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "package_of", lambda _: None)
    kinds = {".symtab": None, "separate": "/d/x.debug", "pack": "/p/ab12.pack", ".dynsym": None}
    modules = tuple(
        Module(process, f"/lib/{kind}", build_id="ab12", symbols=kind, debug_file=file)
        for process in (0, 1)
        for kind, file in kinds.items()
    )
    bare = Module(0, "/lib/bare", symbols="none")
    modules = (*modules, bare, Module(0, "[vdso]", symbols="none"))
    capture = Capture(
        backend="bpf", processes=(Process(1), Process(2)), threads=(), modules=modules
    )
    checks = list(target._files(capture))
    assert [check.name for check in checks] == ["file"] * 5
    texts = {check.what.partition(": ")[0]: check for check in checks}
    assert "/p/ab12.pack" in texts["/lib/pack"].what
    assert "/d/x.debug" in texts["/lib/separate"].what
    assert [texts[f"/lib/{kind}"].fix for kind in (".symtab", "separate", "pack")] == [None] * 3
    fix = texts["/lib/.dynsym"].fix or ""
    assert "stallscope pack" in fix
    assert "ab12.pack" in fix
    assert "before it was stripped" in (texts["/lib/bare"].fix or "")
