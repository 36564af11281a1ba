"""Promises of saved workloads: they read back; broken files are refused by the field."""

import gzip
import json

import pytest

from wattloop.core.errors import ConfigError
from wattloop.predict.workload import Phase, Workload, costs
from wattloop.predict.workload.files import VERSION, load_workload, save_workload


@pytest.fixture
def workload() -> Workload:
    return Workload(
        name="tiny",
        operations=(
            costs.gemm(1, 8, 16, 32, dtype="bf16", module="fc", inputs=((8, 32), (32, 16))),
            costs.conv("weight", 2, 3, (8, 8), 4, 3, padding=1, dtype="fp32", count=3),
            *costs.optimizer_step("sgd+momentum", [10, 20]),
        ),
        precision="bf16",
        optimizer="sgd+momentum",
        optimizer_style="foreach",
        batch=8,
        parameters=30,
        parameter_bytes=120.0,
        notes=("a note",),
        origin={"torch": "2.13"},
    )


@pytest.mark.parametrize("name", ["w.json", "w.json.gz"])
def test_a_saved_workload_is_read_back_equal(workload, tmp_path, name):
    """Every field of workload and operations, tuples and kinds included."""
    save_workload(workload, tmp_path / name)
    assert load_workload(tmp_path / name) == workload
    assert [each.name for each in tmp_path.iterdir()] == [name]


def test_a_compressed_file_is_known_by_its_content(workload, tmp_path):
    """Its name does not matter."""
    save_workload(workload, tmp_path / "w.json")
    (tmp_path / "renamed").write_bytes(gzip.compress((tmp_path / "w.json").read_bytes()))
    assert load_workload(tmp_path / "renamed") == workload


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda v: v.update(version=VERSION + 1), "field 'version' is 2.*upgrade"),
        (lambda v: v.update(format="other"), "field 'format'"),
        (lambda v: v.pop("batch"), "field 'batch' is missing"),
        (lambda v: v.update(batch="eight"), "field 'batch' is \"eight\", not a whole number"),
        (lambda v: v.update(peak_bytes=-1.0), "field 'peak_bytes' is -1.0"),
        (lambda v: v.update(batch=0), "field 'batch' is 0, not 1 or more"),
        (lambda v: v.update(operations=[]), "field 'operations' is empty"),
        (lambda v: v.update(training=1), "field 'training' is 1, not true or false"),
        (lambda v: v["operations"][1].update(kind="magic"), r"operations\[1\].kind' is 'magic'"),
        (lambda v: v["operations"][0].pop("op"), r"operations\[0\].op' is missing"),
        (lambda v: v["operations"][0].update(dims=["x"]), r"operations\[0\].dims'"),
        (lambda v: v["operations"][0].update(flops=float("nan")), r"operations\[0\].flops'"),
        (lambda v: v["operations"][0].update(speed=1), r"operations\[0\].speed' is not known"),
        (lambda v: v["operations"].append(5), r"operations\[5\]' is not an object"),
    ],
)
def test_a_broken_file_is_refused_by_the_name_of_the_field(workload, tmp_path, change, said):
    """One field wrong at a time; the error also names the file."""
    path = tmp_path / "w.json"
    save_workload(workload, path)
    values = json.loads(path.read_text())
    change(values)
    path.write_text(json.dumps(values))
    with pytest.raises(ConfigError, match=said) as problem:
        load_workload(path)
    assert str(path) in str(problem.value)


def test_files_that_are_missing_or_no_json_are_refused(workload, tmp_path):
    """A cut file, a missing one, and a missing folder to write into."""
    path = tmp_path / "w.json.gz"
    save_workload(workload, path)
    path.write_bytes(path.read_bytes()[:50])
    with pytest.raises(ConfigError, match="not JSON"):
        load_workload(path)
    with pytest.raises(ConfigError, match="cannot be read"):
        load_workload(tmp_path / "none.json")
    with pytest.raises(ConfigError, match="cannot be written"):
        save_workload(workload, tmp_path / "none" / "w.json")


def test_the_phases_stay_what_they_were(workload, tmp_path):
    """Enumerations are read back as such, not as text."""
    save_workload(workload, tmp_path / "w.json")
    assert load_workload(tmp_path / "w.json").operations[1].phase is Phase.BACKWARD
