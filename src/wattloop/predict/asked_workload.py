"""From a question to its workload: read, remembered, or traced."""

from dataclasses import replace
from threading import Lock

from wattloop.core.errors import ConfigError
from wattloop.core.user_path import user_path
from wattloop.predict.question import PRECISIONS, Question
from wattloop.predict.trace_key import trace_key
from wattloop.predict.workload.workload import Workload

__all__ = ["asked_workload"]

_one_at_a_time = Lock()
"""Tracing sets torch's default device for a moment: two threads would disturb each other."""


def asked_workload(question: Question, *, cache: bool = False) -> Workload:
    """The operations of one step of what `question` names.

    Args:
        question: what runs; where does not matter here.
        cache: take a trace of `hf:NAME` from the user's cache folder, or keep it there.

    Raises:
        ConfigError: it cannot be found, read or traced; the message says why.
    """
    from wattloop.predict.sources.finding import is_saved_workload

    model = question.model
    if isinstance(model, Workload):
        return _as_asked(model, question, model.name)
    if isinstance(model, str) and is_saved_workload(model):
        from wattloop.predict.workload.files import load_workload

        path = user_path(model)
        if not path.is_file():
            raise ConfigError(
                f"model {model}: no such file; write a workload with --save-workload {model}"
            )
        workload = load_workload(path)
        if workload.precision not in PRECISIONS:
            raise ConfigError(
                f"model {model}: field 'precision' is '{workload.precision}', none of "
                f"{', '.join(PRECISIONS)}; trace the model again"
            )
        return _as_asked(workload, question, model)
    if not cache:
        return _traced(question)
    from wattloop.predict.workload.cache import kept_or_made

    return kept_or_made(trace_key(question), lambda: _traced(question))


def _traced(question: Question) -> Workload:
    from wattloop.predict.sources.finding import find_source
    from wattloop.predict.sources.libraries import quiet_libraries
    from wattloop.predict.sources.source import Sizes
    from wattloop.predict.workload.trace import trace

    sizes = Sizes(question.batch, question.seq, question.image)
    training = question.training
    if isinstance(question.model, str):
        source = find_source(
            question.model, sizes, head=question.head, stated=question.stated, training=training
        )
    else:
        from wattloop.predict.sources.factories import module_source

        source = module_source(
            type(question.model).__name__,
            question.model,
            sizes,
            inputs=question.inputs,
            loss=question.loss,
            stated=question.stated,
            training=training,
        )
    try:
        with _one_at_a_time, quiet_libraries():
            workload = trace(
                source.module,
                source.inputs,
                loss=source.loss,
                precision=question.precision or "fp32",
                optimizer=question.optimizer or "adamw",
                style=question.style or "foreach",
                training=training,
                accumulate=question.accumulate or 1,
                name=source.name,
            )
    except ConfigError as error:
        raise ConfigError(f"model {source.name}: {error}") from None
    said = (*source.notes, getattr(source.loss, "note", ""), *workload.notes)
    return replace(workload, batch=source.batch, notes=tuple(filter(None, said)))


def _as_asked(workload: Workload, question: Question, name: str) -> Workload:
    """A workload that was traced before cannot be of another batch or precision."""
    for field in ("batch", "precision", "optimizer", "style"):
        own = "optimizer_style" if field == "style" else field
        wanted, saved = getattr(question, field), getattr(workload, own)
        if wanted is not None and wanted != saved:
            raise ConfigError(
                f"{field} {wanted}: {name} was traced with {field} {saved}; leave it out, or "
                "trace the model itself"
            )
    for field in ("seq", "image", "head"):
        if getattr(question, field) is not None:
            raise ConfigError(
                f"{field} {getattr(question, field)}: {name} is traced already; trace the model "
                "itself to change it"
            )
    if question.stated or question.inputs is not None:
        raise ConfigError(f"input: {name} is traced already; trace the model itself to change it")
    if question.training != workload.training:
        # what forward alone would keep cannot be told from what it keeps for backward
        was, option = ("training", "with") if workload.training else ("inference", "without")
        raise ConfigError(
            f"inference: {name} was traced for {was}; trace the model itself {option} --inference"
        )
    return workload
