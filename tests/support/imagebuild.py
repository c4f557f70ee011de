# SPDX-License-Identifier: Apache-2.0
"""Build a Containerfile without a container runtime: each stage in a root folder that debootstrap
made. It knows the instructions that ours uses, and refuses any other.

    python -m tests.support.imagebuild FOLDER

makes the image of packaging/containers/Containerfile in FOLDER, and prints its root folder.
"""

from __future__ import annotations

import re
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
from packages import sources

from tests.support.vm import roots

__all__ = ["CONTAINERFILE", "Image", "build", "instructions"]

CHECKOUT = Path(__file__).resolve().parents[2]
CONTAINERFILE = CHECKOUT / "packaging" / "containers" / "Containerfile"
BASES = {"docker.io/library/debian:13-slim": "13", "docker.io/library/debian:12-slim": "12"}
OF_METADATA = ("CMD", "ENTRYPOINT", "EXPOSE", "USER", "VOLUME")


class Image(msgspec.Struct):
    """A stage: its root folder, and what a container of it would get."""

    root: Path
    env: dict[str, str] = {}
    metadata: dict[str, str] = {}

    def script(self, command: str) -> str:
        """Return a shell script that runs a command with its variables."""
        exports = " ".join(f"{name}={shlex.quote(value)}" for name, value in self.env.items())
        return f"export {exports}\n{command}" if exports else command


def instructions(text: str) -> Iterator[tuple[str, str]]:
    """Yield the instructions of a Containerfile."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    for line in "\n".join(lines).replace("\\\n", " ").splitlines():
        if line.strip():
            name, _, rest = line.strip().partition(" ")
            yield name, rest.strip()


def build(text: str, folder: Path, base: Callable[[str, Path], None]) -> Image:
    """Build all stages below a folder; return the last one.

    ``base`` makes the root folder of a release of Debian: it gets its number, and where.
    """
    stages: dict[str, Image] = {}
    image: Image | None = None
    for name, rest in instructions(text):
        if name == "FROM":
            source, _, alias = re.sub(r"\s+[Aa][Ss]\s+", " ", rest).partition(" ")
            image = Image(folder / f"stage-{len(stages)}")
            stages[alias or str(len(stages))] = image
            base(BASES[source], image.root)
            continue
        assert image is not None, "FROM comes first"
        match name:
            case "RUN":
                roots.inside(image.root, image.script(rest))
            case "ENV":
                pairs = (word.partition("=") for word in shlex.split(rest))
                image.env.update({variable: value for variable, _, value in pairs})
            case "COPY":
                _copy(rest.split(), image.root, stages)
            case _ if name in OF_METADATA:
                image.metadata[name] = rest
            case _:
                raise ValueError(f"{name} is an instruction that this does not know")
    assert image is not None
    return image


def _copy(words: list[str], root: Path, stages: dict[str, Image]) -> None:
    if words[0].startswith("--from="):
        origin = stages[words[0].removeprefix("--from=")].root
        source, target = (path.lstrip("/") for path in words[1:])
        shutil.copytree(origin / source, root / target, symlinks=True)
        return
    source, target = words
    assert source == ".", "only the whole checkout"
    for name in sources():
        place = root / target.lstrip("/") / name
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(CHECKOUT / name, place, follow_symlinks=False)


def new_root(number: str, root: Path) -> None:
    """Make the root folder of a release, which trusts whom this machine trusts."""
    roots.debootstrap(roots.RELEASES[number], root)
    roots.trust(root)


def main() -> int:
    """Build ours."""
    folder = Path(sys.argv[1]).absolute()
    print(build(CONTAINERFILE.read_text(), folder, new_root).root)
    return 0


if __name__ == "__main__":
    sys.exit(main())
