"""Promises of the models the suite trains."""

import pytest

torch = pytest.importorskip("torch", reason="the zoo is made of torch modules")

from wattloop.predict.calibrate.suite import (  # noqa: E402 - after the skip
    STEPS,
    WAITING,
)
from wattloop.predict.calibrate.zoo import NAMES, subject  # noqa: E402 - after the skip

PUBLISHED = {
    "mobilenet_v1@224": 4_231_976,
    "mobilenet_v2@224": 3_504_872,
    "efficientnet_b0@224": 5_288_548,
    "shufflenet_v2@224": 2_278_604,
    "convnext_tiny@224": 28_589_128,
    "resnet34@224": 21_797_672,
    "resnet101@224": 44_549_160,
    "resnext50@224": 25_028_904,
    "regnet_x_400mf@224": 5_495_976,
    "densenet121@224": 7_978_856,
    "alexnet@224": 61_100_840,
    "squeezenet@224": 1_235_496,
    "googlenet@224": 6_624_904,
    "darknet53@256": 41_609_928,
    "xception@299": 22_855_952,
}


@pytest.mark.parametrize(("name", "parameters"), PUBLISHED.items())
def test_networks_are_the_published_ones(name, parameters):
    """Parameter counts of torchvision's models of these names (MobileNet V1: of its paper).

    For Darknet-53 and Xception, which torchvision lacks, they are timm's.
    """
    with torch.device("meta"):
        model = subject(name).model
    assert sum(p.numel() for p in model.parameters()) == parameters


@pytest.mark.parametrize(
    "name",
    [
        "unet@32",
        "shufflenet_v2@32",
        "lstm_lm@5",
        "mixer_s16@224",
        "wide_resnet28_4@32",
        "bilstm_tagger@5",
        "lstm_text@5",
        "gru_speech@20",
        "dlrm@3",
        "tabular_resnet@8",
    ],
)
def test_a_call_gives_the_loss(name):
    """A call takes all inputs and returns a number with a gradient, as a step and a trace need."""
    with torch.device("meta"):
        made = subject(name)
        loss = made.model(*made.inputs(2, "meta"))
    assert loss.shape == ()
    assert loss.requires_grad


def test_every_step_names_a_model_of_the_zoo():
    """A case whose model is missing would fail on the GPU, after it was paid for."""
    assert {step.partition("@")[0] for step in (*STEPS, *WAITING)} <= set(NAMES)


def test_the_optimizer_follows_the_name():
    """The rule of the first measurements, so that rows of both can be compared."""
    with torch.device("meta"):
        assert subject("resnet34@224").optimizer == "sgd"
        assert subject("mobilenet_v2@224").optimizer == "adamw"


def test_an_unknown_model_is_refused():
    """It is not replaced by another one."""
    with pytest.raises(KeyError):
        subject("inception_v4@299")
