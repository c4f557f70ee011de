# SPDX-License-Identifier: Apache-2.0
"""The bundle of the HTML report is made of what the lock file names, and keeps its licences."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import shutil
import tarfile
from pathlib import Path

import npmpackages
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
    for name in ("d3-flame-graph", "uplot", "@dagrejs/dagre", "d3-selection", "d3-hierarchy"):
        assert f"\n{name} " in f"\n{bundle.licences}", name
    assert bundle.licences.count("Permission") >= 10
    assert "</script" not in bundle.script.lower()
    assert "</style" not in bundle.style.lower()
    assert "http" not in bundle.style
    assert bundle.script.isascii()


def web(folder: Path) -> Path:
    """Return a copy of web/, to change."""
    return Path(shutil.copytree(WEB, folder / "web", ignore=shutil.ignore_patterns("node_modules")))


def test_what_is_there_is_not_made_again(tmp_path: Path) -> None:
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
    monkeypatch.setattr("sys.argv", ["webassets.py", str(tmp_path / "out")])
    assert webassets.main() == 1
    said = capsys.readouterr().err
    assert "https://127.0.0.1:9/" in said
    assert said.count("\n") == 1


def packed(**files: str) -> bytes:
    """Return a package as the registry has it."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:gz") as archive:
        for name, text in files.items():
            member = tarfile.TarInfo(name.replace("__", "/"))
            member.size = len(text)
            member.mode = 0o755 if text.startswith("#!") else 0o644
            archive.addfile(member, io.BytesIO(text.encode()))
    return data.getvalue()


def lock(folder: Path, data: bytes, **more: object) -> Path:
    digest = base64.b64encode(hashlib.sha512(data).digest()).decode()
    about = {"version": "1.0.0", "integrity": f"sha512-{digest}", **more}
    path = folder / "package-lock.json"
    path.write_text(json.dumps({"packages": {"": {}, "node_modules/@a/thing": about}}))
    return path


def test_a_package_is_what_the_lock_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = packed(package__a="text", package__deep__b="more", package__bin__c="#!/bin/sh")
    asked = []

    def download(address: str) -> bytes:
        asked.append(address)
        return data

    monkeypatch.setattr(npmpackages, "_download", download)
    npmpackages.install(lock(tmp_path, data), tmp_path)
    assert asked == ["https://registry.npmjs.org/@a/thing/-/thing-1.0.0.tgz"]
    assert (tmp_path / "node_modules/@a/thing/deep/b").read_text() == "more"
    assert not os.access(tmp_path / "node_modules/@a/thing/a", os.X_OK)
    assert os.access(tmp_path / "node_modules/@a/thing/bin/c", os.X_OK)
    npmpackages.install(lock(tmp_path, data, os=["darwin"]), tmp_path)
    assert len(asked) == 1
    with pytest.raises(npmpackages.PackagesError, match="not what the lock names"):
        npmpackages.install(lock(tmp_path, b"another"), tmp_path)


def test_a_package_stays_in_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = packed(**{"package/../../../../outside": "text"})
    monkeypatch.setattr(npmpackages, "_download", lambda address: data)
    with pytest.raises(npmpackages.PackagesError, match="outside of"):
        npmpackages.install(lock(tmp_path, data), tmp_path / "in")
    assert not list(tmp_path.glob("**/outside"))


def test_a_package_without_a_licence_stops_it(tmp_path: Path) -> None:
    package = tmp_path / "thing"
    package.mkdir()
    (package / "package.json").write_text('{"name": "thing", "version": "1.0"}')
    with pytest.raises(webassets.AssetsError, match=r"thing 1\.0 has no licence"):
        webassets.licences([package], tmp_path / "licences.txt")
