# SPDX-License-Identifier: Apache-2.0
"""What is refused as a release, and the parts of one that need no build."""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path

import pytest
import release

__all__: list[str] = []

CHANGELOG = (
    "# Changelog\n\n## Unreleased\n\n- d\n\n## 1.2.0\n\n- a\n\n### b\n\n- c\n\n## 1.1.0\n\n- e\n"
)


def test_the_section_of_a_version() -> None:
    assert release.changes("1.2.0", CHANGELOG) == "- a\n\n### b\n\n- c"
    assert release.changes("1.1.0", CHANGELOG) == "- e"
    assert release.changes("1.2", CHANGELOG) is None


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a repository that can be released as 1.2.0."""
    folder = tmp_path / "checkout"
    folder.mkdir()
    (folder / "VERSION").write_text("1.2.0\n")
    (folder / "CHANGELOG.md").write_text(CHANGELOG)
    for words in (("init", "-q"), ("add", "."), ("commit", "-q", "-m", "a")):
        who = ("-c", "user.name=a", "-c", "user.email=a@example.org")
        subprocess.run(["git", "-C", folder, *who, *words], check=True)
    monkeypatch.setattr("release.CHECKOUT", folder)
    monkeypatch.setattr("packages.CHECKOUT", folder)
    return folder


def test_a_clean_commit_is_not_refused(checkout: Path, tmp_path: Path) -> None:
    assert release.refusal("1.2.0", tmp_path / "out") is None


@pytest.mark.parametrize(
    ("version", "script", "reason"),
    [
        ("1.1.0", "true", "VERSION is 1.2.0"),
        ("1.2.0", "echo >new", "files that are not committed: new"),
        ("1.2.0", "echo more >>CHANGELOG.md", "files that are not committed: CHANGELOG.md"),
        ("1.3.0", "echo 1.3.0 >VERSION", "CHANGELOG.md has no section '## 1.3.0'"),
        ("1.2.0", "git tag v1.2.0", "the tag v1.2.0 is there"),
        ("1.2.0", "mkdir ../out && touch ../out/a", "out is not empty"),
    ],
)
def test_refusals(checkout: Path, tmp_path: Path, version: str, script: str, reason: str) -> None:
    subprocess.run(["sh", "-ec", script], cwd=checkout, check=True)
    said = release.refusal(version, tmp_path / "out")
    assert said is not None
    assert said.endswith(reason)


def test_checksums_are_those_of_sha256sum(tmp_path: Path) -> None:
    (tmp_path / "apt").mkdir()
    (tmp_path / "b").write_bytes(b"b")
    (tmp_path / "apt/a").write_bytes(b"a")
    digest = hashlib.sha256(b"a").hexdigest()
    assert release.checksums(tmp_path).startswith(f"{digest}  apt/a\n")
    check = ["sha256sum", "--check", "--strict", "--quiet"]
    text = release.checksums(tmp_path)
    subprocess.run(check, input=text, text=True, cwd=tmp_path, check=True)
