# SPDX-License-Identifier: Apache-2.0
"""One function, one name: whatever compiler, debugger and libc made of it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stallscope.analyzers.names import MAX_NAME, bare, display, normalize
from stallscope.model.capture import Frame, Module
from tests.unit.costs import cpu_seconds


@pytest.mark.parametrize(
    ("symbol", "name"),
    [
        ("foo", "foo"),
        ("__libc_pause", "pause"),
        ("__new_sem_wait@@GLIBC_2.34", "sem_wait"),
        ("__io_getevents_0_4", "io_getevents"),
        ("std::ostream& std::operator<< <char>(std::ostream&, char)", "std::operator<<<char>"),
        ("virtual thunk to A::run()", "A::run"),
        ("foo(int, char*)", "foo"),
        ("foo.part.0", "foo"),
        ("foo.constprop.12.isra.3", "foo"),
        ("foo.cold", "foo"),
        ("btr_cur_latch_leaves.clone.24", "btr_cur_latch_leaves"),
        ("foo(int) [clone .isra.0]", "foo"),
        ("foo.lto_priv.1", "foo"),
        ("main.main", "main.main"),
        ("main.partial", "main.partial"),
        ("fopen@plt", "fopen"),
        ("pthread_cond_wait@@GLIBC_2.3.2", "pthread_cond_wait"),
        ("__GI___poll", "poll"),
        ("__poll", "poll"),
        ("___pthread_mutex_lock", "pthread_mutex_lock"),
        ("__GI___pthread_mutex_lock", "pthread_mutex_lock"),
        ("__pthread_cond_wait_common", "pthread_cond_wait_common"),
        ("___pthread_cond_timedwait64", "pthread_cond_timedwait"),
        ("__select_nocancel", "select"),
        ("__libc_read", "read"),
        ("__GI___libc_pread64", "pread64"),
        ("__lll_lock_wait", "__lll_lock_wait"),
        ("_L_lock_1022", "_L_lock_1022"),
        ("__pthread_clockjoin_ex", "pthread_clockjoin_ex"),
        ("___pthread_cond_clockwait64", "pthread_cond_clockwait"),
        ("___sem_clockwait64", "sem_clockwait"),
        ("__GI___clock_nanosleep_time64", "clock_nanosleep"),
        ("__clock_nanosleep_2", "clock_nanosleep"),
        ("__select64", "select"),
        ("__pread64", "pread64"),
        ("__sched_yield", "sched_yield"),
        ("__waitpid_nocancel", "waitpid"),
        ("__tz_convert", "tz_convert"),
        (
            "sux_lock<ssux_lock>::x_lock(char const*, unsigned int) [clone .constprop.233]",
            "sux_lock<ssux_lock>::x_lock",
        ),
        (
            "PolicyMutex<TTASEventMutex<GenericPolicy> >::enter(int)",
            "PolicyMutex<TTASEventMutex<GenericPolicy>>::enter",
        ),
        ("void std::f<int, long>(int)", "std::f<int,long>"),
        ("(anonymous namespace)::foo(int)", "(anonymous namespace)::foo"),
        ("Foo::operator()(int) const", "Foo::operator()"),
        ("Foo::operator bool() const", "Foo::operator bool"),
        ("bool operator==<int>(int)", "operator==<int>"),
        ("operator new(unsigned long)", "operator new"),
        ("std::ostream::operator<<(int)", "std::ostream::operator<<"),
        ("A::operator->() const", "A::operator->"),
        ("f(int)::{lambda(int)#1}::operator()(int) const", "f::{lambda#1}::operator()"),
        ("std::basic_string[abi:cxx11]::f[abi:cxx11](int)", "std::basic_string::f"),
        ("f<(Policy)2>::g(void (*)(int))", "f<(Policy)2>::g"),
        ("decltype(auto) foo<int>(int)", "foo<int>"),
        ("non-virtual thunk to A::f(int)", "A::f"),
        ("<signal handler called>", "<signal handler called>"),
        ("read(libpthread.so.0)", "read"),
        ("", ""),
    ],
)
def test_normalize(symbol: str, name: str) -> None:
    assert normalize(symbol) == name


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("foo", "foo"),
        ("PolicyMutex<A<B>>::enter", "PolicyMutex::enter"),
        ("A::operator<<", "A::operator<<"),
        ("operator==<int>", "operator=="),
        ("<signal handler called>", "<signal handler called>"),
    ],
)
def test_bare(name: str, short: str) -> None:
    assert bare(name) == short


def test_normalizing_twice_changes_nothing_more() -> None:
    for symbol in ("__GI___pthread_mutex_lock", "void f<A<B> >(int) [clone .part.0]", "a.part.0"):
        assert normalize(normalize(symbol)) == normalize(symbol)


def test_display_of_what_has_no_name() -> None:
    module = Module(process=0, path="/usr/sbin/mariadbd")
    assert display(Frame(symbol=None, module=module, pc=9, offset=0x7AB)) == "mariadbd+0x7ab"
    assert display(Frame(symbol=None, pc=0x10)) == "0x10"
    assert display(Frame(symbol="f(int)")) == "f"


HOSTILE = st.text(alphabet="<>(){}[]:@.,~&* \"'operator_ab0", max_size=400) | st.text(max_size=200)


@settings(max_examples=500)
@given(HOSTILE)
def test_no_text_is_too_strange(symbol: str) -> None:
    name = normalize(symbol)
    assert len(name) <= max(len(symbol) + 8, MAX_NAME)
    assert isinstance(bare(name), str)


@pytest.mark.parametrize(
    "unit",
    [
        "(",
        "<",
        "operator",
        "operator (",
        "a(b)::",
        "{",
        "()",
        " [",
        ".",
        ".part.0",
        "a<b>::",
        "@",
        "(anonymous namespace)",
        "decltype(",
        "a ",
        "[abi:",
        "::",
        "operator<",
    ],
)
def test_time_grows_with_length_alone(unit: str) -> None:
    """A name of any length costs no more than its first MAX_NAME characters, far below a second."""
    symbol = unit * (1_000_000 // len(unit))

    def read() -> None:
        for function in (normalize, bare):
            function.cache_clear()
        bare(normalize(symbol))
        bare(symbol[:200_000])

    assert cpu_seconds(read, 2.0) < 2.0
