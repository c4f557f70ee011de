# SPDX-License-Identifier: Apache-2.0
"""Each package in clean root folders: installed, used, upgraded and removed, and built in one."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.packages.conftest import CHECKOUT, clean_root, clone
from tests.support.hardening import weaknesses
from tests.support.vm.roots import Overlay
from tests.support.vm.systems import repacked

__all__: list[str] = []

pytestmark = [pytest.mark.needs("packages"), pytest.mark.timeout(7200)]

DUMP = CHECKOUT / "tests/data/importers/gdb-wrapped.in"
PROBE = "/usr/libexec/stallscope/stallscope-probe"
POKE = "/usr/lib/stallscope/python/stallscope/_bin/stallscope-poke"
POKE_OF_TAR = "/opt/stallscope/python/lib/python3/dist-packages/stallscope/_bin/stallscope-poke"
CAPABILITIES = {"cap_bpf", "cap_perfmon", "cap_sys_ptrace", "cap_checkpoint_restore"}
NO_COMPILER = "for name in gcc cc clang make ld; do ! command -v $name; done"
SETTINGS = '[server]\nname = "db"\ntarget = "mariadbd"\n'

STALL = """
    install -d -o nobody /tmp/data
    common="--no-defaults --user=nobody --datadir=/tmp/data"
    mariadb-install-db $common --force >/dev/null
    mariadbd $common --socket=/tmp/s --skip-networking 2>/tmp/log &
    server=$! sql="mariadb --no-defaults --socket=/tmp/s --skip-column-names"
    count="SELECT COUNT(*) FROM information_schema.processlist WHERE state ="
    until $sql -e 'CREATE DATABASE d; CREATE TABLE d.t (a int)' 2>/dev/null; do sleep 0.1; done
    $sql -e 'LOCK TABLES d.t WRITE; DO SLEEP(600)' &
    until [ "$($sql -e "$count 'User sleep'")" = 1 ]; do sleep 0.1; done
    for each in 1 2 3; do $sql -e 'INSERT INTO d.t VALUES (1)' & done
    until [ "$($sql -e "$count 'Waiting for table metadata lock'")" = 3 ]; do sleep 0.1; done
    stallscope snap -p $server
    kill -KILL $server
"""

BUILT = ("_bin/stallscope-probe", "_bin/stallscope-poke", "_lib/libstallscope.so")
"""What is compiled, in the package's folder of Python."""

Builder = Callable[[str], Path]
Roots = Callable[..., Overlay]


def works(root: Overlay, stallscope: str, extras: str = "jinja2 textual duckdb") -> dict[str, Any]:
    """Use it as people do; return what it says about itself."""
    root.check(NO_COMPILER)
    found = json.loads(root.check(f"{stallscope} version --json"))
    assert isinstance(found, dict)
    commit = found["commit"].removesuffix("-dirty")
    assert re.fullmatch("[0-9a-f]{40}", commit)
    assert found["probe"]["version"] == found["version"]
    for name in extras.split():
        assert found["libraries"][name]
    folder = Path(found["probe"]["path"]).parents[1]
    for name in BUILT:
        copy = f"/tmp/{Path(name).name}"
        root.check(f"cat '{folder}/{name}' >{copy}")
        assert weaknesses(root.path(copy), fortified=not name.endswith(".so")) == [], name
        root.check(f"rm {copy}")
    assert "4 threads: 3 waiting" in root.check(f"{stallscope} analyze /srv/{DUMP.name}")
    # A process that waits, captured without SQL; the capture's report and its tables.
    script = f"""
        sleep 600 & pid=$!
        {stallscope} snap -p $pid --once --no-sql --full -o /tmp/it.jsonl.zst >/tmp/said
        kill $pid; cat /tmp/said
        {stallscope} report /tmp/it.jsonl.zst -o /tmp/it.html >/dev/null
        {stallscope} export /tmp/it.jsonl.zst --to parquet -o /tmp/it.parquet >/dev/null
        test -s /tmp/it.html; test -s /tmp/it.parquet
        rm /tmp/it.jsonl.zst /tmp/it.html /tmp/it.parquet /tmp/said
    """
    said = root.check(script)
    assert "stacks: 1 verified" in said, said
    return found


