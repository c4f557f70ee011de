# SPDX-License-Identifier: Apache-2.0
"""Write an image of one layer as an OCI archive, which ``podman load`` and ``docker load`` take.

    oci.py LAYER CONTAINERFILE ARCHIVE

The Containerfile is one that builds on nothing and runs nothing: all that is in the image is in the
layer. The same layer and Containerfile give the same bytes.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import shlex
import sys
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

__all__ = ["configuration", "instructions"]

BEGIN = [("FROM", "scratch"), ("ADD", "layer.tar /")]
TYPE = "application/vnd.oci.image"


def instructions(text: str) -> Iterator[tuple[str, str]]:
    """Yield the instructions of a Containerfile."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    for line in "\n".join(lines).replace("\\\n", " ").splitlines():
        if line.strip():
            name, _, rest = line.strip().partition(" ")
            yield name, rest.strip()


def configuration(text: str) -> dict[str, Any]:
    """Return what a container gets. Raises ValueError where it would get more than the layer."""
    found = list(instructions(text))
    if found[: len(BEGIN)] != BEGIN:
        raise ValueError(f"it has to begin with {BEGIN}")
    config: dict[str, Any] = {}
    for name, rest in found[len(BEGIN) :]:
        match name:
            case "ENV":
                config.setdefault("Env", []).extend(shlex.split(rest))
            case "USER":
                config["User"] = rest
            case "VOLUME":
                config["Volumes"] = {rest: {}}
            case "EXPOSE":
                config["ExposedPorts"] = {f"{rest}/tcp": {}}
            case "ENTRYPOINT" | "CMD":
                config[{"ENTRYPOINT": "Entrypoint", "CMD": "Cmd"}[name]] = json.loads(rest)
            case _:
                raise ValueError(f"{name} is an instruction that is not for this image")
    return config


def described(kind: str, data: bytes) -> dict[str, Any]:
    digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
    return {"mediaType": f"{TYPE}.{kind}", "digest": digest, "size": len(data)}


def files(
    layer: bytes, config: dict[str, Any], seconds: int, tag: str
) -> Iterator[tuple[str, bytes]]:
    """Yield what the archive consists of: names and contents."""

    def text(value: object) -> bytes:
        return json.dumps(value, sort_keys=True).encode()

    def blob(about: dict[str, Any]) -> str:
        return f"blobs/{about['digest'].replace(':', '/')}"

    packed = gzip.compress(layer, mtime=0)
    image = text(
        {
            "architecture": "amd64",
            "os": "linux",
            "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds)),
            "config": config,
            "rootfs": {"type": "layers", "diff_ids": [described("", layer)["digest"]]},
        }
    )
    of_layer, of_image = described("layer.v1.tar+gzip", packed), described("config.v1+json", image)
    manifest = text(
        {
            "schemaVersion": 2,
            "mediaType": f"{TYPE}.manifest.v1+json",
            "config": of_image,
            "layers": [of_layer],
        }
    )
    of_manifest = {
        **described("manifest.v1+json", manifest),
        "annotations": {"org.opencontainers.image.ref.name": tag},
    }
    yield "oci-layout", text({"imageLayoutVersion": "1.0.0"})
    yield "index.json", text({"schemaVersion": 2, "manifests": [of_manifest]})
    # What docker looks for.
    tagged = {"Config": blob(of_image), "RepoTags": [tag], "Layers": [blob(of_layer)]}
    yield "manifest.json", text([tagged])
    for about, data in ((of_manifest, manifest), (of_image, image), (of_layer, packed)):
        yield blob(about), data


def main() -> int:
    layer, containerfile, archive = (Path(word) for word in sys.argv[1:])
    seconds = int(os.environ["SOURCE_DATE_EPOCH"])
    tag = f"stallscope:{(Path(__file__).parents[2] / 'VERSION').read_text().strip()}"
    config = configuration(containerfile.read_text())
    with tarfile.open(archive, "w", format=tarfile.USTAR_FORMAT) as tar:
        for name, data in files(layer.read_bytes(), config, seconds, tag):
            info = tarfile.TarInfo(name)
            info.size, info.mtime = len(data), seconds
            tar.addfile(info, io.BytesIO(data))
    return 0


if __name__ == "__main__":
    sys.exit(main())
