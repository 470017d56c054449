"""The cluster file fits the schema of the Ray that is installed."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import ray.autoscaler
import yaml

ROOT = Path(__file__).parent.parent


def test_the_cluster_file_fits_rays_schema_and_has_both_node_types() -> None:
    config = yaml.safe_load((ROOT / "cluster.yaml").read_text())
    schema = json.loads((Path(ray.autoscaler.__file__).parent / "ray-schema.json").read_text())
    jsonschema.validate(config, schema)
    types = config["available_node_types"]
    assert types["hpc"]["resources"]["hpc"] > 0
    assert types["lpc"]["resources"]["lpc"] > 0
    assert config["head_node_type"] in types
    assert "127.0.0.1" in " ".join(config["head_start_ray_commands"])
