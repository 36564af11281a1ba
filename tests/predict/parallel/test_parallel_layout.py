"""Promises of layouts: read as written, and refused with a remedy where they do not divide."""

import pytest

from wattloop.core.errors import ConfigError
from wattloop.hardware.gpus import gpu_named
from wattloop.predict.parallel.layout import Layout, Links
from wattloop.predict.parallel.model import ParallelQuestion, predict_parallel


@pytest.mark.parametrize(
    ("text", "gpus", "layout"),
    [
        ("fsdp=8", None, Layout(dp=8, zero=3)),
        ("tp=4,pp=2,dp=16", None, Layout(dp=16, tp=4, pp=2)),
        ("tp=4,pp=2", 128, Layout(dp=16, tp=4, pp=2)),
        ("dp=8,zero=1", None, Layout(dp=8, zero=1)),
        ("dp=8,zero=3", None, Layout(dp=8, zero=3, flat=False)),
        ("fsdp=8,dp=4", None, Layout(dp=32, zero=3, shard=8)),
        ("hsdp=8x4", None, Layout(dp=32, zero=3, shard=8)),
        ("hsdp=8", 64, Layout(dp=64, zero=3, shard=8)),
        ("tp=8,sp,cp=2,ep=8,dp=4", None, Layout(dp=4, tp=8, cp=2, ep=8, sequence_parallel=True)),
        ("tp=2,pp=4,interleave=5", 8, Layout(tp=2, pp=4, chunks=5)),
    ],
)
def test_layouts_are_read_as_written(text: str, gpus: int | None, layout: Layout) -> None:
    assert Layout.parse(text, gpus) == layout


@pytest.mark.parametrize(
    "layout",
    [
        Layout(dp=8, zero=3),
        Layout(dp=32, zero=3, shard=8),
        Layout(dp=2, tp=4, pp=2, sequence_parallel=True, chunks=5, zero=1),
        Layout(dp=4, tp=2, cp=2, ep=8, zero=2),
        Layout(dp=8, zero=3, flat=False),
    ],
)
def test_the_text_of_a_layout_gives_it_back(layout: Layout) -> None:
    assert Layout.parse(str(layout)) == layout


@pytest.mark.parametrize(
    ("layout", "gpus", "problem"),
    [
        ("tp=4,pp=2", 12, "does not divide 12 GPUs; 8, 16"),
        ("tp=4,dp=4", 32, "is for 16 GPUs, and gpus is 32"),
        ("foo=3", None, "foo is not known; use dp, fsdp"),
        ("tp=x", None, "tp=x is not a whole number"),
        ("zero=4", None, "zero is 0"),
        ("tp=3", None, "does not divide the 32 heads.*choose 1, 2, 4, 8"),
        ("pp=5", None, "does not divide the 32 layers.*1, 2, 4, 8, 16, 32"),
        ("ep=4", None, "has no experts; leave ep out"),
        ("sp", None, "add tp=2"),
        ("interleave=2", None, "needs a pipeline"),
        ("fsdp=3,dp=2,cp=3", None, "not divisible into 6 parts; use --seq 2046"),
    ],
)
def test_layouts_that_do_not_divide_say_what_would(
    layout: str, gpus: int | None, problem: str
) -> None:
    question = ParallelQuestion(model="hf:llama-7b", layout=layout, gpus=gpus)
    with pytest.raises(ConfigError, match=problem):
        predict_parallel(question)


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"layout": "dp=2,pp=4", "global_batch": 4}, "fewer than the 4 stages.*--accumulate 4"),
        ({"layout": "dp=4", "global_batch": 6}, "not a multiple of 4 .* 8 would work"),
        ({"layout": "dp=2", "precision": "fp8", "gpu": "a100"}, "no such arithmetic; use bf16"),
        ({"layout": "dp=2", "seq": 4096}, "more than the 2048 positions.*--seq 2048"),
        ({"layout": "dp=2", "checkpointing": "some"}, "none, selective, half, full"),
        ({"layout": "dp=2", "cap_w": 90}, "can be set to 200 to 700 W"),
        ({"layout": "pp=2,interleave=2", "global_batch": 3}, "multiple of 2 micro-batches"),
    ],
)
def test_other_wrong_parts_are_named_with_a_remedy(fields: dict[str, object], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        predict_parallel(ParallelQuestion(model="hf:llama-7b", **fields))  # type: ignore[arg-type]  # values of several types


def test_groups_outside_a_node_share_its_network() -> None:
    links = Links.of(gpu_named("h100-sxm"), network_bytes_s=400e9)
    inside, across = links.group(8), links.group(8, stride=8)
    whole = links.group(16)
    assert inside.bytes_s == links.link_bytes_s
    # One GPU of each node: an eighth of what the node sends.
    assert across.bytes_s == pytest.approx(links.network_bytes_s / 8)
    assert whole.bytes_s == pytest.approx(min(links.link_bytes_s, links.network_bytes_s))
    assert whole.gather_s(1e9) < across.gather_s(1e9)


def test_a_ring_of_n_gpus_receives_the_parts_of_the_others() -> None:
    links = Links(8, link_bytes_s=100e9, network_bytes_s=50e9, hop_s=0.0, network_hop_s=0.0)
    assert links.group(4).gather_s(4e9) == pytest.approx(0.03)
    assert links.group(4).reduce_s(4e9) == pytest.approx(0.06)
    assert links.group(1).reduce_s(4e9) == 0.0
