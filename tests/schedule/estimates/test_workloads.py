"""Promises of the workloads that ship with the package."""

from pathlib import Path

import yaml

from tests.schedule.estimates.clusters import VIT
from wattloop.predict.workload.files import load_workload
from wattloop.schedule.estimates import analytic
from wattloop.schedule.estimates.analytic import SHIPPED, shipped_workload
from wattloop.schedule.jobs import JobKind

TEMPLATES = Path(analytic.__file__).parents[1] / "scenarios" / "thesis_templates.yaml"


def test_every_batch_of_the_thesis_is_shipped_and_nothing_else() -> None:
    """One file per model and batch of the scenario, with the same facts inside."""
    expected = set()
    for entry in yaml.safe_load(TEMPLATES.read_text())["models"]:
        kind = JobKind(entry["model"], entry["precision"], sequence=entry.get("sequence"))
        for batch in entry["batches"]:
            path = shipped_workload(kind, batch)
            saved = load_workload(path)
            assert (saved.batch, saved.precision) == (batch, kind.precision)
            assert saved.name == kind.model
            expected.add(path)
    assert set(SHIPPED.iterdir()) == expected


def test_other_names_of_a_model_share_its_file() -> None:
    """`hf:vit-base-patch16-224` and `hf:google/...` are one model; another precision is not."""
    assert shipped_workload(VIT, 64) == shipped_workload(
        JobKind("hf:vit-base-patch16-224", "tf32"), 64
    )
    assert not shipped_workload(JobKind(VIT.model, "bf16"), 64).exists()
    assert not shipped_workload(JobKind(VIT.model, "tf32", sequence=64), 64).exists()
