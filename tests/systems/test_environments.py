# SPDX-License-Identifier: Apache-2.0
"""What a stranger does first works on the stranger's machine, or says in one line why it does not.

The machines are root folders of Debian's releases, bare at first; what root may not do in them is
what containers refuse (tests/support/environments.py).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.environments import OLD_REFUSED, Limits, bare, machine
from tests.support.seccomp import seccomp_missing
from tests.support.vm import roots
from tests.support.vm.roots import Done, Overlay

__all__: list[str] = []

pytestmark = [pytest.mark.nightly, pytest.mark.needs("packages"), pytest.mark.timeout(3600)]

ROOT = Limits()
CONTAINER = Limits(container=True)
OLD_CONTAINER = Limits(container=True, refused=OLD_REFUSED)
STRANGER = Limits(user="stranger", mounts="mount -t tmpfs -o noexec,size=400m none $root/tmp")
HOME = "/home/stranger/a b"
"""A checkout of the ordinary user."""
LIVES_IN = "cd /src && ./scripts/demo && ./scripts/setup --quiet"
Bare = Callable[[str], Path]


@pytest.fixture(scope="module")
def root_of(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bare]:
    """Return a function that makes a release's root folder, once."""
    if reason := seccomp_missing():
        pytest.skip(reason)
    folder: Path = tmp_path_factory.mktemp("roots")
    folder.chmod(0o755)
    yield functools.cache(lambda suite: bare(suite, folder))
    roots.run(["rm", "-rf", "--one-file-system", str(folder)])


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    roots.run(["rm", "-rf", "--one-file-system", str(tmp_path)])


@pytest.fixture(scope="module")
def prepared(root_of: Bare, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Overlay]:
    """Return a Debian 13 that was set up, and has an ordinary user with a checkout, not set up."""
    path: Path = tmp_path_factory.mktemp("prepared")
    path.chmod(0o755)
    made = machine(root_of("trixie"), path)
    made.check(f"useradd -m stranger && cp -r /src '{HOME}' && chown -R stranger: '{HOME}'")
    made.check("cd /src && ./scripts/setup")
    yield made
    roots.run(["rm", "-rf", "--one-file-system", str(path)])


def lines_of(done: Done) -> list[str]:
    """Return what was said, but for the lines that show progress; it never is a traceback, or a
    message of a shell."""
    assert "Traceback" not in done.said, done.said
    assert ": line " not in done.said, done.said
    return [line for line in done.said.splitlines() if not re.match(r"setup: \d+ s: ", line)]


@pytest.mark.parametrize(
    ("suite", "limits", "backend"),
    [
        ("bookworm", ROOT, None),
        ("trixie", ROOT, None),
        ("trixie", CONTAINER, "proc"),
        ("sid", CONTAINER, "proc"),
    ],
)
def test_the_demo_from_nothing(
    suite: str, limits: Limits, backend: str | None, root_of: Bare, folder: Path
) -> None:
    """Root of the whole machine reads by what this machine's kernel has."""
    done = machine(root_of(suite), folder, limits).run(LIVES_IN)
    lines = lines_of(done)
    assert done.code == 0, done.said
    assert any("[metadata-lock]" in line for line in lines), done.said
    assert any("look at the stall in a browser" in line for line in lines), done.said
    assert backend is None or f"read by the backend {backend} " in done.said


@pytest.mark.parametrize("limits", [ROOT, CONTAINER])
def test_the_tests_from_nothing(limits: Limits, root_of: Bare, folder: Path) -> None:
    done = machine(root_of("trixie"), folder, limits).run("cd /src && ./scripts/test")
    assert done.code == 0, done.said[-10_000:]


def test_the_demo_in_an_older_container(prepared: Overlay, folder: Path) -> None:
    done = machine(prepared, folder, OLD_CONTAINER).run(LIVES_IN)
    assert done.code == 0, done.said
    assert "read by the backend proc " in done.said


def test_the_demo_without_network(prepared: Overlay, folder: Path) -> None:
    done = machine(prepared, folder, Limits(network=False)).run(LIVES_IN)
    assert done.code == 0, done.said
    assert lines_of(done)[0].startswith("demo: started mariadb")


