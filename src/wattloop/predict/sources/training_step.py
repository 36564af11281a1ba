"""Source of a training step: a function, a Trainer of Hugging Face, or a Lightning module."""

import copy
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from wattloop.core.errors import ConfigError
from wattloop.predict.sources.source import needs_torch, quiet_libraries

if TYPE_CHECKING:
    from wattloop.predict.request import Question
    from wattloop.predict.workload.workload import Workload


@dataclass
class TrainingStep:
    """A training step that can be called without arguments.

    Attributes:
        name: what it is called in results.
        model: that it trains, None where only the step knows it.
        run: the step.
        optimizers: that it uses; empty where only the step knows them.
        precision, accumulate, compile, batch: as its trainer says; None where the step says it.
        notes: what was taken from where, for people.
        restore: called afterwards.
    """

    name: str
    model: Any
    run: Callable[[], Any]
    optimizers: list[Any] = field(default_factory=list)
    precision: str | None = None
    accumulate: int | None = None
    compile: str | None = None
    batch: int | None = None
    notes: tuple[str, ...] = ()
    restore: Callable[[], None] = lambda: None


def has_step(question: "Question") -> bool:
    """Return whether a request has a step of its own, or a model of a kind that has one."""
    return question.step is not None or _kind(question.model) != ""


def step_workload(question: "Question") -> "Workload":
    """Trace the step of a request.

    Raises:
        ConfigError: it cannot be called or traced; the message says why and what to do.
    """
    from wattloop.predict.workload.trace import trace

    torch = needs_torch("tracing a step")
    _refuse_unused(question)
    with _random_numbers_kept(torch), quiet_libraries():
        found = _found(question, torch)
        try:
            mode = question.compile or found.compile
            workload = trace(
                found.model,
                step=found.run,
                precision=question.precision or found.precision or "fp32",
                optimizer=found.optimizers or question.optimizer,
                style=question.style or "foreach",
                accumulate=question.accumulate or found.accumulate or 1,
                batch=question.batch or found.batch,
                name=found.name,
                compile=None if mode == "none" else mode,
            )
        except ConfigError as error:
            raise ConfigError(
                f"model {found.name}: {error}" if found.name else str(error)
            ) from None
        finally:
            found.restore()
    from dataclasses import replace

    return replace(workload, notes=(*found.notes, *workload.notes))


def _refuse_unused(question: "Question") -> None:
    for name in ("seq", "image", "head", "loss"):
        if getattr(question, name) is not None:
            raise ConfigError(f"{name}: a training step has its own; leave it out")
    if question.stated:
        raise ConfigError(f"input {question.stated[0]}: a training step has its own; leave it out")
    if not question.training:
        raise ConfigError("inference: a training step trains; predict the model without it")
    kind = _kind(question.model)
    if question.step is not None and kind:
        raise ConfigError(f"step: {kind} has one already; give one of both")
    if question.step is not None and not callable(question.step):
        raise ConfigError(
            f"step: is a {type(question.step).__name__}; give a function that makes one training "
            "step, such as step=lambda: train_step(batch)"
        )


def _found(question: "Question", torch: Any) -> TrainingStep:
    kind = _kind(question.model)
    if kind == "Trainer":
        return _of_trainer(question.model, question.inputs, torch)
    if kind == "LightningModule":
        return _of_lightning(question.model, question.trainer, question.inputs, torch)
    run = question.step
    assert run is not None
    if question.model is not None and not isinstance(question.model, torch.nn.Module):
        raise ConfigError(
            f"model: with a step it is the nn.Module that the step trains, or left out; this is a "
            f"{type(question.model).__name__}"
        )
    optimizers = [
        _without_wrappers(each)
        for each in _listed(question.optimizer)
        if hasattr(each, "param_groups")
    ]
    name = getattr(run, "__name__", "") or type(run).__name__
    if question.model is not None:
        name = type(question.model).__name__
    return TrainingStep(
        "step" if name == "<lambda>" else name,
        question.model,
        _with_inputs(run, question.inputs, torch),
        optimizers,
    )


