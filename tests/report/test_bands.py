"""Rows of clients stand cluster by cluster where their clusters are known, and tier by tier elsewhere."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from small import scenario

import fedray
from fedray.report.jobs import figure_assignment, group_rows
from fedray.report.read import read_run


def test_the_picture_of_who_trains_which_is_sorted_by_cluster(tmp_path: Path) -> None:
    keys = scenario({"method": {"name": "ifca", "models": 2}, "rounds": 1, "data": {"partition": None}})
    done = fedray.run(keys, data__partition={"name": "iid", "rotation": 2}, out=tmp_path / "run")
    run, true = read_run(done.path), done.study.shards.clusters(0)
    table = run.first_world()
    assert table is not None and true is not None
    bands = group_rows(run, table, np.arange(6))
    assert bands.names == ("cluster 0", "cluster 1") and bands.sizes == (3, 3)
    assert true[bands.order].tolist() == [0, 0, 0, 1, 1, 1]
    figure = figure_assignment(run)
    assert figure is not None
    texts = [text.get_text() for text in figure.axes[0].texts]
    rows = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert {"cluster 0", "cluster 1"} <= set(texts)
    assert [text for text in rows if text] == [str(client) for client in bands.order.tolist()]