@pytest.mark.parametrize("suite", ["bookworm", "trixie"])
def test_deb(built: Builder, root: Roots, suite: str) -> None:
    """Install, use, upgrade, remove, install again, purge."""
    package = built(f"deb {suite}")
    clean = root(suite, files=(package, DUMP))
    clean.check("! command -v pip3; ! command -v python3")
    clean.check(f"apt-get -q -y install /srv/{package.name}")
    version = clean.check("dpkg-query -W -f '${Version}' stallscope")
    installed = works(clean, "stallscope")
    assert installed["commit"][:7] in version
    # Who may run what.
    assert clean.check(f"stat -c '%U:%G %a' {PROBE}").strip() == "root:stallscope 750"
    assert set(re.findall(r"cap_\w+", clean.check(f"/usr/sbin/getcap {PROBE}"))) == CAPABILITIES
    assert "stallscope" in clean.check("runuser -u nobody -- stallscope --version")
    assert "Permission denied" in clean.run(f"runuser -u nobody -- {PROBE} --version").said
    features = json.loads(clean.check(f"runuser -u stallscope -- {PROBE} features"))["features"]
    assert features["capabilities"]["ok"], features["capabilities"]
    assert not features["ptrace"]["ok"]
    writes_for_root_alone(clean, POKE)
    # What else is in it.
    clean.check(
        "test -s /usr/share/bash-completion/completions/stallscope"
        " -a -s /usr/share/zsh/vendor-completions/_stallscope"
        " -a -s /usr/share/fish/vendor_completions.d/stallscope.fish"
        " -a -s /etc/logrotate.d/stallscope -a -s /usr/lib/stallscope/libstallscope.so"
        " -a -s /etc/stallscope/mariadb.toml -a -s /usr/share/stallscope/stallscope-inproc.conf"
    )
    # minbase keeps no documentation out: dpkg lists it all the same.
    listed = clean.check("dpkg -L stallscope")
    assert "/usr/share/man/man1/stallscope-watch.1.gz" in listed
    assert "/usr/share/doc/stallscope/stallscope.cdx.json.gz" in listed
    assert clean.check("stat -c '%U:%G %a' /var/lib/stallscope").strip() == (
        "stallscope:stallscope 750"
    )
    # What people and agents leave behind is kept, and what was set is set again.
    clean.check("echo kept >/var/lib/stallscope/incident")
    clean.path("/etc/stallscope").mkdir(parents=True, exist_ok=True)
    clean.path("/etc/stallscope/db.toml").write_text(SETTINGS)
    later = repacked(Path(shutil.copy(package, clean.path("/srv/later.deb"))))
    clean.check(f"apt-get -q -y install /srv/{later.name}")
    assert "+later1" in clean.check("dpkg-query -W -f '${Version}' stallscope")
    assert clean.check(f"stat -c '%U:%G %a' {PROBE}").strip() == "root:stallscope 750"
    assert set(re.findall(r"cap_\w+", clean.check(f"/usr/sbin/getcap {PROBE}"))) == CAPABILITIES
    works(clean, "stallscope")
    clean.check("apt-get -q -y remove stallscope")
    assert clean.check("cat /var/lib/stallscope/incident").strip() == "kept"
    assert clean.check("cat /etc/stallscope/db.toml") == SETTINGS
    clean.check("test ! -e /usr/lib/stallscope -a ! -e /usr/libexec/stallscope")
    clean.check(f"apt-get -q -y install /srv/{package.name}")
    clean.check("apt-get -q -y purge stallscope")
    left = clean.check("find / -xdev -name '*stallscope*' -not -path '/srv/*' -not -path '/proc/*'")
    assert [name for name in left.split() if not name.startswith("/var/cache/apt/")] == []


@pytest.mark.parametrize("suite", ["bookworm", "trixie"])
def test_deb_names_a_stall(built: Builder, root: Roots, suite: str) -> None:
    package = built(f"deb {suite}")
    clean = root(suite, files=(package,))
    servers = "mariadb-server-core mariadb-client-core"
    clean.check(f"apt-get -q -y install {servers} /srv/{package.name}")
    said = clean.check(STALL)
    assert "[metadata-lock]" in said
    assert "3 x INSERT INTO d.t" in said


