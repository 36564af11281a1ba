"""Text generation with Hugging Face `generate`: energy of prefill and decoding, per token.

from wattloop.integrations.generation import GenerationMeter

with GenerationMeter(model) as meter:
    model.generate(**tokenizer("Once", return_tensors="pt"), max_new_tokens=50)
print(meter.last_call.generated_token_j)
"""

from __future__ import annotations

import inspect
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Self

from wattloop.core.results import RunStatus, WindowResult
from wattloop.core.units import format_duration, format_energy
from wattloop.integrations.records import EpochRecord
from wattloop.integrations.step_timeline import Edge
from wattloop.integrations.torch_loop import EnergyMeter
from wattloop.measure.session import RunResult

SETTLE_S = 3.0
"""Longest wait for the readings after a call, when its energy is asked for."""
PATH_OF_ITS_OWN = ("custom_generate",)
"""Arguments that lead away from the loop of `generate`, which calls stopping criteria."""


class GenerationCall:
    """One call of `generate`.

    Prefill is everything until the first token of each sequence is there (the time to first
    token), decoding the rest. Energies wait for the readings when they are asked for.

    Attributes:
        prompt_tokens: of all prompts, without padding; None where the inputs are not tokens.
        generated_tokens: of all returned sequences, up to their end; None if not known.
        sequences: returned sequences: prompts x `num_return_sequences`.
        passes: tokens decoded one after the other; fewer with an assistant model.
        prefill, decode: time and energy of each; None where the two could not be told apart.
    """

    def __init__(self, whole: EpochRecord, settle: Callable[[], None]) -> None:
        self.whole = whole
        self.prefill: EpochRecord | None = None
        self.decode: EpochRecord | None = None
        self.prompt_tokens: int | None = None
        self.generated_tokens: int | None = None
        self.sequences: int | None = None
        self.passes = 0
        self._settle = settle

    @property
    def duration_s(self) -> float:
        return self._result(self.whole).duration_s

    @property
    def energy_j(self) -> float | None:
        return self._result(self.whole).energy_j

    @property
    def uncertainty_j(self) -> float:
        return self._result(self.whole).uncertainty_j

    @property
    def prefill_j(self) -> float | None:
        return None if self.prefill is None else self._result(self.prefill).energy_j

    @property
    def decode_j(self) -> float | None:
        return None if self.decode is None else self._result(self.decode).energy_j

    @property
    def prefill_s(self) -> float | None:
        return None if self.prefill is None else self._result(self.prefill).duration_s

    @property
    def decode_s(self) -> float | None:
        return None if self.decode is None else self._result(self.decode).duration_s

    @property
    def generated_token_j(self) -> float | None:
        """Energy of the whole call per generated token."""
        return _ratio(self.energy_j, self.generated_tokens)

    @property
    def prompt_token_j(self) -> float | None:
        """Energy of the prefill per prompt token."""
        return _ratio(self.prefill_j, self.prompt_tokens)

    @property
    def decode_token_j(self) -> float | None:
        """Energy of the decoding per token after the first of each sequence."""
        if self.generated_tokens is None or self.sequences is None:
            return None
        return _ratio(self.decode_j, self.generated_tokens - self.sequences)

    @property
    def generated_tokens_per_s(self) -> float | None:
        return _ratio(self.generated_tokens, self.duration_s)

    def __repr__(self) -> str:
        tokens = "unknown" if self.generated_tokens is None else f"{self.generated_tokens:,}"
        energy = "" if self.energy_j is None else f" for {format_energy(self.energy_j)}"
        return f"<generate: {tokens} tokens{energy} in {format_duration(self.duration_s)}>"

    def to_dict(self) -> dict[str, Any]:
        names = (
            *("prompt_tokens", "generated_tokens", "sequences", "passes", "duration_s"),
            *("energy_j", "uncertainty_j", "prefill_s", "prefill_j", "decode_s", "decode_j"),
            *("generated_token_j", "prompt_token_j", "decode_token_j", "generated_tokens_per_s"),
        )
        return {name: getattr(self, name) for name in names}

    def _result(self, part: EpochRecord) -> WindowResult:
        if not part.final:
            self._settle()
        return part.result


