# SPDX-License-Identifier: Apache-2.0
"""A ClickHouse server of the distribution's, on 127.0.0.1, with a folder of its own."""

from __future__ import annotations

import hashlib
import http.client
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Self

from tests.support.certificates import Certificates
from tests.support.servers.child import Child, program
from tests.support.servers.ports import free_ports

__all__ = ["ClickHouse", "ClickHouseSays", "Ports", "User", "clickhouse_missing"]

HOST = "127.0.0.1"
_CONFIG = """\
<yandex>
<logger><level>warning</level><console>1</console></logger>
<listen_host>127.0.0.1</listen_host>
<http_port>{http}</http_port><tcp_port>{tcp}</tcp_port>
<interserver_http_port>{interserver}</interserver_http_port>
<interserver_http_host>127.0.0.1</interserver_http_host>
<max_connections>4096</max_connections><keep_alive_timeout>3</keep_alive_timeout>
<max_concurrent_queries>200</max_concurrent_queries>
<uncompressed_cache_size>0</uncompressed_cache_size>
<mark_cache_size>268435456</mark_cache_size>
<path>{path}/</path><tmp_path>{path}/tmp/</tmp_path>
<format_schema_path>{path}/format/</format_schema_path>
<users_config>{folder}/users.xml</users_config>
<default_profile>default</default_profile><default_database>default</default_database>
<timezone>{timezone}</timezone>
<mlock_executable>false</mlock_executable>
<merge_tree><max_suspicious_broken_parts>5</max_suspicious_broken_parts></merge_tree>
{more}
</yandex>
"""
_USERS = """\
<yandex>
<profiles>
<default><max_memory_usage>4000000000</max_memory_usage>
<log_queries>0</log_queries><load_balancing>random</load_balancing></default>
{profiles}
</profiles>
<quotas><default/></quotas>
<users>{users}</users>
</yandex>
"""
_TLS = """\
<https_port>{port}</https_port>
<openSSL><server>
<certificateFile>{found.certificate}</certificateFile>
<privateKeyFile>{found.key}</privateKeyFile>
<verificationMode>none</verificationMode><loadDefaultCAFile>false</loadDefaultCAFile>
<cacheSessions>true</cacheSessions><disableProtocols>sslv2,sslv3</disableProtocols>
</server></openSSL>
"""


class ClickHouseSays(Exception):
    """A server refused a statement."""


class Ports(NamedTuple):
    http: int
    tcp: int
    interserver: int
    https: int


class User(NamedTuple):
    """An account. ``settings``: of its profile; ``databases``: those that it may use; () is all."""

    name: str = "default"
    password: str = ""
    settings: Mapping[str, int] = {}
    databases: Sequence[str] = ()


def clickhouse_missing() -> str | None:
    """Return why none can be started here, or None."""
    found = program("clickhouse-server")
    return None if found else "no clickhouse-server here: run scripts/setup --fleet"


class ClickHouse:
    """One server. As a context manager it runs from its start to its end.

    ``data``: where its tables are, if not in ``folder``. ``more``: elements of its configuration.
    """

    def __init__(
        self,
        folder: Path,
        *,
        ports: Ports | None = None,
        users: Sequence[User] = (User(),),
        tls: Certificates | None = None,
        data: Path | None = None,
        timezone: str = "UTC",
        more: str = "",
    ) -> None:
        self.folder = folder
        self.data = data or folder / "data"
        self.ports = ports or Ports(*free_ports(4))
        self._users = users
        self._tls = tls
        self._timezone = timezone
        self._more = more
        self._child: Child | None = None

    @property
    def host(self) -> str:
        """Return host and port, as in addresses."""
        return f"{HOST}:{self.ports.http}"

    @property
    def url(self) -> str:
        """Return its address."""
        return f"clickhouse+http://default@{self.host}/stallscope"

    @property
    def pid(self) -> int:
        """Return the pid of a server that runs."""
        assert self._child is not None
        return self._child.pid

    def __enter__(self) -> Self:
        self.launch()
        self.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def launch(self) -> None:
        """Start it, and do not wait."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.data.mkdir(exist_ok=True)
        (self.folder / "users.xml").write_text(self._accounts())
        more = self._more
        if self._tls is not None:
            more += _TLS.format(port=self.ports.https, found=self._tls)
        config = self.folder / "config.xml"
        config.write_text(
            _CONFIG.format(
                **self.ports._asdict(),
                path=self.data,
                folder=self.folder,
                timezone=self._timezone,
                more=more,
            )
        )
        command = program("clickhouse-server")
        assert command is not None
        self._child = Child(
            [command, f"--config-file={config}"], self.folder / "log", cwd=self.folder
        )

    def wait(self) -> None:
        """Wait until it answers."""
        assert self._child is not None
        self._child.wait_until(self._answers, f"ClickHouse at {self.host} answers")

    def kill(self) -> None:
        """End it by SIGKILL, and wait until it is gone; does nothing where it does not run."""
        if self._child is not None:
            self._child.end()
            self._child = None

    def restart(self) -> None:
        """Start it on its data, and wait until it answers."""
        self.kill()
        self.launch()
        self.wait()

    def log(self) -> str:
        """Return the end of its log."""
        return "" if self._child is None else self._child.tail()

    def query(self, sql: str, database: str = "default", seconds: float = 120.0) -> str:
        """Return what it answers to the user ``default``. Raises: ClickHouseSays, OSError."""
        connection = http.client.HTTPConnection(HOST, self.ports.http, timeout=seconds)
        try:
            password = next((one.password for one in self._users if one.name == "default"), "")
            headers = {"X-ClickHouse-User": "default", "X-ClickHouse-Key": password}
            connection.request("POST", f"/?database={database}", sql.encode(), headers)
            answer = connection.getresponse()
            said = answer.read().decode(errors="replace")
        finally:
            connection.close()
        if answer.status != 200:
            raise ClickHouseSays(said.strip())
        return said.rstrip("\n")

    def _answers(self) -> bool:
        with suppress(OSError, http.client.HTTPException, ClickHouseSays):
            return self.query("SELECT 1", seconds=5) == "1"
        return False

    def _accounts(self) -> str:
        profiles, users = "", ""
        for user in self._users:
            profile = "default"
            if user.settings:
                profile = f"of_{user.name}"
                inside = "".join(f"<{key}>{value}</{key}>" for key, value in user.settings.items())
                profiles += f"<{profile}>{inside}</{profile}>\n"
            digest = hashlib.sha256(user.password.encode()).hexdigest()
            secret = (
                f"<password_sha256_hex>{digest}</password_sha256_hex>"
                if user.password
                else "<password></password>"
            )
            allowed = "".join(f"<database>{name}</database>" for name in user.databases)
            if allowed:
                allowed = f"<allow_databases>{allowed}</allow_databases>"
            users += (
                f"<{user.name}>{secret}<networks><ip>127.0.0.1</ip></networks>"
                f"<profile>{profile}</profile><quota>default</quota>{allowed}</{user.name}>\n"
            )
        return _USERS.format(profiles=profiles, users=users)
