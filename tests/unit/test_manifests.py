# SPDX-License-Identifier: Apache-2.0
"""The manifests: Kubernetes' own schemas, and that options, paths and programs are those of this
project. tests/live/test_containers.py tries their privileges."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

from stallscope.main import parser
from tests.support.manifests import MANIFESTS, agent_container, capabilities, documents, pod

__all__: list[str] = []

ROOT = Path(__file__).parents[2]
VERSION = (ROOT / "VERSION").read_text().strip()
NAMES = sorted(path.name for path in MANIFESTS.glob("*.yaml"))
OLDEST, NEWEST = "1.25", "1.34"
"""The first without PodSecurityPolicy, and the newest that this package of schemas always has."""


def test_all_manifests_are_tested() -> None:
    assert NAMES == ["daemonset.yaml", "sidecar.yaml"]


@pytest.mark.large
@pytest.mark.needs("kubernetes-validate")
@pytest.mark.parametrize("version", [OLDEST, NEWEST])
@pytest.mark.parametrize("name", NAMES)
def test_schemas(name: str, version: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import kubernetes_validate

    for one in documents(name):
        kubernetes_validate.validate(one, version, strict=True)


@pytest.mark.parametrize("name", NAMES)
def test_its_options_are_those_of_watch(name: str) -> None:
    container = agent_container(name)
    command, *options = container["args"]
    assert command == "watch"
    args = parser([command]).parse_args([command, *options])
    assert container["image"] == f"stallscope:{VERSION}"
    mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
    assert {str(args.dest), str(Path(args.defaults_file).parent)} == mounts
    (port,) = container["ports"]
    assert args.listen.port == port["containerPort"]
    assert container["livenessProbe"]["httpGet"] == {"path": "/livez", "port": port["name"]}
    volumes = {volume["name"] for volume in pod(name)["volumes"]}
    assert {mount["name"] for mount in container["volumeMounts"]} <= volumes


@pytest.mark.parametrize("name", NAMES)
def test_only_the_monitoring_reads_what_it_serves(name: str) -> None:
    (policy,) = [one for one in documents(name) if one["kind"] == "NetworkPolicy"]
    labels = policy["spec"]["podSelector"]["matchLabels"]
    (workload,) = [one for one in documents(name) if "template" in one.get("spec", {})]
    assert labels == workload["spec"]["template"]["metadata"]["labels"]
    port = agent_container(name)["ports"][0]["containerPort"]
    for rule in policy["spec"]["ingress"]:
        assert ("from" in rule) is (rule["ports"][0]["port"] == port), "others stay open"
    assert any("from" in rule for rule in policy["spec"]["ingress"])


@pytest.mark.parametrize("name", NAMES)
def test_no_privilege_beside_the_named_ones(name: str) -> None:
    spec, container = pod(name), agent_container(name)
    context = container["securityContext"]
    assert context["allowPrivilegeEscalation"] is False
    assert context["readOnlyRootFilesystem"] is True
    assert "privileged" not in context
    profile = context.get("seccompProfile") or spec["securityContext"]["seccompProfile"]
    assert profile == {"type": "RuntimeDefault"}
    assert spec["automountServiceAccountToken"] is False
    assert not spec.get("hostNetwork")
    assert not spec.get("hostIPC")


def test_the_sidecar_has_none_at_all() -> None:
    spec = pod("sidecar.yaml")
    assert capabilities("sidecar.yaml") == ()
    assert spec["shareProcessNamespace"] is True
    assert "hostPID" not in spec
    assert spec["securityContext"]["runAsNonRoot"] is True
    users = {
        one.get("securityContext", {}).get("runAsUser", spec["securityContext"]["runAsUser"])
        for one in spec["containers"]
    }
    assert len(users) == 1, "the agent may read what its own user runs"


def test_the_daemon_set_sees_the_node() -> None:
    assert pod("daemonset.yaml")["hostPID"] is True
    assert agent_container("daemonset.yaml")["securityContext"]["runAsUser"] == 0