@pytest.mark.parametrize("suite", ["bookworm", "trixie", "sid"])
def test_wheel(built: Builder, root: Roots, suite: str) -> None:
    wheel = built("wheel")
    assert "manylinux_2_17" in wheel.name
    clean = root(suite, "python3-venv", files=(wheel, DUMP))
    clean.check(
        "python3 -m venv /opt/it && /opt/it/bin/pip install -q --only-binary :all:"
        f" '/srv/{wheel.name}[top,report,parquet,apprise,ed25519,postgres]'"
    )
    works(clean, "/opt/it/bin/stallscope")
    clean.check("test -s /opt/it/man/man1/stallscope.1 -o -s /opt/it/share/man/man1/stallscope.1")


def writes_for_root_alone(root: Overlay, poke: str) -> None:
    """Who may run the probe has what its file has; the program that writes has nothing."""
    assert root.check(f"stat -c '%U:%G %a' {poke}").strip() == "root:root 700"
    assert root.check(f"/usr/sbin/getcap {poke}") == ""
    assert root.check(f"{poke} --version").startswith("stallscope-poke ")
    for user in ("nobody", "stallscope"):
        refused = root.run(f"runuser -u {user} -- stallscope poke any -p $$")
        assert refused.code != 0
        assert "you may not run it: do this as root" in refused.said, refused.said
        assert "Permission denied" in root.run(f"runuser -u {user} -- {poke} --version").said


def unpacked(root: Overlay, archive: Path) -> str:
    """Unpack the archive into a folder with a blank in its name; return the program."""
    folder = root.path("/srv/some folder")
    folder.mkdir(parents=True)
    shutil.unpack_archive(archive, folder, filter="tar")
    (program,) = folder.glob("*/stallscope")
    return f"'/srv/some folder/{program.parent.name}/stallscope'"


@pytest.mark.parametrize("suite", ["bullseye", "trixie"])
def test_tar(built: Builder, root: Roots, suite: str) -> None:
    """Bullseye has glibc 2.31; nothing needs a Python there."""
    clean = root(suite, files=(DUMP,))
    program = unpacked(clean, built("tar"))
    clean.check("! command -v python3")
    assert works(clean, program)["python"].startswith("3.11.")
    # By a link, from elsewhere.
    clean.check(f"ln -s {program} /usr/local/bin/stallscope; cd /tmp; stallscope --version")
    before = clean.check("find '/srv/some folder' -name __pycache__ | wc -l")
    print(f"folders of byte code: {before}")


def test_tar_installed_as_a_service(built: Builder, root: Roots) -> None:
    """By its own installer, where there is no package; and taken away again."""
    clean = root("bullseye", "libcap2-bin", files=(DUMP,))
    folder = unpacked(clean, built("tar")).replace("/stallscope'", "'")
    clean.check(f"cd {folder}; ./install-agent")
    clean.check(f"rm -r {folder}")
    works(clean, "stallscope")
    assert clean.check(f"stat -c '%U:%G %a' {PROBE}").strip() == "root:stallscope 750"
    assert set(re.findall(r"cap_\w+", clean.check(f"/usr/sbin/getcap {PROBE}"))) == CAPABILITIES
    features = json.loads(clean.check(f"runuser -u stallscope -- {PROBE} features"))["features"]
    assert features["capabilities"]["ok"], features["capabilities"]
    writes_for_root_alone(clean, POKE_OF_TAR)
    clean.check("test -s /usr/lib/systemd/system/stallscope@.service")
    clean.check("test -s /usr/share/man/man1/stallscope-watch.1")
    # Over itself, as an upgrade is.
    clean.check("/opt/stallscope/install-agent && stallscope --version")
    clean.check("/opt/stallscope/install-agent --remove")
    left = clean.check("find / -xdev -name '*stallscope*' -not -path '/srv/*' -not -path '/proc/*'")
    assert left.split() == ["/var/lib/stallscope"]


