"""Programs that wait for requests: a GPU without work is then no waste of theirs."""

import re

from wattloop.advise.facts import RunFacts

__all__ = ["waits_on_purpose"]

WORDS = re.compile(
    r"(^|[^a-z])(serve|server|serving|vllm|tgi|triton|tritonserver|uvicorn|gunicorn|notebook|"
    r"jupyter|jupyterlab|ipython|streamlit|gradio|ollama|sglang|inference)([^a-z]|$)"
)


def waits_on_purpose(facts: RunFacts) -> bool:
    """Whether command, name or tags say that it answers requests or a person."""
    said = [*facts.command[:6], facts.record.name, *map(str, facts.record.tags.values())]
    return any(WORDS.search(word.lower()) for word in said)
