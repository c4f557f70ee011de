# SPDX-License-Identifier: Apache-2.0
"""Names of functions as people and patterns know them.

One function prints under many names: with arguments, with the compiler's ``.part.0``, as
``__GI___poll``. `normalize` maps them to one; it is linear in the length of the name.
"""

from __future__ import annotations

import re
from functools import lru_cache

from stallscope.analyzers import mangled
from stallscope.model.capture import Frame

__all__ = ["MAX_NAME", "bare", "display", "is_libc", "normalize"]

MAX_NAME = 4096
"""Longer names are cut: nothing real is, and the symbol tables of a target are not trusted."""

_PLAIN = re.compile(r"[A-Za-z0-9$][A-Za-z0-9_$:~]*", re.ASCII)
_TOKEN = re.compile(
    r"operator\b|\(anonymous namespace\)|->|::|[<>()\[\]{}@. ,]|[A-Za-z0-9_$~]+|.", re.DOTALL
)
_OPERATOR = re.compile(
    r"\s*(?:\(\)|\[\]|->\*|->|<=>|<<=|>>=|<<|>>|<=|>=|<|>"
    r"|(?:new|delete)\b(?:\[\])?|\"\"\s*\w+|[-+*/%^&|~!=,]+|)"
)
_SUFFIX = re.compile(
    r"\.(?:part|constprop|isra|cold|clone|lto_priv|llvm|localalias|ipa|ifunc|actor|destroy|resume"
    r"|\d+)(?:[.\d]|$)"
)
_THUNK = re.compile(r"(?:non-virtual|virtual|covariant return) thunk to ")
_AFTER_ARGUMENTS = re.compile(r"(?: const| volatile| &&?| noexcept)*::")

# glibc gives one entry point several names, and a debugger takes any of them.
_LIBC = frozenset(
    re.findall(
        r"\S+",
        "accept accept4 calloc clock_nanosleep clone clone3 close connect copy_file_range "
        "dl_iterate_phdr dup2 epoll_pwait epoll_pwait2 epoll_wait fallocate fallocate64 fcntl "
        "fcntl64 fdatasync flock free fsync ftruncate ftruncate64 futex futimens getrandom "
        "inotify_add_watch io_getevents io_pgetevents ioctl localtime_r lockf lockf64 lseek "
        "madvise malloc mmap mmap64 mprotect mq_timedreceive mremap msgrcv msgsnd msync munmap "
        "nanosleep open open64 openat pause poll posix_fallocate posix_fallocate64 ppoll pread "
        "pread64 preadv preadv2 preadv64 pselect pselect6 pwrite pwrite64 pwritev pwritev2 "
        "pwritev64 read readv realloc recv recvfrom recvmmsg recvmsg rename renameat renameat2 "
        "rt_sigtimedwait sched_yield select sem_clockwait sem_timedwait sem_wait semop "
        "semtimedop send sendfile sendfile64 sendmmsg sendmsg sendto sigpause sigsuspend "
        "sigtimedwait sigwait sigwaitinfo sleep start_thread statx sync_file_range syncfs "
        "syscall truncate truncate64 tz_convert unlink unlinkat usleep vfork wait3 wait4 "
        "waitid waitpid write writev",
    )
)
_LIBC_OTHER = {
    "__clock_nanosleep_2": "clock_nanosleep",
    "__io_getevents_0_4": "io_getevents",
    "__new_sem_wait": "sem_wait",
    "__old_sem_wait": "sem_wait",
}
_LIBC_PREFIX = re.compile(r"__(?:GI_)?_{0,2}(?:libc_)?")


def _libc(name: str) -> str:
    """Return the public name of one of libc's entry points, or the name itself."""
    if name in _LIBC_OTHER:
        return _LIBC_OTHER[name]
    if name.startswith("__GI_"):
        name = name[5:]
    if name.startswith(("___pthread_", "__pthread_")):
        name = name.lstrip("_")
        return name[:-2] if name.endswith("wait64") else name  # 64-bit time, on all hosts now
    short = name.removesuffix("_nocancel")
    match = _LIBC_PREFIX.match(short)
    if match is not None:
        short = short[match.end() :]
    if short not in _LIBC:  # 64-bit time where long has 32 bits
        short = short.removesuffix("64").removesuffix("_time")
    return short if short in _LIBC else name


