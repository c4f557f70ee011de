# SPDX-License-Identifier: Apache-2.0
"""The image is built, without a container runtime, and what is in it works with its user."""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import imagebuild
from tests.support.imagebuild import CONTAINERFILE, Image
from tests.support.targets import target_path
from tests.support.vm import roots

__all__: list[str] = []

pytestmark = pytest.mark.needs("root", "debootstrap")


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Image]:
    folder: Path = tmp_path_factory.mktemp("image")
    folder.chmod(0o755)
    yield imagebuild.build(CONTAINERFILE.read_text(), folder, imagebuild.new_root)
    roots.run(["rm", "-rf", "--one-file-system", str(folder)])


def in_image(image: Image, *words: str) -> str:
    """Run its entry point as its user; return what it prints."""
    entry = json.loads(image.metadata["ENTRYPOINT"])
    user = image.metadata["USER"].partition(":")[0]
    become = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"]
    return roots.inside(image.root, image.script(shlex.join([*become, *entry, *words])))


def test_it_starts_as_its_user(image: Image) -> None:
    version = (imagebuild.CHECKOUT / "VERSION").read_text().strip()
    assert version in in_image(image, "--version")
    assert "usage: stallscope" in in_image(image, *json.loads(image.metadata["CMD"]))


def test_it_captures_and_reports(image: Image) -> None:
    """With its own probe, and the libraries of its release; the script of the report is inside."""
    shutil.copy(target_path("threads"), image.root / "tmp/threads")
    commands = (
        "coproc target { exec /tmp/threads 3 25; }",
        "sed /ready/q <&${target[0]} >&2",
        "stallscope snap -p $target_PID --once -o /tmp/a.jsonl.zst >&2",
        "stallscope report /tmp/a.jsonl.zst -o - >/tmp/a.html 2>/dev/null",
        "tail -c 20 /tmp/a.html",
    )
    said = roots.inside(image.root, image.script("\n".join(commands)))
    assert said.rstrip().endswith("</html>")
    assert (image.root / "tmp/a.jsonl.zst").stat().st_size > 100


def test_no_compiler_is_left(image: Image) -> None:
    found = roots.inside(image.root, "command -v gcc clang meson || true")
    assert found == ""
    assert not (image.root / "src").exists()
