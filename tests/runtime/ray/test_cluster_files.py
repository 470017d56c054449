"""The cluster files fit the Ray that is installed, and what `docs/cluster.md` types is there."""

import json
import os
import re
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import ray.autoscaler
import yaml
from ray.autoscaler._private.util import prepare_config, validate_config

from fedray.core.types import Clients, Tier
from fedray.runtime.placement import Node, plan_actors

ROOT = Path(__file__).parents[3]
FILES = ("cluster.yaml", "cluster/on_premise.yaml")
every_file = pytest.mark.parametrize("name", FILES)


def config(name: str) -> dict[str, Any]:
    return dict(yaml.safe_load((ROOT / name).read_text()))


@every_file
def test_a_cluster_file_fits_rays_schema_asks_for_its_token_and_shows_its_dashboard_to_nobody(name: str) -> None:
    """The dashboard, which `[cluster]` brings, is on loopback. One token for all."""
    file = config(name)
    schema = json.loads((Path(ray.autoscaler.__file__).parent / "ray-schema.json").read_text())
    jsonschema.validate(file, schema)
    assert "# CHANGE" in (ROOT / name).read_text()
    assert "--dashboard-host=127.0.0.1" in " ".join(file["head_start_ray_commands"])
    for commands in ("head_start_ray_commands", "worker_start_ray_commands"):
        assert "export RAY_AUTH_MODE=token" in " ".join(file[commands])
    assert file["file_mounts"]["~/.ray/auth_token"] == "~/.ray/auth_token"


@every_file
def test_all_nodes_of_a_cluster_get_the_same_ray(name: str) -> None:
    """Nodes that start on another day got a newer one, which the head refuses; from 2.52 on there are tokens."""
    found = [re.search(r"ray==([0-9.]+)", command) for command in config(name)["setup_commands"]]
    versions = {match[1] for match in found if match is not None}
    assert versions == set(re.findall(r"ray(?:\[default\])?==([0-9.]+)", (ROOT / name).read_text()))
    assert len(versions) == 1
    assert '"ray>=2.52"' in (ROOT / "pyproject.toml").read_text()


CHANGES = {  # what the marks of the cloud file tell a newcomer to change, one by one
    "another region": ("region: eu-central-1", "region: us-east-1"),
    "more strong nodes": ("&strong 2", "&strong 12"),
    "more weak nodes": ("&weak 4", "&weak 40"),
    "no weak nodes": ("&weak 4", "&weak 0"),
    "another type": ("InstanceType: c7i.4xlarge", "InstanceType: g6.8xlarge"),
    "its resources": ("{CPU: &strong_cpus 16, hpc: *strong_cpus}", "{CPU: &strong_cpus 32, hpc: *strong_cpus, GPU: 1}"),
    "nothing": ("", ""),
}


@pytest.mark.parametrize("change", CHANGES)
def test_the_cloud_file_stays_valid_with_each_change_that_it_asks_for(change: str) -> None:
    """More nodes ended in Ray's "global `max_workers` is smaller than the sum of `min_workers`"."""
    before, after = CHANGES[change]
    text = (ROOT / "cluster.yaml").read_text()
    marked = next(line for line in text.splitlines() if before in line and (not before or "# CHANGE" in line))
    file = yaml.safe_load(text.replace(marked, marked.replace(before, after)) if before else text)
    prepared = prepare_config(file)
    validate_config(prepared)
    for name, kind in prepared["available_node_types"].items():
        assert kind.get("min_workers", 0) <= kind["max_workers"] == (0 if name == "head" else kind["min_workers"])
        assert name == "head" or kind["resources"][name] == kind["resources"]["CPU"]


def workers() -> list[Node]:
    """The workers of the cloud file."""
    types = [kind for kind in config("cluster.yaml")["available_node_types"].values() if kind.get("min_workers")]
    return [Node("", one["resources"]) for one in types for _ in range(one["min_workers"])]


def test_the_tiers_of_the_readme_fit_the_cloud_files_nodes() -> None:
    """A tier that is pinned to scarce nodes gets the actors that they hold, not its share of the CPUs."""
    for few, many in ((50, 50), (20, 80)):
        strong, weak = Tier("hpc", few, resources={"hpc": 1.0}), Tier("lpc", many, resources={"lpc": 1.0})
        planned = plan_actors(Clients((strong, weak)), workers(), "auto", "auto")
        assert [sum(spec.tier == c for spec in planned) for c in (0, 1)] == [min(few, 32), 8], "all CPUs"
    weak = Tier("weak", 50, resources={"lpc": 1.0})
    both = plan_actors(Clients((weak, replace(weak, name="weaker"))), workers(), "auto", "auto")
    assert [sum(spec.tier == c for spec in both) for c in (0, 1)] == [4, 4], "two tiers share what both want"