def test_tar_without_a_c_library(built: Builder, root: Roots, tmp_path: Path) -> None:
    """A host that has nothing but a kernel and a static shell."""
    shell = root("bookworm", "busybox-static")
    shell.check("cp $(command -v busybox) /srv/busybox")
    bare = tmp_path / "bare"
    for name in ("bin", "dev", "proc", "sys", "tmp", "etc", "srv"):
        (bare / name).mkdir(parents=True)
    shutil.copy(shell.path("/srv/busybox"), bare / "bin/busybox")
    for name in ("sh", "ls", "cat", "rm", "sleep", "test", "readlink", "kill", "env"):
        (bare / "bin" / name).symlink_to("busybox")
    shutil.copy(DUMP, bare / "srv")
    clean = Overlay(bare, tmp_path / "of-bare")
    program = unpacked(clean, built("tar"))
    works(clean, program)


def test_image(built: Builder, tmp_path: Path) -> None:
    """Its one layer is a whole system, in which its program runs as its user."""
    shutil.unpack_archive(built("image"), tmp_path / "image", filter="tar")
    blobs = tmp_path / "image/blobs"

    def blob(about: dict[str, Any]) -> Path:
        path = blobs / str(about["digest"]).replace(":", "/")
        assert hashlib.sha256(path.read_bytes()).hexdigest() == path.name
        assert path.stat().st_size == about["size"]
        return path

    (of_manifest,) = json.loads((tmp_path / "image/index.json").read_text())["manifests"]
    manifest = json.loads(blob(of_manifest).read_text())
    config = json.loads(blob(manifest["config"]).read_text())["config"]
    (layer,) = manifest["layers"]
    root = tmp_path / "root"
    shutil.unpack_archive(blob(layer), root, "gztar", filter="tar")
    clean = Overlay(root, tmp_path / "overlay")
    clean.path("/srv").mkdir()
    shutil.copy(DUMP, clean.path("/srv"))
    exports = f"export {' '.join(config['Env'])}"
    works(clean, f"{exports}; {config['Entrypoint'][0]}")
    assert clean.check(f"{exports}; stat -c '%u:%g %a' {POKE_OF_TAR}").strip() == "0:0 700"
    assert config["User"] == "65532:65532"  # in its /etc/passwd: stallscope
    assert "usage: stallscope" in clean.check(f"{exports}; su stallscope -c 'stallscope --help'")


@pytest.mark.parametrize("suite", ["bookworm", "trixie"])
def test_a_bare_machine_builds_the_same(built: Builder, tmp_path: Path, suite: str) -> None:
    """With nothing but the smallest system, an empty cache, and a checkout at another place."""
    out, cache = tmp_path / "out", tmp_path / "cache"
    for folder in (out, cache):
        folder.mkdir()
    binds = {"/srv/it": clone(tmp_path), "/srv/out": out, "/var/cache/stallscope": cache}
    machine = Overlay(clean_root(suite), tmp_path / "machine", binds)
    machine.check("! command -v git; ! command -v python3; ! command -v debootstrap")
    began = time.monotonic()
    said = machine.check(f"/srv/it/scripts/package deb --suite {suite} --output /srv/out")
    print(f"from nothing in {time.monotonic() - began:.0f} s")
    first = built(f"deb {suite}")
    assert said.splitlines()[-1] == f"/srv/out/{first.name}"
    for name in (first.name, f"{first.name}.cdx.json"):
        assert (out / name).read_bytes() == first.with_name(name).read_bytes()
    versions = Path(f"{first}.built-with.txt").read_text()
    assert re.search(r"^lintian 2\.", versions, re.M)
    assert re.search(r"^gcc-\d+ ", versions, re.M)


@pytest.mark.parametrize("what", ["wheel", "tar", "deb bookworm"])
def test_the_sbom_names_all_parts(built: Builder, what: str) -> None:
    bom = json.loads(Path(f"{built(what)}.cdx.json").read_text())
    assert (bom["bomFormat"], bom["metadata"]["component"]["name"]) == ("CycloneDX", "stallscope")
    named = {component["name"].lower() for component in bom["components"]}
    lock = (CHECKOUT / "scripts/packaging/requirements.txt").read_text()
    for name in re.findall(r"^([\w.-]+)==(?!.*win32)", lock, re.M):
        wanted = {name, name.replace("-", "."), name.replace("-", "_")}
        assert wanted & named, name
    assert {"@dagrejs/dagre", "uplot"} <= named
    assert any(name.startswith("libbpf") for name in named)
    if what == "tar":
        assert {"libc6", "libssl3", "libpython3.11-stdlib"} <= named
    for component in bom["components"]:
        assert component.get("version"), component