@pytest.mark.parametrize(
    ("before", "said"),
    [
        # Its own server, whose memory it may read.
        ("true", "read by the backend proc "),
        # As on Ubuntu 22.04, where libbpf is too old.
        ("rm -r /usr/include/bpf /usr/lib/x86_64-linux-gnu/pkgconfig/libbpf.pc", "libbpf-dev"),
    ],
)
def test_the_demo_of_an_ordinary_user(
    before: str, said: str, prepared: Overlay, folder: Path
) -> None:
    """Without sudo, in a path with a space, where /tmp executes nothing."""
    machine(prepared, folder).check(before)
    done = machine(prepared, folder, STRANGER).run(f"cd '{HOME}' && ./scripts/demo")
    lines_of(done)
    assert done.code == 0, done.said
    assert said in done.said
    assert "[metadata-lock]" in done.said


REFUSES = {
    "no network": (Limits(network=False), "true", "no network"),
    "no root": (
        Limits(user="games"),
        "export HOME=/var/tmp",
        "have an administrator run: apt-get",
    ),
    "full disk": (
        Limits(mounts="mount -t tmpfs -o size=30m none $root/var/cache/apt"),
        "true",
        "the disk is full",
    ),
}


@pytest.mark.parametrize("case", REFUSES)
def test_what_cannot_be_had_is_said_in_one_line(case: str, root_of: Bare, folder: Path) -> None:
    limits, before, reason = REFUSES[case]
    done = machine(root_of("trixie"), folder, limits).run(f"{before}; cd /src && ./scripts/setup")
    lines = lines_of(done)
    assert done.code == 1, done.said
    assert any(reason in line for line in lines), done.said
    assert len(lines) <= 4, done.said


LOCK = """
perl -e 'use Fcntl; open(F, ">>", "/var/lib/dpkg/lock-frontend"); $| = 1;
    $lock = pack("s s x4 q q i x4", F_WRLCK, 0, 0, 0, 0);
    fcntl(F, F_SETLK, $lock) or die; print "locked\\n";
    <STDIN>' </tmp/wait >/tmp/locked & """


def test_it_waits_for_another_apt(prepared: Overlay, folder: Path) -> None:
    script = f"""
        apt-get remove -qq -y shellcheck libjansson-dev >/dev/null || true
        mkfifo /tmp/wait; {LOCK} exec 9>/tmp/wait
        until grep -q locked /tmp/locked; do sleep 0.1; done
        cd /src; ./scripts/setup --tests >/tmp/said & setup=$!
        until grep -q waiting /tmp/said; do sleep 0.1; done
        echo go >&9
        wait $setup; cat /tmp/said
    """
    done = machine(prepared, folder).run(script)
    lines = lines_of(done)
    assert done.code == 0, done.said
    assert any(
        "waiting, 5 minutes at most, for another process that uses apt" in one for one in lines
    )
    assert lines[-1] == "setup: ready"


@pytest.mark.parametrize(
    "phase", ["making .venv", "installing Python packages", "building into build/"]
)
def test_a_run_that_was_ended_is_gone_on_with(phase: str, prepared: Overlay, folder: Path) -> None:
    """As by Ctrl-C, and then as by a machine that lost its power."""
    ended = """
        set -m
        ./scripts/setup >/tmp/said & setup=$!
        until grep -q "$1" /tmp/said; do sleep 0.05; done
        sleep 0.$2; kill -s $3 -- -$setup
        wait $setup && exit 9
        set +m
    """
    script = f"""
        cd /src; rm -rf .venv build
        echo '{ended}' >/tmp/end
        bash /tmp/end '{phase}' 3 INT
        bash /tmp/end '{phase}\\|ready' 9 KILL 2>/tmp/shell || true
        ./scripts/setup && ./scripts/demo
    """
    done = machine(prepared, folder).run(script)
    lines_of(done)
    assert done.code == 0, done.said
    assert "[metadata-lock]" in done.said


def test_a_folder_of_another_place_and_meson(prepared: Overlay, folder: Path) -> None:
    """A checkout that was moved after its set-up, whose build folder another Meson made."""
    script = r"""
        mv /src /elsewhere && cd /elsewhere
        ./scripts/demo
        sed -i 's/"full": "[^"]*"/"full": "0.1.0"/' build/meson-info/meson-info.json
        echo broken >build/build.ninja
        ./scripts/setup && .venv/bin/npm --version && ! grep -rlE '#!.*/src/' .venv/bin
    """
    done = machine(prepared, folder).run(script)
    lines_of(done)
    assert done.code == 0, done.said