def _kind(model: Any) -> str:
    """Return `Trainer` or `LightningModule`, by the classes of an object; nothing is imported."""
    for base in type(model).__mro__:
        package = base.__module__.partition(".")[0]
        if base.__name__ == "Trainer" and package == "transformers":
            return "Trainer"
        if base.__name__ == "LightningModule" and package in ("lightning", "pytorch_lightning"):
            return "LightningModule"
    return ""


def _with_inputs(run: Callable[..., Any], inputs: Any, torch: Any) -> Callable[[], Any]:
    """Return the step as a function without arguments."""
    try:
        parameters = list(inspect.signature(run).parameters.values())
    except (TypeError, ValueError):  # written in C
        parameters = []
    needed = [
        each.name
        for each in parameters
        if each.default is each.empty and each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
    ]
    if inputs is None:
        if needed:
            raise ConfigError(
                f"step: it takes {', '.join(needed)}; give inputs=(...) for them, or a function "
                "without arguments such as step=lambda: train_step(batch)"
            )
        return run
    batch = one_batch(inputs, torch)
    if isinstance(batch, Mapping) and set(needed) <= set(batch) and needed:
        return lambda: run(**batch)
    if isinstance(batch, (tuple, list)) and len(needed) != 1:
        return lambda: run(*batch)
    return lambda: run(batch)


def one_batch(inputs: Any, torch: Any) -> Any:
    """Return the first batch of a data loader; anything else as it is."""
    if isinstance(inputs, torch.utils.data.DataLoader):
        for batch in inputs:
            return batch
        raise ConfigError("inputs: the data loader is empty; give one that has a batch")
    return inputs


def _without_wrappers(optimizer: Any) -> Any:
    """Return the optimizer of torch inside one of Accelerate or Lightning."""
    inner = getattr(optimizer, "optimizer", None)
    return _without_wrappers(inner) if hasattr(inner, "param_groups") else optimizer


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


@contextmanager
def _random_numbers_kept(torch: Any) -> Iterator[None]:
    """Restore torch's random numbers after this context: data loaders draw from them."""
    state = torch.get_rng_state()
    try:
        yield
    finally:
        torch.set_rng_state(state)


# Trainer of Hugging Face, and those of TRL.


def _of_trainer(trainer: Any, inputs: Any, torch: Any) -> TrainingStep:
    args = trainer.args
    for name in ("deepspeed", "fsdp"):
        if getattr(args, name, None):
            raise ConfigError(
                f"model Trainer: its {name} shards the model over GPUs; leave {name} out of "
                "TrainingArguments to predict one GPU"
            )
    before = dict(vars(trainer))
    metrics = {name: copy.deepcopy(each) for name, each in before.items() if "metrics" in name}

    def restore() -> None:
        vars(trainer).clear()
        vars(trainer).update(before, **metrics)

    try:
        batch = inputs if inputs is not None else _batch_of(trainer)
        model = trainer.model
        optimizer = _without_wrappers(trainer.optimizer or trainer.create_optimizer())
    except BaseException:
        restore()
        raise
    low = "bf16" if args.bf16 else "fp16" if args.fp16 else None
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(low or "", torch.float32)

    def run() -> None:
        model.train()
        if args.gradient_checkpointing:
            options = args.gradient_checkpointing_kwargs
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=options)
        with torch.autocast("cuda", dtype=dtype, enabled=low is not None):
            loss = trainer.compute_loss(model, dict(batch))
        loss.backward()
        if args.max_grad_norm:
            torch.nn.utils.clip_grad_norm_(model.parameters(), args.max_grad_norm)
        optimizer.step()

    mode = getattr(args, "torch_compile_mode", None)
    return TrainingStep(
        name=type(model).__name__,
        model=model,
        run=run,
        optimizers=[optimizer],
        precision="tf32" if low is None and args.tf32 else None,
        accumulate=args.gradient_accumulation_steps,
        compile=_nearest_mode(mode) if args.torch_compile else None,
        notes=(
            f"{type(trainer).__name__}: batch {args.per_device_train_batch_size}, accumulate "
            f"{args.gradient_accumulation_steps}, optim {getattr(args.optim, 'value', args.optim)}"
            + (", gradient checkpointing" if args.gradient_checkpointing else ""),
        ),
        restore=restore,
    )


