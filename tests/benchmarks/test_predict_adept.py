"""Promises of the tables of ADEPT, from steps with known times."""

import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from tests.predict.models.made import PLACE, addition, conv, gemm, workload

from predict_adept_fits import Fits, all_fits, errors_of  # programs outside the package
from predict_adept_tables import ablation, by_part, parameters, refinement, saturations, thesis_rows
from wattloop.predict.models.adept.equations import PARAMETERS, SATURATIONS, STAGES
from wattloop.predict.models.adept.model import AdeptSearch
from wattloop.predict.models.model import MeasuredStep

SHORT = AdeptSearch(iterations=1, population=1, polish=1)


@pytest.fixture(scope="module")
def points() -> list[MeasuredStep]:
    """Return steps of two networks; their times are bytes over the bandwidth, with 600 W."""
    found = []
    for group in ("albert", "vgg16"):
        for precision in ("tf32", "bf16"):
            for size in (256, 2048):
                step = workload(
                    gemm(size, size, size, dtype=precision),
                    conv(64, 14, 8, dtype=precision),
                    addition(size * size, count=20),
                    name=group,
                    precision=precision,
                )
                moved = sum(op.count * op.bytes_moved for op in step.operations)
                found.append(MeasuredStep(step, PLACE, moved / 4e12 + 1e-3, 600.0, group))
    return found


@pytest.fixture(scope="module")
def fits(points: list[MeasuredStep]) -> Fits:
    """Fit as the benchmark does, with the shortest searches."""
    return all_fits(points, SHORT, seeds=2)


def test_errors_are_means_of_absolute_percentages(points: list[MeasuredStep]) -> None:
    """Promise: 10% too long and 20% too little power are 10, 20, 12 of energy, 14 combined."""
    found = errors_of(points, np.array([(p.step_s * 1.1, 600.0 * 0.8) for p in points]))
    assert (found.time, found.power, found.energy) == pytest.approx((10, 20, 12))
    assert found.combined == pytest.approx(14)


def test_out_of_sample_every_step_is_predicted_without_its_network(
    points: list[MeasuredStep], fits: Fits
) -> None:
    """Promise: all rows are there, and no row is predicted from its own network."""
    assert all(np.isfinite(table).all() for table in fits.outside.values())
    slower = [replace(p, step_s=p.step_s * (50 if p.group == "vgg16" else 1)) for p in points]
    again = all_fits(slower, SHORT, stages_only=True)
    rows = [i for i, point in enumerate(points) if point.group == "vgg16"]
    assert again.outside["S7"][rows] == pytest.approx(fits.outside["S7"][rows])


def test_stages_never_become_worse_in_sample(points: list[MeasuredStep], fits: Fits) -> None:
    """Promise: each stage starts where the last one ended."""
    found = [errors_of(points, fits.inside[stage]).combined for stage in STAGES]
    assert all(late <= early + 1e-9 for early, late in pairwise(found))


def test_tables_have_the_rows_of_the_thesis(points: list[MeasuredStep], fits: Fits) -> None:
    """Promise: S1 to S7, networks, precisions, five saturations, two ablations, 28 parameters."""
    assert [row[0] for row in refinement(points, fits).rows] == list(STAGES)
    assert [row[0] for row in thesis_rows(points, fits).rows] == list(STAGES)
    networks, others = by_part(points, fits)
    assert [row[0] for row in networks.rows] == ["albert", "vgg16"]
    assert [row[0] for row in others.rows] == ["tf32", "bf16", "1 GPU", "4 GPUs"]
    assert [row[0] for row in saturations(points, fits).rows] == list(SATURATIONS)
    assert len(ablation(points, fits).rows) == 2
    assert [row[0] for row in parameters(points, fits, 2).rows] == list(PARAMETERS)
    for table in (refinement(points, fits), networks, others, ablation(points, fits)):
        assert all(len(row) == len(table.header) for row in table.rows)
