# SPDX-License-Identifier: Apache-2.0
"""``perf script``: samples, equal ones of a thread counted together.

A sample of a CPU clock or counter was taken on a CPU; one of another event says nothing of that.
"""

from __future__ import annotations

import re
from collections import Counter

from stallscope.analyzers.importers.dump import LineReader, line_format, number
from stallscope.model.capture import Frame

__all__ = ["FORMAT"]

_HEAD = re.compile(
    r"(?P<comm>\S.{0,63}?)\s+(?P<pid>\d{1,9})(?:/(?P<tid>\d{1,9}))?\s+(?:\[\d{1,5}\]\s+)?"
    r"(?:(?P<time>\d{1,12}\.\d{1,9}):\s*)?(?:\d{1,18}\s+)?"
    r"(?P<event>[A-Za-z_][\w\-/.,=:]{0,200}?):(?:\s.*)?$"
)
_FRAME = re.compile(
    r"\s+(?P<pc>[0-9a-f]{1,16}) (?P<name>.+?)(?:\+0x(?P<offset>[0-9a-f]{1,16}))?"
    r" \((?P<module>[^()]*(?:\(deleted\))?)\)\s*$"
)
_SOURCE = re.compile(r"\s+(\S+:\d{1,9})\s*$")
_SNIFF = re.compile(r"^[^\S\n]+[0-9a-f]{5,16} \S.{0,4000}? \([^()\n]*\)[^\S\n]*$", re.M)
_ON_CPU = re.compile(r"(?:cpu-clock|task-clock|cycles|instructions|cpu-cycles|ref-cycles)\b")

_Sample = tuple[int, int, str, bool, tuple[Frame, ...], tuple[Frame, ...]]


class _Reader(LineReader):
    backend = "perf"

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.samples: Counter[_Sample] = Counter()
        self.head: re.Match[str] | None = None
        self.user: list[Frame] = []
        self.kernel: list[Frame] = []

    def line(self, line: str) -> bool:
        if self.head is not None and (match := _FRAME.match(line)):
            self.frame(match)
            return True
        if line[:1] not in ("", " ", "\t", "#") and (match := _HEAD.match(line)):
            self.end_sample()
            self.head = match
            return True
        if self.head is None:
            return False
        if not line.strip():
            self.end_sample()
            return True
        if match := _SOURCE.match(line):
            frames = self.user or self.kernel
            if frames:
                last = frames[-1]
                module = last.module.path if last.module else None
                frames[-1] = self.dump.frame(
                    last.symbol,
                    module=module,
                    pc=last.pc,
                    source=match.group(1),
                    symbol_offset=last.symbol_offset,
                    kernel=last.kernel,
                )
            return True
        self.end_sample()
        return False

    def frame(self, match: re.Match[str]) -> None:
        module = match["module"]
        kernel = module.startswith("[kernel") or module.endswith((".ko", ".ko.xz", "vmlinux"))
        kernel = kernel or (module.startswith("[") and module not in ("[unknown]", "[vdso]"))
        pc = int(match["pc"], 16)
        frame = self.dump.frame(
            match["name"],
            module=None if module in ("", "[unknown]", "inlined") else module,
            pc=pc,
            symbol_offset=int(match["offset"], 16) if match["offset"] else None,
            kernel=kernel,
        )
        (self.kernel if kernel and not self.user else self.user).append(frame)

    def end_sample(self) -> None:
        head = self.head
        self.head = None
        if head is not None and (self.user or self.kernel):
            tid = number(head["tid"] or head["pid"])
            # Without -F pid, the one number is the thread's.
            process = self.dump.process(number(head["pid"]), head["comm"]) if head["tid"] else 0
            sample = (
                process,
                tid,
                head["comm"],
                _ON_CPU.match(head["event"]) is not None,
                self.dump.stack(self.user),
                self.dump.stack(self.kernel),
            )
            self.samples[sample] += 1
        self.user, self.kernel = [], []

    def end(self) -> None:
        self.end_sample()
        for (process, tid, comm, on_cpu, user, kernel), count in self.samples.items():
            self.dump.thread(
                user,
                kernel_frames=kernel,
                tid=tid,
                process=process,
                name=comm,
                on_cpu=on_cpu,
                state="R" if on_cpu else "?",
                count=count,
            )
        self.samples.clear()
        super().end()


def sniff(text: str) -> bool:
    """Return whether a frame as perf prints it is in the text."""
    return _SNIFF.search(text) is not None


FORMAT = line_format(sniff, _Reader)
