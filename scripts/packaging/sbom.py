# SPDX-License-Identifier: Apache-2.0
"""Write the SBOM of a package: CycloneDX, as cyclonedx-py makes it of an environment, with what is
not Python added: Debian's libraries in the programs, and the npm packages in the report's script.

    sbom.py [--static] [--files DIR] ENVIRONMENT PACKAGE

It goes beside PACKAGE, as PACKAGE.cdx.json; where PACKAGE is a .cdx.json itself, it is written
there. ``--owners FILE`` prints Debian's packages that the listed files are of, and does nothing
else.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).resolve().parents[2]
STATIC = (
    *("libbpf-dev", "libelf-dev", "zlib1g-dev", "libzstd-dev", "liblzma-dev", "libc6-dev"),
    "libstdc++-*-dev",
)
"""Packages with the libraries that are linked into a program."""


def debian(names: Sequence[str], kind: str) -> Iterator[dict[str, Any]]:
    """Yield the components of Debian's packages that are installed here."""
    form = "${source:Package} ${binary:Package} ${Version}\\n"
    said = subprocess.run(
        ["dpkg-query", "-W", "-f", form, *names], capture_output=True, text=True, check=False
    )
    for line in sorted(said.stdout.splitlines()):
        words = line.split()
        if len(words) != 3:  # a package that is not installed has no version
            continue
        source, name, version = words
        name = name.partition(":")[0]
        place = f"pkg:deb/debian/{name}@{version.replace('+', '%2B')}"
        yield {
            "type": "library",
            "name": name,
            "version": version,
            "bom-ref": f"deb-{name}",
            "purl": f"{place}?distro={os.environ['SUITE']}",
            "properties": [
                {"name": "stallscope:source-package", "value": source},
                {"name": "stallscope:linked", "value": kind},
            ],
        }


def npm() -> Iterator[dict[str, Any]]:
    """Yield the components that the report's script is bundled of."""
    lock = json.loads((CHECKOUT / "web/package-lock.json").read_text())
    for place, entry in sorted(lock["packages"].items()):
        name = place.rpartition("node_modules/")[2]
        if not name or entry.get("dev") or entry.get("optional") or name == "esbuild":
            continue
        quoted = name.replace("@", "%40")
        yield {
            "type": "library",
            "name": name,
            "version": entry["version"],
            "bom-ref": f"npm-{name}",
            "purl": f"pkg:npm/{quoted}@{entry['version']}",
        }


def loaded(environment: Path) -> list[str]:
    """Return the libraries that the environment's probe is linked to."""
    (program,) = environment.glob("lib/python3*/site-packages/stallscope/_bin/stallscope-probe")
    said = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
    return [line.split()[2] for line in said.splitlines() if " => /" in line]


def owners(files: Sequence[str]) -> list[str]:
    """Return Debian's packages that files are of."""
    # dpkg knows a file by the name that its package has for it: /lib is a link to /usr/lib.
    short = [name.removeprefix("/usr") for name in files]
    names = [*short, *(f"/usr{name}" for name in short)]
    said = subprocess.run(["dpkg", "-S", *names], capture_output=True, text=True, check=False)
    found = {line.partition(": ")[0].partition(":")[0] for line in said.stdout.splitlines()}
    return sorted(name for line in found for name in line.split(", ") if " " not in name)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--static", action="store_true", help="the programs are linked statically")
    parser.add_argument("--files", type=Path, help="list of files of Debian's that are inside")
    parser.add_argument("--owners", type=Path, help="print whose files are listed in a file")
    parser.add_argument("environment", type=Path, nargs="?")
    parser.add_argument("package", type=Path, nargs="?")
    args = parser.parse_args()
    if args.owners:
        print("\n".join(owners(args.owners.read_text().split())))
        return 0
    out = args.package
    if not out.name.endswith(".cdx.json"):
        out = out.with_name(out.name + ".cdx.json")
    form = ("--output-reproducible", "--of", "JSON", "--sv", "1.6", "-o", str(out))
    cyclonedx = Path(sys.executable).with_name("cyclonedx-py")
    project = ("--pyproject", str(CHECKOUT / "pyproject.toml"))
    subprocess.run(
        [cyclonedx, "environment", *form, *project, str(args.environment / "bin/python")],
        check=True,
        stderr=subprocess.DEVNULL,
    )
    bom = json.loads(out.read_text())
    bom["metadata"]["component"]["version"] = (CHECKOUT / "VERSION").read_text().strip()
    bom["metadata"].setdefault("properties", []).append(
        {"name": "stallscope:commit", "value": os.environ["STALLSCOPE_COMMIT"]}
    )
    bom["components"] += [
        *(
            debian(STATIC, "static")
            if args.static
            # Not a part of it: what the host has, too.
            else debian(owners(loaded(args.environment)), "shared")
        ),
        *(debian(owners(args.files.read_text().split()), "bundled") if args.files else ()),
        *npm(),
    ]
    # One package may be there twice, linked and bundled.
    seen = {component["bom-ref"]: component for component in bom["components"]}
    bom["components"] = list(seen.values())
    out.write_text(json.dumps(bom, indent=1, sort_keys=True) + "\n")
    validate(out)
    return 0


def validate(file: Path) -> None:
    """Check it against the schema of its version."""
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    error = JsonStrictValidator(SchemaVersion.V1_6).validate_str(file.read_text())
    if error is not None:
        sys.exit(f"sbom: {file}: {error}")


if __name__ == "__main__":
    sys.exit(main())
