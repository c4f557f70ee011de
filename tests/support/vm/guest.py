# SPDX-License-Identifier: Apache-2.0
"""Boot another kernel around this machine's own file system, and run tests there.

The guest sees the host's root read-only, with overlays in memory where programs must write; what it
gives back is files in one shared folder. Its processors are emulated one after the other
(``thread=single``): code that the kernel patches while other CPUs run it has crashed guests whose
CPUs were threads of QEMU. No figure of performance comes from there.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.support.vm.kernels import Kernel

__all__ = ["VARIANTS", "GuestError", "Variant", "boot", "missing"]

CHECKOUT = Path(__file__).resolve().parents[3]
BIN = CHECKOUT / ".venv" / "bin"
SHARED = "/run/stallscope-guest"
KERNEL = "/run/stallscope-kernel"
CACHED = (
    *("-fsdev", "local,id=cached,path=/,security_model=none,readonly=on,multidevs=remap"),
    *("-device", "virtio-9p-pci,fsdev=cached,mount_tag=cached"),
)
"""The host's root once more, for folders whose files the guest may keep in its memory."""
BOOTS = 3
"""An emulated kernel that crashes before its first command is booted again so often."""


class GuestError(Exception):
    """The guest did not boot, or ended without an answer."""


@dataclass(frozen=True)
class Variant:
    """How a kernel is booted."""

    name: str
    append: tuple[str, ...] = ()
    """Of the kernel's command line."""
    cpus: int = 2
    memory: str = "3G"
    setup: tuple[str, ...] = ()
    """Commands that root runs in the guest before all else."""


VARIANTS = {
    variant.name: variant
    for variant in (
        Variant("plain"),
        Variant("preempt", ("preempt=full",)),
        Variant("integrity", ("lockdown=integrity",)),
        Variant("confidentiality", ("lockdown=confidentiality",)),
        Variant("cpus8", cpus=8),
        Variant("possible64", ("possible_cpus=64",)),
        Variant("nohz", ("nohz_full=1",)),
        Variant("yama1", setup=("sysctl -q -w kernel.yama.ptrace_scope=1",)),
        Variant("yama2", setup=("sysctl -q -w kernel.yama.ptrace_scope=2",)),
        Variant("yama3", setup=("sysctl -q -w kernel.yama.ptrace_scope=3",)),
        Variant("nobtf", setup=("mount -t tmpfs none /sys/kernel/btf",)),
    )
}

INSIDE = """\
#!/bin/sh
# What a guest runs. The shared folder is where its arguments say.
shared=$1
uname -r >"$shared/started"
# For file systems that can be frozen, or whose server can.
modprobe -d {modules} -a loop ext4 fuse nfsv4 nfsd
# What a Python starts from, cached: with the root as it is, each import asks the host again.
mkdir /run/cached
mount -t 9p -o ro,trans=virtio,version=9p2000.L,msize=524288,cache=loose cached /run/cached
for folder in {cached}; do
	mount --bind "/run/cached$folder" "$folder"
done
mountpoint -q /sys/kernel/tracing || mount -t tracefs none /sys/kernel/tracing
mountpoint -q /sys/kernel/security || mount -t securityfs none /sys/kernel/security
{setup}
cd {checkout} || exit 1
ulimit -n 65536
{command} >"$shared/output" 2>&1
echo $? >"$shared/exit"
"""


def missing() -> str | None:
    """Return why no guest can be booted here, or None."""
    for program in ("qemu-system-x86_64", "modprobe", "busybox"):
        if not shutil.which(program):
            return f"no {program} here: run scripts/setup --kernels"
    return None if (BIN / "vng").exists() else "no virtme-ng here: run scripts/setup --kernels"


def argv_of(kernel: Kernel, variant: Variant, shared: Path) -> list[str]:
    # It computes all the time, and what runs at the same time has deadlines.
    argv = [
        "nice",
        "-n",
        "10",
        str(BIN / "vng"),
        "--run",
        str(kernel.image),
        "--verbose",
        "--disable-kvm",
    ]
    argv += [f"--qemu-opts={word}" for word in CACHED]
    argv += ["--force-9p", "--cpus", str(variant.cpus), "--memory", variant.memory]
    argv += ["--qemu-opts=-accel", "--qemu-opts=tcg,thread=single"]
    if "possible_cpus=64" in variant.append:
        argv += ["--qemu-opts=-smp", f"--qemu-opts={variant.cpus},maxcpus=64"]
    for option in variant.append:
        argv += ["--append", option]
    argv += ["--rodir", f"{KERNEL}={kernel.image.parents[1]}"]
    argv += ["--rwdir", f"{SHARED}={shared}", "--", f"sh {SHARED}/inside {SHARED}"]
    return argv


def boot(
    kernel: Kernel, variant: Variant, command: list[str], shared: Path, seconds: float
) -> tuple[int, str]:
    """Run a command in a guest; return its exit code and what it printed.

    ``shared`` is a folder, empty but for what the command needs, that the guest sees as SHARED.
    Raises GuestError where the guest gives no exit code within ``seconds``.
    """
    script = INSIDE.format(
        setup="\n".join(variant.setup),
        modules=KERNEL,
        checkout=CHECKOUT,
        cached=shlex.join({str(CHECKOUT), str(BIN.parent.resolve()), sys.base_prefix}),
        command=shlex.join(command),
    )
    (shared / "inside").write_text(script)
    environment = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}:/usr/sbin:/sbin"}
    for _ in range(BOOTS):
        with (shared / "console").open("wb") as console:
            process = subprocess.Popen(
                argv_of(kernel, variant, shared),
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )
            try:
                process.wait(seconds)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, 9)
                process.wait()
                raise GuestError(
                    f"{kernel.release}, {variant.name}: not done in {seconds:g} s"
                    f"{tail(shared / 'output')}"
                ) from None
        if (shared / "exit").exists():
            return int((shared / "exit").read_text()), (shared / "output").read_text(
                errors="replace"
            )
        if (shared / "started").exists():
            break
        print(f"{kernel.release}, {variant.name}: crashed while it booted; again", file=sys.stderr)
    raise GuestError(
        f"{kernel.release}, {variant.name}: ended without an answer"
        f"{tail(shared / 'output')}{tail(shared / 'console')}"
    )


def tail(path: Path, size: int = 3000) -> str:
    """Return the end of a file, on lines of its own."""
    try:
        return f"\n--- {path.name}\n{path.read_text(errors='replace')[-size:]}"
    except OSError:
        return ""
