"""Promises of a fleet in one file."""

from pathlib import Path

import pytest

from wattloop.core.errors import ConfigError
from wattloop.schedule.estimates.fleet_file import load_fleet


def test_files_are_found_in_the_folder_of_the_fleet(tmp_path: Path) -> None:
    """Cluster, oracle and rules; a shipped cluster by name is a fleet too."""
    group = "{gpu: a100, nodes: 2, gpus_per_node: 4, host_w: 0}"
    (tmp_path / "c.yaml").write_text(f"groups: [{group}]\n")
    (tmp_path / "r.yaml").write_text("rules: [{name: 'a*', job: {model: gpt2}}]\n")
    (tmp_path / "f.yaml").write_text("cluster: c.yaml\noracle: table\nrules: r.yaml\n")
    fleet = load_fleet(str(tmp_path / "f.yaml"))
    assert fleet.cluster.gpus == 8 and fleet.spec.kind == "table" and len(fleet.rules.rules) == 1
    assert load_fleet(str(tmp_path / "c.yaml")).cluster.gpus == 8
    assert load_fleet("thesis").cluster.name == "thesis"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("oracle: table", "f.yaml: cluster: it is missing"),
        ("cluster: thesis\noracel: table", "f.yaml:2: oracel: unknown field; did you mean"),
        ("cluster: 3", "f.yaml:1: cluster: write a name"),
        ("cluster: nowhere", "no cluster called 'nowhere'"),
        ("cluster: thesis\nrules: no.yaml", "no.yaml: cannot be read"),
    ],
)
def test_faults_name_line_and_field(tmp_path: Path, text: str, said: str) -> None:
    """The error lists the allowed values."""
    (tmp_path / "f.yaml").write_text(text)
    with pytest.raises(ConfigError) as error:
        load_fleet(str(tmp_path / "f.yaml"))
    assert said in str(error.value)
