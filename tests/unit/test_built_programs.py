# SPDX-License-Identifier: Apache-2.0
"""What the compiler has made: hardened programs, of which one alone can write to a process."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.support.hardening import unprotected_objects, weaknesses
from tests.unit.test_c_walls import BUILD, FOLDERS, ROOT

__all__: list[str] = []

PROBE, POKE = BUILD / "pmp/stallscope-probe", BUILD / "pmp/stallscope-poke"
LIBRARY = BUILD / "inproc/libstallscope.so"

WRITERS = (
    r"process_vm_writev",
    r"pidfd_getfd",
    r"PTRACE_(?!SEIZE|INTERRUPT|GETREGSET|DETACH|EVENT_STOP)\w+",
    r"bpf_probe_write_user",
    r"\bopen(?:at)?(?:2)?\([^;]*\bmem\"(?![^;]*\bO_RDONLY\b)[^;]*;",
)
"""In sources: system calls, requests and files by which another process is changed."""

ALLOWED_REQUESTS = {0x4206, 0x4207, 0x4204, 17}
"""include/uapi/linux/ptrace.h: SEIZE, INTERRUPT, GETREGSET, DETACH."""
WRITING_CALLS = {311: "process_vm_writev", 438: "pidfd_getfd"}
"""arch/x86/entry/syscalls/syscall_64.tbl"""

built = pytest.mark.skipif(not BUILD.is_dir(), reason="no build")


def code(program: Path) -> str:
    return subprocess.run(
        ["objdump", "-d", "--no-show-raw-insn", program], capture_output=True, text=True, check=True
    ).stdout


def calls_by_number(text: str) -> set[int]:
    """Return the numbers that are ready for syscall(2) or the instruction, of those that write."""
    numbers = {int(one, 16) for one in re.findall(r"\bmov +\$0x(\w+),%e(?:ax|di)\b", text)}
    return numbers & WRITING_CALLS.keys()


def ptrace_requests(text: str) -> list[int]:
    """Return the first argument of each call of ptrace(2); -1: not a constant."""
    found, last = [], -1
    for line in text.splitlines():
        if re.search(r",%(?:e|r)?di(?:l)?\b", line):
            constant = re.search(r"\bmov +\$0x(\w+),%edi\b", line)
            last = int(constant[1], 16) if constant else -1
        elif re.search(r"\b(?:call|jmp) +[0-9a-f]+ <ptrace\W", line):
            found.append(last)
    return found


def imports(program: Path) -> set[str]:
    listed = subprocess.run(
        ["nm", "-D", "-u", "-P", program], capture_output=True, text=True, check=True
    ).stdout
    return {line.split("@")[0].split()[0] for line in listed.splitlines()}


def sources() -> list[Path]:
    folders = (ROOT / "pmp", ROOT / "ebpf", ROOT / "inproc")
    return [path for folder in folders for path in sorted(folder.rglob("*.[ch]"))]


def test_no_source_but_those_of_poke_writes_to_a_process() -> None:
    seen = {
        path.parent.name
        for path in sources()
        for word in WRITERS
        if re.search(word, path.read_text())
    }
    assert seen == {"poke"}


@built
def test_the_probe_cannot_write_to_a_process() -> None:
    text = code(PROBE)
    assert calls_by_number(text) == set()
    requests = ptrace_requests(text)
    assert set(requests) == ALLOWED_REQUESTS
    assert imports(PROBE) & set(WRITING_CALLS.values()) == set()
    assert {"ptrace", "process_vm_readv"} <= imports(PROBE)
    # The same look at the one that can, which traces nothing.
    assert calls_by_number(code(POKE)) == {438}
    assert "pwrite64" in imports(POKE)
    assert "ptrace" not in imports(POKE)


@built
@pytest.mark.parametrize("path", [PROBE, POKE, LIBRARY], ids=lambda path: path.name)
def test_all_is_hardened(path: Path) -> None:
    # The library is loaded into servers that have fortified functions of their own.
    assert weaknesses(path, fortified=path != LIBRARY) == []


@built
@pytest.mark.parametrize("name", FOLDERS)
def test_all_objects_are_hardened(name: str) -> None:
    assert unprotected_objects(BUILD / f"lib{name}.a") == []


@built
def test_what_is_not_hardened_is_seen(tmp_path: Path) -> None:
    source = tmp_path / "weak.c"
    source.write_text("int main(void) { return 0; }\n")
    weak = tmp_path / "weak"
    plain = ("-no-pie", "-fno-stack-protector", "-fcf-protection=none", "-U_FORTIFY_SOURCE")
    links = "-Wl,-z,norelro,-z,lazy,-z,execstack,-rpath,/tmp"
    subprocess.run(["cc", *plain, links, source, "-o", weak], check=True, stderr=subprocess.DEVNULL)
    assert set(weaknesses(weak)) == {
        "position independent",
        "RELRO",
        "bound at its start",
        "stack without code",
        "no paths of libraries",
        "stack protector",
        "fortified functions",
    }
    subprocess.run(["cc", *plain, "-c", source, "-o", tmp_path / "weak.o"], check=True)
    archive = tmp_path / "libweak.a"
    subprocess.run(["ar", "rcs", archive, tmp_path / "weak.o"], check=True)
    assert unprotected_objects(archive) == ["weak.o"]
