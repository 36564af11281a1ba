"""Options of `wattloop predict`, and errors that name the option."""

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from wattloop.core.errors import ConfigError
from wattloop.predict.forecaster import ESTIMATORS
from wattloop.predict.request import PRECISIONS
from wattloop.predict.sources.model_name import WAYS

ModelName = Annotated[str, typer.Option("--model", "-m", metavar="MODEL", help=f"{WAYS}.")]


Batch = Annotated[
    int | None, typer.Option("--batch", "-b", help="Samples of one pass on one GPU (default: 8).")
]


Seq = Annotated[int | None, typer.Option("--seq", help="Tokens of a sample (default: 512).")]


Image = Annotated[
    int | None, typer.Option("--image", help="Height and width in pixels (default: the model's).")
]


Precision = Annotated[
    str | None,
    typer.Option("--precision", "-p", help=f"{', '.join(PRECISIONS)} (default: fp32)."),
]


Optimizer = Annotated[
    str | None,
    typer.Option("--optimizer", help="adamw, adam, sgd, sgd+momentum, rmsprop (default: adamw)."),
]


Style = Annotated[
    str | None,
    typer.Option("--style", help="loop, foreach or fused optimizer (default: foreach)."),
]


Accumulate = Annotated[
    int | None, typer.Option("--accumulate", help="Passes per optimizer step (default: 1).")
]


Inference = Annotated[bool, typer.Option("--inference", help="Forward only.")]


Head = Annotated[
    str | None,
    typer.Option("--head", help="Of hf:NAME: causal-lm, masked-lm, sequence-classification ..."),
]


Input = Annotated[
    list[str] | None,
    typer.Option(
        "--input", metavar="NAME=TYPE[DIMS]", help="Such as 'x=float32[B,3,224,224]'; repeatable."
    ),
]


GpuName = Annotated[
    str, typer.Option("--gpu", "-g", metavar="NAME", help="Such as h200, a100, or my_gpu.yaml.")
]


Gpus = Annotated[int, typer.Option("--gpus", help="How many train together, data parallel.")]


CapW = Annotated[
    float | None, typer.Option("--cap", metavar="WATTS", help="Power limit of each GPU.")
]


ClockMhz = Annotated[
    float | None, typer.Option("--clock", metavar="MHZ", help="Locked SM clock of each GPU.")
]


SamplesRate = Annotated[
    float | None,
    typer.Option(
        "--samples-per-second", metavar="RATE", help="The most the data loader brings to a GPU."
    ),
]


Network = Annotated[
    float | None,
    typer.Option("--network", metavar="GBIT", help="Gbit/s between nodes of 8, for more GPUs."),
]


HostSpeed = Annotated[
    float | None,
    typer.Option(
        "--host-speed", metavar="X", help="Of the host, as 'wattloop calibrate host' measures it."
    ),
]


EstimatorName = Annotated[str, typer.Option("--estimator", help=f"Model: {', '.join(ESTIMATORS)}.")]


Calibration = Annotated[
    str | None,
    typer.Option("--calibration", metavar="FILE", help="Constants of 'wattloop calibrate fit'."),
]


SaveWorkload = Annotated[
    str | None,
    typer.Option(
        "--save-workload", metavar="FILE.json", help="Keep the trace: it predicts without torch."
    ),
]


FIELDS = (
    "model|gpus|gpu|batch|seq|image|precision|optimizer|style|accumulate|cap|clock|head|input|"
    "samples-per-second|network|host-speed|estimator|calibration|sweep|compare|inference|steps|"
    "epochs|samples|plot|save-workload"
)


BEGINS_WITH_FIELD = re.compile(rf"({FIELDS})( .*)?: ", re.DOTALL)


@contextmanager
def with_options_named() -> Iterator[None]:
    """Rewrite errors `batch 0: must be ...` as `--batch 0: must be ...`."""
    try:
        yield
    except ConfigError as error:
        text = str(error)
        raise ConfigError(f"--{text}" if BEGINS_WITH_FIELD.match(text) else text) from None


@contextmanager
def with_axes_named(names: Iterable[str]) -> Iterator[None]:
    """Rewrite errors `cap 100: ...` as `sweep cap=100: ...`, and `gpu x: ...` as `compare x: ...`.

    A user who varies a field has not given the option of that name.
    """
    try:
        yield
    except ConfigError as error:
        text = str(error)
        field, _, rest = text.partition(" ")
        if field not in names:
            raise
        asked = f"compare {rest}" if field == "gpu" else f"sweep {field}={rest}"
        raise ConfigError(asked) from None
