"""Promises of curves of power limits."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattloop.core.errors import ConfigError
from wattloop.hardware.gpus import gpu_named
from wattloop.schedule.estimates.cap_curves import (
    CapCurves,
    CapPoint,
    load_cap_curves,
    shipped_curve_names,
)

V100, A40 = gpu_named("v100-sxm-16"), gpu_named("a40")
POINTS = [
    CapPoint("resnet50", "v100", 64, 250, 10.0, 240.0),
    CapPoint("resnet50", "v100", 64, 200, 11.0, 198.0),
    CapPoint("resnet50", "v100", 64, 100, 22.0, 99.0),
    CapPoint("resnet50", "v100", 256, 250, 8.0, 245.0),
    CapPoint("resnet50", "v100", 256, 125, 14.0, 125.0),
    CapPoint("resnet50", "a40", 64, 300, 12.0, 280.0),
    CapPoint("resnet50", "a40", 64, 150, 20.0, 150.0),
]
OURS = "model,gpu,batch,cap_w,time_s,power_w\n"
ZEUS = "dataset,network,batch_size,optimizer,power_limit,time_per_epoch,average_power\n"


def test_measured_limits_are_as_measured() -> None:
    """200 of 250 W: 10% longer, 79.2% of the limit drawn."""
    curve = CapCurves(POINTS, "here").curve("resnet50", V100, "v100", 64)
    stretch, power = curve.at(np.array([1.0, 0.8, 0.4]))
    assert stretch == pytest.approx([1.0, 1.1, 2.2])
    assert power == pytest.approx([0.96, 0.792, 0.396])


def test_below_the_lowest_limit_nothing_is_known() -> None:
    """A missing value is not the lowest one."""
    curve = CapCurves(POINTS, "here").curve("resnet50", V100, "v100", 64)
    assert np.isnan(curve.at(np.array([0.3]))).all()


@given(
    points=st.lists(st.tuples(st.floats(1, 10), st.floats(10, 300)), min_size=2, max_size=7),
    full=st.floats(0.2, 1.0),
)
def test_lower_limits_are_never_quicker_nor_hungrier(
    points: list[tuple[float, float]], full: float
) -> None:
    """This holds under any scatter of measurements, and for any power of the program."""
    rows = [
        CapPoint("p", "v100", 8, 100.0 + 25 * n, time_s, power_w)
        for n, (time_s, power_w) in enumerate(points)
    ]
    curve = CapCurves(rows, "here").curve("p", V100, "v100", 8)
    shares = np.linspace(1.0, 0.3, 30)
    for stretch, power in (curve.at(shares), curve.under(shares, np.full(30, full))):
        known = np.isfinite(stretch)
        assert np.all(np.diff(stretch[known]) >= -1e-9)
        assert np.all(np.diff(power[known]) <= 1e-9)


def test_a_program_that_draws_less_feels_a_limit_later() -> None:
    """For a program that draws half as much as the curve's, 60% of the limit does not bind."""
    curve = CapCurves(POINTS, "here").curve("resnet50", V100, "v100", 64)
    stretch, power = curve.under(np.array([1.0, 0.6]), np.array([0.48, 0.48]))
    assert stretch == pytest.approx([1.0, 1.0])
    assert power == pytest.approx([0.48, 0.48])


def test_a_program_that_draws_more_is_within_the_limit_all_the_same() -> None:
    """At the factory limit its power is as measured; half of that halves its power, and costs
    time.
    """
    curve = CapCurves(POINTS, "here").curve("resnet50", V100, "v100", 64)
    stretch, power = curve.under(np.array([1.0, 0.5]), np.array([1.0, 1.0]))
    assert (stretch[0], power[0]) == pytest.approx((1.0, 1.0))
    assert stretch[1] > 1.5
    assert power[1] == pytest.approx(0.5, rel=0.03)


@pytest.mark.parametrize(("batch", "near"), [(32, 64), (100, 64), (140, 256), (4096, 256)])
def test_the_nearest_batch_is_taken(batch: int, near: int) -> None:
    """Ratios decide, as batches double."""
    curve = CapCurves(POINTS, "here").curve("resnet50", V100, "v100", batch)
    assert curve.source == f"resnet50 on v100, batch {near}"


@pytest.mark.parametrize(
    ("gpu", "like"),
    [("a40", "a40"), ("t4", "a40"), ("k80", "a40"), ("p100-pcie", "v100"), ("a100", "v100")],
)
def test_other_gpus_have_the_curve_of_the_same_kind_of_memory(gpu: str, like: str) -> None:
    """GDDR like the A40, HBM like the V100."""
    curve = CapCurves(POINTS, "here").curve("resnet50", gpu_named(gpu), gpu, 64)
    assert f"on {like}," in curve.source


def test_models_are_mapped_to_programs() -> None:
    """Gavel's and ElasticFlow's models have a program each; a user adds or overrules."""
    curves = CapCurves(POINTS, "here", {"mine": "resnet50", "LM": "resnet50"})
    for model in ("ResNet-50", "vgg16", "mine", "LM"):
        assert curves.curve(model, V100, "v100", 64).source.startswith("resnet50")
    assert set(shipped_curve_names().values()) == {
        "resnet50", "shufflenetv2", "bert_base_uncased", "ncf"
    }  # fmt: skip


def test_a_model_like_nothing_known_is_told() -> None:
    """The message says what to write."""
    with pytest.raises(ConfigError, match=r"model llama: no cap curve.*nearest: {llama: resnet50}"):
        CapCurves(POINTS, "here").curve("llama", V100, "v100", 64)
    with pytest.raises(ConfigError, match="curve resnet51: not in here"):
        CapCurves(POINTS, "here", {"mine": "resnet51"})


def test_a_folder_of_zeus_traces(tmp_path: Path) -> None:
    """GPUs come from file names; optimizers of one program are averaged."""
    (tmp_path / "power_v100.csv").write_text(
        f"{ZEUS}d,net,8,adam,250,10,200\nd,net,8,sgd,250,20,100\nd,net,8,adam,125,30,120\n"
    )
    (tmp_path / "power_a40.csv").write_text(f"{ZEUS}d,net,8,adam,300,10,200\n")
    (tmp_path / "train.csv").write_text("other\n")
    curves = load_cap_curves([str(tmp_path)])
    curve = curves.curve("net", V100, "v100", 8)
    assert curve.share.tolist() == [0.5, 1.0]
    assert curve.stretch.tolist() == [2.0, 1.0]
    assert curve.power.tolist() == pytest.approx([120 / 250, 150 / 250])
    assert curves.curve("net", A40, "a40", 8).source == "net on a40, batch 8"


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("c.csv", "model,gpu\n", "batch, cap_w, time_s, power_w are missing"),
        ("c.csv", f"{OURS}m,v100,8,250,0,9\n", "c.csv:2: time_s is '0'"),
        ("c.csv", OURS, "no measurement"),
        ("v100.csv", f"{ZEUS}d,net,8,adam,250,10,200\n", "call it power_v100.csv"),
    ],
)  # fmt: skip
def test_faults_are_told(tmp_path: Path, name: str, text: str, said: str) -> None:
    """File, line, column and remedy."""
    (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match=said):
        load_cap_curves([str(tmp_path / name)])


def test_a_folder_without_traces_is_told(tmp_path: Path) -> None:
    """It is not read as a table without caps."""
    with pytest.raises(ConfigError, match=r"power_GPU\.csv"):
        load_cap_curves([str(tmp_path)])
