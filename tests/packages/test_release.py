# SPDX-License-Identifier: Apache-2.0
"""A release: the same again from another clone, its signatures, and its apt repository."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.packages.conftest import BEFORE, Keys, make_release, run
from tests.support.vm.roots import Overlay

__all__: list[str] = []

pytestmark = [pytest.mark.needs("packages"), pytest.mark.timeout(7200)]

Roots = Callable[..., Overlay]


def test_it_is_the_same_again(released: Path, keys: Keys, tmp_path: Path) -> None:
    second = make_release(tmp_path, keys)
    of_keys = () if BEFORE is None else ("InRelease", "stallscope.gpg")
    first, again = (
        [
            line
            for line in (folder / "SHA256SUMS").read_text().splitlines()
            if not line.endswith(of_keys)
        ]
        for folder in (released, second)
    )
    assert again == first
    run("minisign", "-V", "-p", keys.public, "-m", second / "SHA256SUMS")
    if BEFORE is None:
        signatures = [(folder / "SHA256SUMS.minisig").read_text() for folder in (released, second)]
        assert signatures[0] == signatures[1]


def test_its_sums_are_of_all_its_files(released: Path) -> None:
    run("sh", "-ec", 'cd "$1" && sha256sum --check --strict --quiet SHA256SUMS', "sh", released)
    listed = {line.split("  ")[1] for line in (released / "SHA256SUMS").read_text().splitlines()}
    files = {str(path.relative_to(released)) for path in released.rglob("*") if path.is_file()}
    assert files - listed == {"SHA256SUMS", "SHA256SUMS.minisig"}


@pytest.mark.parametrize("suite", ["bookworm", "trixie"])
def test_apt_installs_from_its_repository(released: Path, root: Roots, suite: str) -> None:
    clean = root(suite)
    place = clean.path("/srv/apt")
    shutil.copytree(released / "apt", place)
    source = f"deb [signed-by=/srv/apt/stallscope.gpg] file:/srv/apt {suite} main"
    clean.check(f"echo '{source}' >/etc/apt/sources.list.d/stallscope.list; apt-get -q update")
    clean.check("apt-get -q -y install stallscope")
    script = """
        sleep 600 & pid=$!
        stallscope snap -p $pid --once --no-sql --full
        kill $pid
    """
    assert "stacks: 1 verified" in clean.check(script)
    # What is not signed is refused.
    signed = place / "dists" / suite / "InRelease"
    signed.write_text(signed.read_text().replace("Label: stallscope", "Label: something"))
    said = clean.run("rm -r /var/lib/apt/lists; apt-get -q update").said
    assert "is not signed" in said, said
