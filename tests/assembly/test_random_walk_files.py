"""Edge files and failure files: what is no node's id is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedray.assembly.random_walk import make_graph, read_failures
from fedray.core.errors import BadInput
from fedray.scenario.random_walk import GraphKeys


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("node,neighbour\n0,1\n0.7,2\n", "column node holds 0.7: give whole numbers"),
        ("node,neighbour\n0,1\n1,\n", "column neighbour holds an empty cell: give whole numbers"),
        ("node,neighbour\n0,1\ninf,2\n", "column node holds inf: give whole numbers"),
        ("node,neighbour\n0,1\n1,3\n", "it names node 3"),
    ],
)
def test_an_edge_of_node_0_7_is_not_an_edge_of_node_0(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "edges.csv"
    path.write_text(text)
    with pytest.raises(BadInput, match=message):
        make_graph(GraphKeys(kind="edges", edges=str(path)), 3, 0)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("0,1,0.7,", "column node holds 0.7: give whole numbers"),
        ("0.5,1,0,", "column first holds 0.5: give whole numbers"),
        ("0,1.5,0,", "column last holds 1.5: give whole numbers"),
        ("0,,0,", "column last holds an empty cell"),
        ("0,1,0,1.2", "column neighbour holds 1.2: give whole numbers"),
        ("0,1,0,-1", "it names node -1"),
    ],
)
def test_a_failure_of_node_0_7_is_not_a_failure_of_node_0(tmp_path: Path, row: str, message: str) -> None:
    path = tmp_path / "failures.csv"
    path.write_text(f"first,last,node,neighbour\n0,3,1,2\n{row}\n")
    with pytest.raises(BadInput, match=message):
        read_failures(path, 3)


def test_an_empty_neighbour_is_the_failure_of_a_whole_node(tmp_path: Path) -> None:
    path = tmp_path / "failures.csv"
    path.write_text("first,last,node,neighbour\n0,3,1,2\n4,5,0,\n")
    assert read_failures(path, 3).tolist() == [[0, 3, 1, 2], [4, 5, 0, -1]]
