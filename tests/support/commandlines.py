# SPDX-License-Identifier: Apache-2.0
"""Command lines with secrets, and what is shown of others."""

from __future__ import annotations

__all__ = ["HARMLESS", "MARK", "SECRETS"]

MARK = "S3CR3T"
_ONE = f"""
    --password={MARK} -p{MARK} --passwd={MARK} --wsrep_sst_auth=user:{MARK} PGPASSWORD={MARK}
    --loose-wsrep-sst-auth=u:{MARK} --report-password={MARK} --ssl-key=/x/{MARK} {MARK} {MARK}==
    postgresql://u:{MARK}@h/db --user=u:{MARK} --keyring_hashicorp_auth_token={MARK}
    --api-key={MARK} --dsn=mysql://u:{MARK}@h/ --file-key-management-filekey={MARK}
    --hashicorp-key-management-token={MARK} --aws-access-key={MARK} --pwd={MARK} --rpl-pw={MARK}
    --auth={MARK} --PASSWORD={MARK} -D{MARK} -Xa={MARK} --bind-address=u:{MARK} /home/{MARK}
    --{MARK}! -:{MARK} --port=1?{MARK} _A={MARK} --data={MARK} {MARK}/x --=x{MARK}
"""
SECRETS: tuple[tuple[str, ...], ...] = (
    *((argument,) for argument in _ONE.split()),
    ("-p", MARK),
    ("--pass", MARK),
    ("--master-password", MARK),
    ("--requirepass", MARK),
    ("--masterauth", MARK),
    (f"host=h password={MARK}",),
    ("-e", f"SET PASSWORD='{MARK}'"),
    (f'--init-connect=SET @x="{MARK}"',),
    ("-u", f"user:{MARK}"),
    ("--user", f"user:{MARK}"),
    ("--token", MARK),
    ("--secret", MARK),
    ("-H", f"Authorization: Bearer {MARK}"),
    ("--passphrase", MARK),
    ("--credential", MARK),
    ("--init-file=/x", f"--PASSWORD={MARK}"),
    ("-c", f"primary_conninfo=password={MARK}"),
    ("-c", MARK),
    ("--port", "--password", MARK),
    (f"--socket=/a b{MARK}",),
    (f"--datadir=\n{MARK}é",),
)
HARMLESS: dict[tuple[str, ...], tuple[str, ...]] = {
    (): (),
    ("/usr/sbin/mysqld", "--datadir=/var/lib/my-sql", "--PORT=3306", "--loose_Server_Id=5"): (
        *("/usr/sbin/mysqld", "--datadir=/var/lib/my-sql", "--PORT=3306", "--loose_Server_Id=5"),
    ),
    ("mysqld", "--bind-address=::1,10.0.0.1", "--skip-name-resolve", "--unknown=1"): (
        *("mysqld", "--bind-address=::1,10.0.0.1", "--skip-name-resolve", "--unknown=?"),
    ),
    ("postgres", "-D", "/data", "-c", "config_file=/etc/p.conf", "-c", "x.y=1"): (
        *("postgres", "-D", "/data", "-c", "config_file=/etc/p.conf", "-c", "x.y=?"),
    ),
    ("python3", "/usr/bin/tool", "a", "", "-", "--", "-h", "-"): (
        *("python3", "/usr/bin/tool", "?", "", "-", "--", "-h", "?"),
    ),
    ("postgres: app shop 10.0.0.1(5432) idle",): ("postgres: app shop 10.0.0.1(5432) idle",),
    ("nginx: master process /usr/sbin/nginx -g x",): ("nginx: ?",),
    ("tool --password=x",): ("tool ?",),
    ("postgresql://u:x@h/db",): ("?",),
    ("-bash", "X=1", "x=", "9=1"): ("-bash", "X=?", "?", "?"),
}
"""Whole command lines, and what is shown of them."""
