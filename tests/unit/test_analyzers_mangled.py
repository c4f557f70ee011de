# SPDX-License-Identifier: Apache-2.0
"""Mangled symbols become the name that tools which demangle print."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from stallscope.analyzers import mangled
from stallscope.analyzers.names import bare, normalize

BUILD = Path(__file__).resolve().parents[2] / "build" / "tests" / "targets" / "target-cxx"
LIBRARIES = [BUILD, *Path("/usr/lib/x86_64-linux-gnu").glob("libstdc++.so.6")]


@pytest.mark.parametrize(
    ("symbol", "name"),
    [
        ("_Z26handle_connections_socketsv", "handle_connections_sockets"),
        ("_ZN5tpool19thread_pool_generic8get_taskEPNS_11worker_dataEPPNS_4taskE",
         "tpool::thread_pool_generic::get_task"),
        ("_ZNK5stall6HolderINSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEELi7EE4waitERKSt3mapI"
         "S6_St6vectorIiSaIiEESt4lessIS6_ESaISt4pairIKS6_SB_EEE", "stall::Holder::wait"),
        ("_ZN12_GLOBAL__N_110shape_mainEPv", "(anonymous namespace)::shape_main"),
        ("_ZZN5stall9in_lambdaEvENKUllE_clEl", "stall::in_lambda::{lambda#1}::operator()"),
        ("_ZN5stallplERKNS_5GuardEi", "stall::operator+"),
        ("_ZN5stall5GuardD2Ev", "stall::Guard::~Guard"),
        ("_ZN5stall5GuardC1Ei", "stall::Guard::Guard"),
        ("_ZN5stall6caughtEv.cold", "stall::caught"),
        ("_ZL13static_workerPv.part.0", "static_worker"),
        ("_ZThn16_N5stall5Guard3runEv", "stall::Guard::run"),
        ("_ZNSs4backEv", "std::basic_string::back"),
        ("_ZN3FooC1B5cxx11Ev", "Foo::Foo"),
        ("_ZNKSo6sentrycvbEv", "std::basic_ostream::sentry::operator bool"),
        ("_ZNK5stall5GuardcvPKcEv", "stall::Guard::operator char const*"),
        ("_ZNK5stall5GuardcvN5stall4LockEEv", "stall::Guard::operator stall::Lock"),
        ("_Z", "_Z"),
        ("_ZN5stall", "_ZN5stall"),
        ("_ZN999999xE", "_ZN999999xE"),
        ("_Z" + "N" * 3000, "_Z" + "N" * 3000),
        ("_ZN1aI" * 500, "_ZN1aI" * 500),
    ],
)  # fmt: skip
def test_names(symbol: str, name: str) -> None:
    assert normalize(symbol) == name


@pytest.mark.skipif(
    shutil.which("c++filt") is None or shutil.which("nm") is None, reason="no binutils here"
)
@pytest.mark.parametrize("library", LIBRARIES, ids=lambda path: path.name)
def test_like_the_demangler_of_binutils(library: Path) -> None:
    if not library.exists():
        pytest.skip(f"{library} is not here: build it")
    listed = subprocess.run(
        ["nm", "-D", "--defined-only", str(library)], capture_output=True, text=True, check=True
    ).stdout
    words = (line.split()[-1].partition("@")[0] for line in listed.splitlines())
    # Tables, guards and clones for transactions are no frames of a stack.
    skipped = ("_ZTV", "_ZTI", "_ZTS", "_ZTT", "_ZTC", "_ZTH", "_ZTW", "_ZGV", "_ZGT", "_ZGR")
    symbols = sorted({word for word in words if word[:2] == "_Z" and word[:4] not in skipped})
    assert symbols
    demangled = subprocess.run(
        ["c++filt"], input="\n".join(symbols), capture_output=True, text=True, check=True
    ).stdout.split("\n")
    wrong = [
        (symbol, whole)
        for symbol, whole in zip(symbols, demangled, strict=False)
        if mangled.plain(symbol) != bare(normalize(whole))
    ]
    assert len(wrong) <= len(symbols) // 1000, wrong