def _batch_of(trainer: Any) -> Any:
    if trainer.train_dataset is None:
        raise ConfigError(
            "model Trainer: it has no train_dataset to take a batch from; give one, or "
            "inputs={...}, a batch as its collator makes it"
        )
    for batch in trainer.get_train_dataloader():
        return batch
    raise ConfigError("model Trainer: its train_dataset is empty; give one that has a batch")


def _nearest_mode(mode: str | None) -> str:
    return "reduce-overhead" if mode == "reduce-overhead" else "default"


# Lightning.

_PRECISIONS = {"bf16-mixed": "bf16", "16-mixed": "fp16", "bf16": "bf16", "16": "fp16"}


def _of_lightning(module: Any, trainer: Any, inputs: Any, torch: Any) -> TrainingStep:
    trainer = trainer or getattr(module, "_trainer", None)
    name = type(module).__name__
    batch = _lightning_batch(name, module, inputs, torch)
    made = module.configure_optimizers()
    optimizers = _optimizers_of(made)
    if made is not None and not optimizers:
        raise ConfigError(f"model {name}: its configure_optimizers returns no optimizer")
    automatic = module.automatic_optimization
    if automatic and len(optimizers) > 1:
        raise ConfigError(
            f"model {name}: several optimizers need automatic_optimization = False, as in Lightning"
        )
    clip = getattr(trainer, "gradient_clip_val", None)

    def run() -> None:
        # Attributes of the module, which are restored after the trace.
        vars(module).update(
            log=_nothing,
            log_dict=_nothing,
            lr_schedulers=_nothing,
            toggle_optimizer=_nothing,
            untoggle_optimizer=_nothing,
            optimizers=lambda *_, **__: optimizers[0] if len(optimizers) == 1 else optimizers,
            manual_backward=lambda loss, *args, **more: loss.backward(*args, **more),
        )
        given = list(inspect.signature(module.training_step).parameters)
        result = module.training_step(*((batch, 0)[: len(given)]))
        if not automatic:
            return
        loss = result.get("loss") if isinstance(result, Mapping) else result
        if loss is None:
            raise ConfigError(f"model {name}: its training_step returns no loss for this batch")
        loss.backward()
        if clip:
            torch.nn.utils.clip_grad_norm_(module.parameters(), clip)
        if optimizers:
            optimizers[0].step()

    said = str(getattr(trainer, "precision", "32-true"))
    if said.endswith("-true") and said != "32-true":
        raise ConfigError(
            f"model {name}: precision {said} converts the weights when training begins; convert "
            "them before, as module.to(torch.bfloat16), and give a Trainer without it"
        )
    notes = () if trainer is None else (
        f"Trainer: precision {said}, accumulate {trainer.accumulate_grad_batches}"
        + (f", gradients clipped at {clip}" if clip else ""),
    )  # fmt: skip
    return TrainingStep(
        name=name,
        model=module,
        run=run,
        optimizers=optimizers,
        precision=_PRECISIONS.get(said),
        accumulate=None if trainer is None else trainer.accumulate_grad_batches,
        notes=notes,
    )


def _nothing(*_: Any, **__: Any) -> None:
    return None


def _lightning_batch(name: str, module: Any, inputs: Any, torch: Any) -> Any:
    if inputs is not None:
        return one_batch(inputs, torch)
    try:
        loader = module.train_dataloader()
    except Exception:  # noqa: BLE001 - Lightning's own error says less
        loader = None
    if loader is None:
        raise ConfigError(
            f"model {name}: give inputs=..., a batch or a DataLoader; it has no train_dataloader"
        )
    return one_batch(loader, torch)


def _optimizers_of(made: Any) -> list[Any]:
    """Return the optimizers among the results that `configure_optimizers` may have."""
    if hasattr(made, "param_groups"):
        return [made]
    if isinstance(made, Mapping):
        return _optimizers_of(made.get("optimizer"))
    if isinstance(made, (list, tuple)):
        nested = len(made) == 2 and all(isinstance(each, (list, tuple)) for each in made)
        return [one for each in (made[0] if nested else made) for one in _optimizers_of(each)]
    return []