STUB = """#!/bin/bash
echo "$(basename $0) $*" >> {log}
case "$(basename $0) $*" in
  "scontrol show hostnames "*) echo "$3" | tr , '\\n' | sed 's/$//' ;;
  "srun "*"/fedray run "*) sleep 0.3 ;;
  *"hostname -I") echo "10.1.0.1 192.168.0.1" ;;
  "ip -o route get "*) echo "10.0.0.9 dev eth0 src $SOURCE uid 0" ;;
esac
exit 0
"""


def stubs(folder: Path, *names: str) -> tuple[Path, dict[str, str]]:
    """Programs that only write down how they were called; the file they write to, and the environment to use."""
    log = folder / "log"
    (folder / "venv" / "bin").mkdir(parents=True)
    for name in names:
        (folder / name).write_text(STUB.format(log=log))
        (folder / name).chmod(0o755)
    return log, {"PATH": f"{folder}:/usr/bin:/bin", "HOME": str(folder)}


@pytest.mark.parametrize(
    ("address", "kind", "slots"), [("10.0.0.2", "hpc", 16), ("10.0.0.3", "lpc", 2), ("10.0.0.77", "lpc", 2)]
)
def test_a_machine_of_ones_own_starts_as_its_node_type(address: str, kind: str, slots: int, tmp_path: Path) -> None:
    """The worker's command, run by bash as Ray sends it: own address, and the resources that tiers pin to."""
    log, environment = stubs(tmp_path, "ip", "venv/bin/ray")
    command = f"export RAY_HEAD_IP=10.0.0.1; {config('cluster/on_premise.yaml')['worker_start_ray_commands'][1]}"
    subprocess.run(["bash", "-c", command], env={**environment, "SOURCE": address}, check=True)
    start = log.read_text().splitlines()[-1]
    assert start.startswith(f"ray start --address=10.0.0.1:6379 --node-ip-address={address} ")
    assert json.loads(start.partition("--resources=")[2]) == {kind: slots}


def run_slurm(folder: Path, *words: str, **job: str) -> list[str]:
    """The commands that the script starts for a job."""
    log, environment = stubs(folder, "srun", "scontrol", "venv/bin/ray", "venv/bin/fedray")
    job |= {"PAUSE": "0.1", "SLURM_CPUS_PER_TASK_HET_GROUP_0": "8"}
    script = ROOT / "cluster" / "slurm.sh"
    assert os.access(script, os.X_OK)
    subprocess.run(["bash", script, "a.yaml", *words], env={**environment, **job}, check=True, timeout=60)
    return log.read_text().splitlines()


def test_the_slurm_script_starts_both_kinds_of_nodes(tmp_path: Path) -> None:
    """A head on the first strong node, a worker on every other one, then the scenario with the head's address."""
    groups = {"SLURM_JOB_NODELIST_HET_GROUP_0": "a,b", "SLURM_JOB_NODELIST_HET_GROUP_1": "c,d,e"}
    lines = run_slurm(tmp_path / "both", "rounds=2", **groups)
    starts = [line for line in lines if "ray start" in line]
    nodes = [re.search(r"--nodelist=(\S+)", line)[1] for line in starts]  # type: ignore[index]  # each line has one
    assert sorted(nodes) == ["a", "b", "c", "d", "e"]
    assert "--head --node-ip-address=10.1.0.1 --port=6379 --dashboard-host=127.0.0.1" in starts[nodes.index("a")]
    for node, line in zip(nodes, starts, strict=True):
        part, resources = (0, '{"hpc": 8}') if node in "ab" else (1, '{"lpc": 2}')
        assert f"--het-group={part} " in line and f"--resources={resources}" in line
        assert node == "a" or line.endswith("--address=10.1.0.1:6379")
    assert any(line.endswith("run a.yaml rounds=2 --address 10.1.0.1:6379 --wait-for hpc=16,lpc=6") for line in lines)
    strong = run_slurm(tmp_path / "strong", SLURM_JOB_NODELIST="a,b")
    assert any(line.endswith("run a.yaml --address 10.1.0.1:6379 --wait-for hpc=16") for line in strong)


def test_the_kubernetes_file_grows_from_nothing_and_its_groups_have_what_tiers_pin_to() -> None:
    file = config("cluster/kuberay.yaml")
    assert (file["apiVersion"], file["kind"]) == ("ray.io/v1", "RayCluster")
    spec = file["spec"]
    assert spec["authOptions"] == {"mode": "token"}
    head = spec["headGroupSpec"]
    assert head["rayStartParams"]["num-cpus"] == "0"
    for group in (head, *spec["workerGroupSpecs"]):
        (container,) = group["template"]["spec"]["containers"]
        assert container["resources"]["limits"] == container["resources"]["requests"]
        assert container["image"] == head["template"]["spec"]["containers"][0]["image"]
        assert all(isinstance(value, str) for value in group["rayStartParams"].values())
        if group is not head:
            assert group["replicas"] == group["minReplicas"] == 0 < group["maxReplicas"]
            cpus = int(container["resources"]["limits"]["cpu"])
            assert json.loads(json.loads(group["rayStartParams"]["resources"])) == {group["groupName"]: cpus}