def _cpp(symbol: str) -> str:
    """Cut return type, arguments, qualifiers and clone suffixes off a demangled name."""
    out: list[str] = []
    angle = 0
    position = 0
    length = len(symbol)
    start = 0  # in `out`: after the return type
    while position < length:
        match = _TOKEN.match(symbol, position)
        assert match is not None
        piece = match.group()
        end = match.end()
        if piece == "operator" and (not out or not out[-1][-1:].isalnum()):
            operator = _OPERATOR.match(symbol, end)
            assert operator is not None
            text = operator.group()
            out.append(piece + text)
            end += len(text)
            if not text.strip():  # a conversion, `operator bool`: all up to the arguments
                stop = symbol.find("(", end)
                out.append(symbol[end : stop if stop >= 0 else length])
                end = stop if stop >= 0 else length
        elif piece == "<":
            angle += 1
            out.append(piece)
        elif piece == ">":
            angle = max(0, angle - 1)
            if out and out[-1] == " ":
                out.pop()
            out.append(piece)
        elif angle:
            if not (piece == " " and out[-1] in (",", "<")):
                out.append(piece)
        elif piece == "(":
            end = _close(symbol, position)
            if not out or out[-1] != "decltype":
                local = _AFTER_ARGUMENTS.match(symbol, end)
                if local is None:
                    break
                out.append("::")
                end = local.end()
        elif piece == "{":
            stop = _close_brace(symbol, position)
            out.append(_local_name(symbol[position:stop]))
            end = stop
        elif piece == "[":
            if out and out[-1] == " ":
                break
            stop = symbol.find("]", end)
            if stop < 0:
                break
            end = stop + 1
        elif piece == "@":
            break
        elif piece == " ":
            if symbol.startswith("[", end):
                break
            if symbol.startswith("<", end) and out and "operator" in out[-1]:
                position = end  # `operator<< <int>`: arguments of the template, no return type
                continue
            out.append(piece)
            start = len(out)
        elif piece == "." and _SUFFIX.match(symbol, position) and len(out) > start:
            break
        else:
            out.append(piece)
        position = end
    if start == len(out) and start:  # a trailing blank is no return type
        return "".join(out).strip()
    return "".join(out[start:])


def _close(symbol: str, position: int) -> int:
    """Return the index after the parenthesis that closes the one at ``position``."""
    depth = 0
    for index in range(position, len(symbol)):
        char = symbol[index]
        if char == "(":
            depth += 1
        elif char == ")":
            depth -= 1
            if depth == 0:
                return index + 1
    return len(symbol)


def _close_brace(symbol: str, position: int) -> int:
    stop = symbol.find("}", position)
    return len(symbol) if stop < 0 else stop + 1


def _local_name(text: str) -> str:
    """Shorten ``{lambda(int)#1}`` to ``{lambda#1}``."""
    head, _, rest = text.partition("(")
    number = rest.rpartition("#")[2]
    return f"{head}#{number}" if rest and number.endswith("}") else text


@lru_cache(maxsize=65536)
def normalize(symbol: str) -> str:
    """Return the function's plain name: namespaces and templates kept, all else cut off."""
    if symbol.startswith(("_Z", "__Z")):
        return mangled.plain(symbol) or symbol
    if _PLAIN.fullmatch(symbol):
        name = symbol
    else:
        symbol = symbol[:MAX_NAME].strip()
        if symbol.startswith("<") and symbol.endswith("called>"):
            return symbol
        symbol = _THUNK.sub("", symbol)
        name = _cpp(symbol) or symbol
    return _libc(name) if name.startswith("_") or name.endswith("_nocancel") else name


def is_libc(name: str) -> bool:
    """Return whether a normalized name is that of one of libc's entry points."""
    return name in _LIBC


@lru_cache(maxsize=65536)
def bare(name: str) -> str:
    """Return a normalized name without its template arguments."""
    if "<" not in name or name.startswith("<"):
        return name
    out: list[str] = []
    depth = 0
    for index, char in enumerate(name):
        if char == "<" and not name.endswith(("operator", "operator<"), 0, index):
            depth += 1
        elif char == ">" and depth:
            depth -= 1
        elif not depth:
            out.append(char)
    return "".join(out) or name


def display(frame: Frame) -> str:
    """Return what people read for a frame: its plain name, else module and offset."""
    return normalize(frame.symbol) if frame.symbol else str(frame)
