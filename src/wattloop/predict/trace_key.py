"""Everything that determines the trace of a model named `hf:NAME`, found without loading torch."""

import json
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from wattloop.predict.question import Question
from wattloop.version import __version__

__all__ = ["trace_key"]

LIBRARIES = ("torch", "transformers")
ASKED = ("model", "batch", "seq", "image", "precision", "optimizer", "style", "head", "training")


def trace_key(question: Question) -> list[str] | None:
    """Parts of the key; None for what cannot be told without running code of the user's."""
    model = question.model
    if not isinstance(model, str) or not model.startswith("hf:") or question.stated:
        return None
    from wattloop.predict.sources.huggingface import configuration_named

    entry, notes = configuration_named(model.removeprefix("hf:"))
    try:
        libraries = [version(name) for name in LIBRARIES]
    except PackageNotFoundError:  # tracing says how to install it
        return None
    asked = [str(getattr(question, name)) for name in ASKED]
    # a saved workload is of so many passes; one and several differ in what a pass does
    passes = str(question.accumulate or 1)
    facts = json.dumps(entry, sort_keys=True, default=str)
    return ["hf", __version__, *libraries, *_code(), facts, *notes, *asked, passes]


def _code() -> list[str]:
    """Of which day the tracing code is: a clone changes without a new version."""
    folders = [Path(__file__).with_name(name) for name in ("workload", "sources")]
    files = sorted(path for folder in folders for path in folder.rglob("*.*") if path.is_file())
    return [
        f"{path.name}:{stat.st_size}:{stat.st_mtime_ns}"
        for path, stat in ((path, path.stat()) for path in files)
        if path.suffix in (".py", ".yaml")
    ]