class GenerationMeter(EnergyMeter):
    """Energy of every `generate` call of a model, while the meter is open.

    The meter puts a wrapper around `model.generate` and adds a stopping criterion that stops
    nothing: it is called after each token, which is how prefill and decoding are told apart. On a
    GPU their edges are CUDA events. Results, streamers and random numbers are as without it. A
    fault of the meter is logged once, and the model generates on without being measured.

    Args:
        model: anything with the `generate` of transformers; a PEFT model or a pipeline's
            `pipe.model` as well.
        name: what the run is called.
        options: what `EnergyMeter` takes.
    """

    def __init__(self, model: Any, name: str = "generation", **options: Any) -> None:
        super().__init__(name, **options)
        self.calls: list[GenerationCall] = []
        self._model = model
        self._inner = threading.local()
        self._own: Any = None
        """The model's own `generate`, where it is not that of its class."""
        self._wrapped = False

    @property
    def last_call(self) -> GenerationCall | None:
        return self.calls[-1] if self.calls else None

    @property
    def generated_token_j(self) -> float | None:
        """Energy of all calls per generated token."""
        energies_j = [call.energy_j for call in self.calls]
        tokens = [call.generated_tokens for call in self.calls]
        if None in energies_j or None in tokens:
            return None
        return _ratio(sum(j or 0.0 for j in energies_j), sum(n or 0 for n in tokens))

    def begin(self) -> Self:
        super().begin()
        if not self._wrapped and self._usable():
            self._wrapped = True
            self._own = vars(self._model).get("generate")
            self._model.generate = self._wrapper(self._model.generate)
        return self

    def end(self, status: RunStatus = RunStatus.FINISHED) -> RunResult | None:
        if self._wrapped:
            self._wrapped = False
            if self._own is None:
                del self._model.generate
            else:
                self._model.generate = self._own
        return super().end(status)

    def _wrapper(self, generate: Callable[..., Any]) -> Callable[..., Any]:
        def measured(*args: Any, **kwargs: Any) -> Any:
            # some models call their own `generate` again
            if getattr(self._inner, "busy", False) or not self._usable():
                return generate(*args, **kwargs)
            self._inner.busy = True
            try:
                return self._measure(generate, args, kwargs)
            finally:
                self._inner.busy = False

        return measured

    def _measure(
        self, generate: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        clock = _TokenClock(self._mark_edge)
        given: Mapping[str, Any] = {}
        try:
            given = _arguments(generate, args) | kwargs
            prompt_tokens = _prompt_tokens(given)
            if not _goes_another_way(given):
                measured = _with_criterion(generate, args, kwargs, given, clock)
            else:
                measured = args, kwargs
            begin = self._mark()
        except Exception as error:  # noqa: BLE001 - the text matters more than its energy
            self._give_up("generate", error)
            return generate(*args, **kwargs)
        output = generate(*measured[0], **measured[1])
        try:
            end = self._mark()
            call = self._call(begin, clock.first, end)
            call.prompt_tokens, call.passes = prompt_tokens, clock.passes
            counted = _generated(output, self._model, given, clock.first_length)
            call.sequences, call.generated_tokens = counted
            self._add(call)
        except Exception as error:  # noqa: BLE001 - as above
            self._give_up("generate", error)
        return output

    def _mark_edge(self) -> Edge | None:
        try:
            return self._mark()
        except Exception as error:  # noqa: BLE001 - as above
            self._give_up("generate", error)
            return None

    def _call(self, begin: Edge, first: Edge | None, end: Edge) -> GenerationCall:
        number = len(self.calls)

        def part(kind: str, begin: Edge, end: Edge) -> EpochRecord:
            record = EpochRecord(number, begin, self._resolve_epoch, kind)
            record.end = end
            return record

        call = GenerationCall(part("generate", begin, end), self._settle)
        if first is not None:
            call.prefill = part("prefill", begin, first)
            call.decode = part("decode", first, end)
        return call

    def _add(self, call: GenerationCall) -> None:
        counts = {
            "prompt_tokens": call.prompt_tokens,
            "generated_tokens": call.generated_tokens,
            "sequences": call.sequences,
        }
        call.whole.metrics |= {name: float(n) for name, n in counts.items() if n is not None}
        call.whole.steps = call.passes
        self.calls.append(call)
        if self._resolver is not None:
            for part in (call.whole, call.prefill, call.decode):
                if part is not None:
                    self._resolver.add_epoch(part)

    def _settle(self) -> None:
        """Wait for the readings of the last call."""
        until_s = time.monotonic() + SETTLE_S
        last = self.calls[-1]
        while self._usable() and not _is_final(last) and time.monotonic() < until_s:
            if self._timeline is not None and last.whole.end is not None:
                self._timeline.wait(last.whole.end)
            if self._resolver is not None:
                self._resolver.resolve()
            if not _is_final(last):
                time.sleep(0.01)


class _TokenClock:
    """A stopping criterion that stops nothing and notes when the first token is there."""

    def __init__(self, mark: Callable[[], Edge | None]) -> None:
        self.first: Edge | None = None
        self.first_length = 0
        self.passes = 0
        self._mark = mark
        self._no: Any = None

    def __call__(self, input_ids: Any, scores: Any = None, **_: Any) -> Any:
        self.passes += 1
        if self.passes == 1:
            self.first = self._mark()
            self.first_length = int(input_ids.shape[-1])
        rows = input_ids.shape[0]
        if self._no is None or self._no.shape[0] != rows or self._no.device != input_ids.device:
            import torch

            self._no = torch.zeros(rows, dtype=torch.bool, device=input_ids.device)
        return self._no


def _is_final(call: GenerationCall) -> bool:
    return all(part is None or part.final for part in (call.whole, call.prefill, call.decode))


def _arguments(generate: Callable[..., Any], args: tuple[Any, ...]) -> dict[str, Any]:
    """Return positional arguments by name."""
    return dict(zip(inspect.signature(generate).parameters, args, strict=False)) if args else {}


def _goes_another_way(given: Mapping[str, Any]) -> bool:
    if any(given.get(name) is not None for name in PATH_OF_ITS_OWN):
        return True
    config = given.get("generation_config")
    chosen = given.get("cache_implementation", getattr(config, "cache_implementation", None))
    return bool(chosen == "paged")  # continuous batching, which refuses stopping criteria


def _with_criterion(
    generate: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    given: Mapping[str, Any],
    clock: _TokenClock,
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments with `clock` after the caller's own stopping criteria."""
    from transformers import StoppingCriteriaList

    criteria = StoppingCriteriaList([*(given.get("stopping_criteria") or ()), clock])
    if "stopping_criteria" in _arguments(generate, args):
        place = list(inspect.signature(generate).parameters).index("stopping_criteria")
        return (*args[:place], criteria, *args[place + 1 :]), kwargs
    return args, kwargs | {"stopping_criteria": criteria}


def _prompt_tokens(given: Mapping[str, Any]) -> int | None:
    mask = given.get("attention_mask")
    if mask is not None and mask.ndim == 2:
        return int(mask.sum())
    for name in ("input_ids", "inputs"):
        ids = given.get(name)
        if ids is not None and ids.ndim == 2 and not ids.is_floating_point():
            return int(ids.numel())
    embeds = given.get("inputs_embeds")
    return None if embeds is None else int(embeds.shape[0] * embeds.shape[1])


def _generated(
    output: Any, model: Any, given: Mapping[str, Any], first_length: int
) -> tuple[int | None, int | None]:
    """Return how many sequences `generate` returned, and their tokens up to their ends."""
    sequences = getattr(output, "sequences", output)
    if getattr(sequences, "ndim", 0) != 2:
        return None, None
    new = sequences[:, _prompt_length(model, given, first_length) :].detach().cpu()
    ends = _token_ids(model, given, "eos_token_id")
    # a row that another criterion ended is padded, too
    may_stop = given.get("stopping_criteria") or given.get("stop_strings")
    padding = _token_ids(model, given, "pad_token_id") if may_stop else set()
    return len(new), sum(_length(row.tolist(), ends, padding) for row in new)


def _prompt_length(model: Any, given: Mapping[str, Any], first_length: int) -> int:
    """Return how many tokens of a returned sequence were there before the first new one."""
    ids = given.get("input_ids", given.get("inputs"))
    if getattr(getattr(model, "config", None), "is_encoder_decoder", False):
        ids = given.get("decoder_input_ids")
    if ids is not None and ids.ndim == 2 and given.get("inputs_embeds") is None:
        return int(ids.shape[1])
    return max(first_length - 1, 0)


def _token_ids(model: Any, given: Mapping[str, Any], name: str) -> set[int]:
    """Return the ids of a special token as `generate` chooses them."""
    for source in (
        given,
        given.get("generation_config"),
        getattr(model, "generation_config", None),
    ):
        value = source.get(name) if isinstance(source, Mapping) else getattr(source, name, None)
        if value is not None:
            return set(value if isinstance(value, list | tuple) else [int(value)])
    return set()


def _length(row: list[int], ends: set[int], padding: set[int]) -> int:
    for place, token in enumerate(row):
        if token in ends:
            return place + 1
    while row and row[-1] in padding:
        row.pop()
    return len(row)


def _ratio(value: float | None, of: float | None) -> float | None:
    return value / of if value is not None and of is not None and of > 0 else None
