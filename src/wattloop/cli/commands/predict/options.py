"""Options of `wattloop predict` that describe a workload, and errors that name the option."""

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Annotated, Any

from wattloop.cli.options import file_option, option
from wattloop.core.errors import ConfigError
from wattloop.predict.request import PRECISIONS, Question
from wattloop.predict.sources.source import WAYS

Calibration = Annotated[
    str | None, option("--calibration FILE", "Constants of 'wattloop calibrate fit'.")
]
SaveWorkload = Annotated[
    str | None,
    file_option("--save-workload FILE.json", "Keep the trace: it predicts without torch."),
]


@dataclass(frozen=True, kw_only=True)
class WorkloadOptions:
    """The model, its input and its step; the GPU."""

    model: Annotated[str | None, option("--model -m MODEL", f"{WAYS}.")] = None
    batch: Annotated[
        int | None, option("--batch -b", "Samples of one pass on one GPU (default: 8).")
    ] = None
    seq: Annotated[int | None, option("--seq", "Tokens of a sample (default: 512).")] = None
    image: Annotated[
        int | None, option("--image", "Height and width in pixels (default: the model's).")
    ] = None
    precision: Annotated[
        str | None, option("--precision -p", f"{', '.join(PRECISIONS)} (default: fp32).")
    ] = None
    optimizer: Annotated[
        str | None,
        option("--optimizer", "adamw, adam, sgd, sgd+momentum, rmsprop (default: adamw)."),
    ] = None
    style: Annotated[
        str | None, option("--style", "loop, foreach or fused optimizer (default: foreach).")
    ] = None
    accumulate: Annotated[
        int | None, option("--accumulate", "Passes per optimizer step (default: 1).")
    ] = None
    compile: Annotated[
        str | None,
        option(
            "--compile MODE", "Under torch.compile: default or reduce-overhead (default: none)."
        ),
    ] = None
    inference: Annotated[bool, option("--inference", "Forward only.")] = False
    head: Annotated[
        str | None,
        option("--head", "Of hf:NAME: causal-lm, masked-lm, sequence-classification ..."),
    ] = None
    stated: Annotated[
        list[str] | None,
        option("--input NAME=TYPE[DIMS]", "Such as 'x=float32[B,3,224,224]'; repeatable."),
    ] = None
    gpu: Annotated[str, option("--gpu -g NAME", "Such as h200, a100, or my_gpu.yaml.")] = "h200"

    def named_model(self) -> str:
        if self.model is None:
            raise ConfigError(
                "model: say what to predict, such as --model hf:gpt2, or a measured run: --run last"
            )
        return self.model

    def question(self, **more: Any) -> "Question":
        """Return the request for a prediction; `more` are further fields."""
        if more.get("model") is None:
            self.named_model()
        given = {**asdict(self), **more}
        training, stated = not given.pop("inference"), tuple(given.pop("stated") or ())
        return Question(**given, training=training, stated=stated)


FIELDS = (
    "model|script|run|limit|gpus|gpu|batch|seq|image|precision|optimizer|style|accumulate|compile|cap|clock|head|input|"
    "samples-per-second|network|hop|exchange-power|host-speed|requests-per-s|estimator|calibration|sweep|compare|inference|steps|"
    "epochs|samples|plot|save-workload|concurrency|prompt|output|weights|tp|"
    "parallel|checkpointing|global-batch|objective|kernels|cluster"
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
