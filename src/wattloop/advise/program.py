"""The measured program: its command with a changed argument, and detection of servers."""

import re
import shlex
from collections.abc import Mapping, Sequence

from wattloop.advise.facts import RunFacts


def run_again(
    facts: RunFacts, *, options: Sequence[str] = (), more: Mapping[str, str] | None = None
) -> str:
    """Return `wattloop run -- CMD` with changed arguments; empty if it measured itself."""
    if not facts.command:
        return ""
    words = _changed(facts.command, more or {})
    return shlex.join(["wattloop", "run", *options, "--", *words])


def argument_number(command: Sequence[str], name: str) -> int | None:
    """The whole number that an argument has: `--batch-size 32`, `--batch-size=32`."""
    for place, word in enumerate(command):
        key, separator, value = word.partition("=")
        if key == name:
            text = value if separator else (list(command[place + 1 : place + 2]) or [""])[0]
            return int(text) if text.isdecimal() else None
    return None


def _changed(command: Sequence[str], more: Mapping[str, str]) -> list[str]:
    words = list(command)
    for place, word in enumerate(command):
        key, separator, _ = word.partition("=")
        if key not in more:
            continue
        if separator:
            words[place] = f"{key}={more[key]}"
        elif place + 1 < len(words):
            words[place + 1] = more[key]
    return words


WORDS = re.compile(
    r"(^|[^a-z])(serve|server|serving|vllm|tgi|triton|tritonserver|uvicorn|gunicorn|notebook|"
    r"jupyter|jupyterlab|ipython|streamlit|gradio|ollama|sglang|inference)([^a-z]|$)"
)


def waits_on_purpose(facts: RunFacts) -> bool:
    """Return True if command, name or tags say that it answers requests or a person."""
    said = [*facts.command[:6], facts.record.name, *map(str, facts.record.tags.values())]
    return any(WORDS.search(word.lower()) for word in said)
