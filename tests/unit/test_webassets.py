# SPDX-License-Identifier: Apache-2.0
"""The bundle of the HTML report is made of what the lock file names, and keeps its licences."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import shutil
import tarfile
from pathlib import Path

import pytest
import webassets

from stallscope.reporters.html import assets

WEB = webassets.WEB


def test_every_package_is_locked_by_its_hash() -> None:
    lock = json.loads((WEB / "package-lock.json").read_text("utf-8"))
    packages = {name: about for name, about in lock["packages"].items() if name}
    assert packages
    for name, about in packages.items():
        assert about["integrity"].startswith("sha512-"), name


@pytest.mark.needs("web")
def test_bundle_keeps_its_licences() -> None:
    bundle = assets.load()
    for name in ("uplot", "@dagrejs/dagre"):
        assert f"\n{name} " in f"\n{bundle.licences}", name
    assert bundle.licences.count("Permission") == 2
    assert "</script" not in bundle.script.lower()
    assert "</style" not in bundle.style.lower()
    assert "http" not in bundle.style
    assert bundle.script.isascii()


def web(folder: Path) -> Path:
    """Return a copy of web/, to change."""
    return Path(shutil.copytree(WEB, folder / "web", ignore=shutil.ignore_patterns("node_modules")))


def test_existing_files_are_not_made_again(tmp_path: Path) -> None:
    source, out = web(tmp_path), tmp_path / "out"
    out.mkdir()
    for name in webassets.PRODUCTS:
        (out / name).write_text("made before")
    (out / webassets.STAMP).write_text(webassets.digest(source))
    assert not webassets.make(source, out)
    (source / "src/dom.js").write_text("// changed")
    assert (out / webassets.STAMP).read_text() != webassets.digest(source)


def test_what_cannot_be_downloaded_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NPM_CONFIG_REGISTRY", "https://127.0.0.1:9")
    monkeypatch.setenv("NPM_CONFIG_FETCH_RETRIES", "0")
    monkeypatch.setattr("sys.argv", ["webassets.py", str(tmp_path / "out")])
    assert webassets.main() == 1
    said = capsys.readouterr().err
    assert "https://127.0.0.1:9/" in said
    assert said.count("\n") == 1
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.large
def test_a_package_that_is_not_what_the_lock_names_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And none of the packages' scripts is run."""
    folder, ran = tmp_path / "web", tmp_path / "ran"
    folder.mkdir()
    about = {"name": "thing", "version": "1.0.0", "scripts": {"install": f"touch {ran}"}}
    archive = folder / "thing-1.0.0.tgz"
    with tarfile.open(archive, mode="w:gz") as file:
        data = json.dumps(about).encode()
        member = tarfile.TarInfo("package/package.json")
        member.size = len(data)
        file.addfile(member, io.BytesIO(data))
    web = {"name": "web", "version": "1.0.0", "dependencies": {"thing": archive.as_uri()}}
    (folder / "package.json").write_text(json.dumps(web))
    shutil.copy(WEB / ".npmrc", folder)

    def install(content: bytes) -> Path:
        digest = base64.b64encode(hashlib.sha512(content).digest()).decode()
        thing = {
            "version": "1.0.0",
            "resolved": archive.as_uri(),
            "integrity": f"sha512-{digest}",
            "hasInstallScript": True,
        }
        packages = {"": web, "node_modules/thing": thing}
        lock = {"name": "web", "version": "1.0.0", "lockfileVersion": 3, "packages": packages}
        (folder / "package-lock.json").write_text(json.dumps(lock))
        out = tmp_path / "out"
        out.mkdir(exist_ok=True)
        return webassets.packages(folder, out)

    with pytest.raises(webassets.AssetsError, match="EINTEGRITY"):
        install(b"another")
    assert (install(archive.read_bytes()) / "thing/package.json").exists()
    assert not ran.exists()


def test_a_package_without_a_licence_stops_it(tmp_path: Path) -> None:
    package = tmp_path / "thing"
    package.mkdir()
    (package / "package.json").write_text('{"name": "thing", "version": "1.0"}')
    with pytest.raises(webassets.AssetsError, match=r"thing 1\.0 has no licence"):
        webassets.licences([package], tmp_path / "licences.txt")
