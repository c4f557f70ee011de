# SPDX-License-Identifier: Apache-2.0
"""Servers with the in-process library inside."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.support.cache import Unavailable
from tests.support.servers.sql import SqlServer
from tests.support.servers.waiting import wait_until

__all__ = ["LIBRARY", "RINGS", "agent_inside", "library_path", "one_ring", "preloaded"]

CHECKOUT = Path(__file__).resolve().parents[3]
LIBRARY = "libstallscope.so"
RINGS = "*.ring"


def library_path() -> Path:
    """Return the built library: of STALLSCOPE_BUILD, or of ``build`` of this checkout."""
    folder = Path(os.environ.get("STALLSCOPE_BUILD") or CHECKOUT / "build").resolve()
    path = folder / "inproc" / LIBRARY
    if not path.is_file():
        raise Unavailable(f"{path} is not built: run scripts/setup")
    return path


def preloaded(rings: Path, **variables: str) -> dict[str, str]:
    """Return environment variables that load the library, which makes its ring in this folder."""
    return {
        "LD_PRELOAD": str(library_path()),
        "STALLSCOPE_RUNTIME_DIR": str(rings),
        **variables,
    }


@contextmanager
def agent_inside(server: SqlServer, **variables: str) -> Iterator[Path]:
    """Load the library into a server that is started inside of the block; yield its ring's folder.

    The folder belongs to the server's user and is in memory, as /run is.
    """
    with ExitStack() as stack:
        home, rings = (new_folder(stack, parent) for parent in (_executable(), "/dev/shm"))
        home.chmod(0o755)
        library = Path(shutil.copy(library_path(), home / LIBRARY))
        library.chmod(0o755)
        server.give_to_server(rings)
        server.env = {
            **server.env,
            "LD_PRELOAD": str(server.inside(library)),
            "STALLSCOPE_RUNTIME_DIR": str(server.inside(rings)),
            **variables,
        }
        yield rings


def _executable() -> str:
    """Return a folder for all users from which code is loaded: /tmp may forbid that."""
    folders = ("/tmp", "/var/tmp")
    return next((one for one in folders if not os.statvfs(one).f_flag & os.ST_NOEXEC), folders[0])


def new_folder(stack: ExitStack, parent: str) -> Path:
    folder = Path(tempfile.mkdtemp(prefix="stallscope-inside-", dir=parent))
    stack.callback(shutil.rmtree, folder, ignore_errors=True)
    return folder


def one_ring(rings: Path) -> Path:
    """Return the ring in a folder, once a thread has had something to say."""
    return wait_until(lambda: sorted(rings.glob(RINGS)), f"a ring in {rings}")[0]
