# SPDX-License-Identifier: Apache-2.0
"""Where --listen may listen."""

from __future__ import annotations

import pytest

from stallscope.agent.http.address import Address, parse
from stallscope.base.errors import Exit
from stallscope.main import main


@pytest.mark.parametrize(
    ("text", "address", "local"),
    [
        ("127.0.0.1:9876", Address("127.0.0.1", 9876), True),
        ("localhost:9876", Address("127.0.0.1", 9876), True),
        ("9876", Address("127.0.0.1", 9876), True),
        ("127.0.0.1:0", Address("127.0.0.1", 0), True),
        ("[::1]:9876", Address("::1", 9876), True),
        ("0.0.0.0:80", Address("0.0.0.0", 80), False),
        ("[::]:9876", Address("::", 9876), False),
        ("10.1.2.3:9876", Address("10.1.2.3", 9876), False),
        ("unix:/run/stallscope/http", Address(path="/run/stallscope/http"), True),
    ],
)
def test_addresses(text: str, address: Address, local: bool) -> None:
    assert parse(text) == address
    assert parse(text).is_local is local
    assert parse(str(parse(text))) == address


@pytest.mark.parametrize(
    "text",
    [
        *("", ":", ":9876", "127.0.0.1", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:65536"),
        *("::1:9876", "[::1]", "[127.0.0.1]:1", "[]:1", "example.com:80", "a b:1", "*:1"),
        *("unix:", "unix:relative", "unix:/" + "x" * 107, "http://127.0.0.1:1", "127.0.0.1:-1"),
        *("127.0.0.1:\u0661", " 127.0.0.1:1", "127.0.0.1:1\n"),
    ],
)
def test_what_is_no_address_is_refused(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError):
        parse(text)
    assert main(["watch", "-p", "1", "--listen", text]) == Exit.USAGE
    err = capsys.readouterr().err
    assert "--listen" in err
    assert err.count("\n") == 1
