"""Promises of card files: they describe a virtual card, and errors in them are named."""

from pathlib import Path

import pytest

from wattloop.core.errors import ConfigError
from wattloop.virtual.cards import CARDS, read_card, write_card
from wattloop.virtual.node import MODEL_VARIABLE, STATE_VARIABLE, shared_machine


def test_a_card_like_another_with_its_own_figures(tmp_path: Path) -> None:
    """Other figures stay unchanged, and every process that names the file sees the card."""
    path = tmp_path / "mine.json"
    card = write_card(path, "a100", idle_w=33.0, name="mine")
    assert (card.idle_w, card.name) == (33.0, "mine")
    assert card.memory_b == CARDS["a100"].memory_b
    environment = {STATE_VARIABLE: str(tmp_path / "state"), MODEL_VARIABLE: str(path)}
    (gpu,) = shared_machine(1, environment=environment).gpus
    assert gpu.model == card


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"idle": 3}', "no field 'idle'"),
        ('{"idle_w": "three"}', "idle_w"),
        ('{"idle_w": true}', "idle_w"),
        ('{"like": "z100"}', "z100"),
        ("[1]", "write an object"),
        ("{", "mine.json"),
    ],
)
def test_a_bad_file_is_refused(tmp_path: Path, text: str, said: str) -> None:
    """The error names the file and the field."""
    path = tmp_path / "mine.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=said):
        read_card(path)
