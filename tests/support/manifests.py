# SPDX-License-Identifier: Apache-2.0
"""The manifests of packaging/kubernetes, and what they give to the agent's container."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

__all__ = ["MANIFESTS", "agent_container", "capabilities", "documents", "pod"]

MANIFESTS = Path(__file__).resolve().parents[2] / "packaging" / "kubernetes"


def documents(name: str) -> list[dict[str, Any]]:
    """Return the objects of a manifest."""
    return list(yaml.safe_load_all((MANIFESTS / name).read_text()))


def pod(name: str) -> dict[str, Any]:
    """Return the pod of a manifest's workload."""
    (found,) = (one for one in documents(name) if one["kind"] in ("DaemonSet", "StatefulSet"))
    spec = found["spec"]["template"]["spec"]
    assert isinstance(spec, dict)
    return spec


def agent_container(name: str) -> dict[str, Any]:
    (found,) = (one for one in pod(name)["containers"] if one["name"] == "stallscope")
    assert isinstance(found, dict)
    return found


def capabilities(name: str) -> tuple[str, ...]:
    """Return the capabilities that the agent has, in lower case."""
    given = agent_container(name)["securityContext"]["capabilities"]
    assert given["drop"] == ["ALL"]
    return tuple(word.lower() for word in given.get("add", ()))
