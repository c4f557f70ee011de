# SPDX-License-Identifier: Apache-2.0
"""A certificate authority for tests, and a server's certificate for 127.0.0.1 by it."""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import NameOID

__all__ = ["Certificates", "certificates"]

ADDRESS = "127.0.0.1"


class Certificates(NamedTuple):
    ca: Path
    certificate: Path
    key: Path

    def options(self) -> tuple[str, ...]:
        """Return the options with which a server uses them."""
        return (
            f"--ssl-ca={self.ca}",
            f"--ssl-cert={self.certificate}",
            f"--ssl-key={self.key}",
        )


def certificates(folder: Path, *, address: str = ADDRESS, days: int = 2) -> Certificates:
    """Make both in a folder; servers of other users can read them.

    ``address``: whose the server's is. ``days``: how long it is good; it has begun ten days ago.
    """
    authority, server = (rsa.generate_private_key(65537, 2048) for _ in range(2))
    root = _certificate("stallscope tests", authority, None, None, 2)
    own = _certificate(address, server, root, authority, days)
    found = Certificates(folder / "ca.pem", folder / "server.pem", folder / "key.pem")
    for path in (folder, *folder.parents[:3]):
        path.chmod(path.stat().st_mode | 0o011)
    found.ca.write_bytes(root.public_bytes(serialization.Encoding.PEM))
    found.certificate.write_bytes(own.public_bytes(serialization.Encoding.PEM))
    found.key.write_bytes(
        server.private_bytes(
            serialization.Encoding.PEM,
            # OpenSSL of 2010 reads no other.
            serialization.PrivateFormat.TraditionalOpenSSL,
            serialization.NoEncryption(),
        )
    )
    found.key.chmod(0o644)
    return found


def _certificate(
    name: str,
    key: rsa.RSAPrivateKey,
    issuer: x509.Certificate | None,
    signer: rsa.RSAPrivateKey | None,
    days: int,
) -> x509.Certificate:
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject if issuer is None else issuer.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=10))
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
    )
    if issuer is not None:
        names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(name))])
        builder = builder.add_extension(names, critical=False)
    return builder.sign(signer or key, hashes.SHA256())
