"""Promises of factories: a user's own model needs only a function that makes it."""

from pathlib import Path
from typing import Any

import pytest

from wattloop.core.errors import ConfigError
from wattloop.predict.sources.source import ModelSource, Sizes, find_source, is_saved_workload

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

SIZES = Sizes(batch=4, seq=12, image=32)
MODELS = """
import torch
from torch import nn

def cnn():
    pooled = nn.AdaptiveAvgPool2d(1), nn.Flatten()
    return nn.Sequential(nn.Conv2d(3, 8, 3), *pooled, nn.Linear(8, 10))

def mlp():
    return nn.Sequential(nn.Linear(20, 30), nn.ReLU(), nn.Linear(30, 1))

def lm():
    return nn.Sequential(nn.Embedding(50, 16), nn.Linear(16, 50))

class Tagger(nn.Module):
    def __init__(self, batch_first=True):
        super().__init__()
        self.rnn = nn.LSTM(6, 8, batch_first=batch_first)
        self.out = nn.Linear(8, 3)
    def forward(self, x):
        return self.out(self.rnn(x)[0])

def tagger(): return Tagger()
def slow_tagger(): return Tagger(batch_first=False)
def encoder(): return nn.TransformerEncoderLayer(16, 2, batch_first=True)

def sized(batch, width=5):
    return nn.Linear(width, 2), torch.zeros(batch, width)

def with_loss():
    return nn.Linear(5, 2), {"input": torch.zeros(7, 5)}, lambda y: y.sum()

class Pair(nn.Module):
    def forward(self, left, right):
        return left + right

def pair(): return Pair()
def on_gpu(): return nn.Linear(8, 2, device="cuda:0").to("cuda").cuda()
def looks(): return nn.Linear(int(torch.ones(3).sum().item()), 2)
def raises(): raise RuntimeError("no such checkpoint")
def leaves(): raise SystemExit(3)
def number(): return 42
def four(): return 1, 2, 3, 4
def needs(width): return nn.Linear(width, 2)
model = nn.Linear(4, 2)
notamodel = 3
"""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("own") / "models.py"
    path.write_text(MODELS)
    return path


def ran(source: ModelSource) -> Any:
    """Return the loss of one pass; shapes that do not fit would raise."""
    module = source.module.to("meta")
    if isinstance(source.inputs, dict):
        output = module(**{key: value.to("meta") for key, value in source.inputs.items()})
    else:
        output = module(*(value.to("meta") for value in source.inputs))
    assert source.loss is not None
    return source.loss(output)


@pytest.mark.parametrize(
    ("factory", "shape", "loss"),
    [
        ("cnn", (4, 3, 32, 32), "cross entropy over classes of the 4x10 output"),
        ("mlp", (4, 20), "mean squared error of the 4x1 output"),
        ("lm", (4, 12), "cross entropy over tokens of the 4x12x50 output"),
        ("tagger", (4, 12, 6), "mean squared error of the 4x12x3 output"),
        ("slow_tagger", (12, 4, 6), "mean squared error"),
        ("encoder", (4, 12, 16), "mean squared error"),
        ("model", (4, 4), "cross entropy over classes of the 4x2 output"),
    ],
)
def test_inputs_and_loss_are_guessed_from_the_layers(
    models: Path, factory: str, shape: tuple[int, ...], loss: str
) -> None:
    """Promise: a bare module is enough, the guess fits it, and notes say what was assumed."""
    source = find_source(f"{models}:{factory}", SIZES)
    assert isinstance(source.inputs, tuple)
    assert tuple(source.inputs[0].shape) == shape
    assert source.batch == 4
    assert "guessed from" in source.notes[0]
    assert ran(source).shape == ()
    assert loss in source.loss.note  # type: ignore[union-attr]  # a guessed loss has a note


def test_a_factory_that_puts_its_model_on_a_gpu_needs_none(models: Path) -> None:
    """`.cuda()` and `device="cuda"` work without a GPU, and nothing is allocated."""
    source = find_source(f"{models}:on_gpu", Sizes(batch=4))
    assert source.module.weight.device.type == "meta"


def test_sizes_that_were_not_stated_are_noted(models: Path) -> None:
    """Promise: every default is in a note."""
    notes = " ".join(find_source(f"{models}:cnn", Sizes()).notes)
    assert "batch: 8, as none was stated" in notes
    assert "image: 224, as none was stated" in notes


def test_a_factory_gets_the_sizes_it_has_parameters_for(models: Path) -> None:
    """Promise: a factory that makes its own inputs can still be swept over batches."""
    source = find_source(f"{models}:sized", SIZES)
    assert source.batch == 4
    assert ran(source).shape == ()


def test_inputs_and_loss_of_the_factory_are_taken(models: Path) -> None:
    """Promise: values that the factory returns are not guessed."""
    source = find_source(f"{models}:with_loss", Sizes())
    assert source.batch == 7
    assert source.notes == ()
    assert ran(source).shape == ()


def test_inputs_can_be_stated(models: Path) -> None:
    """Promise:

    `--input` states inputs that cannot be guessed, by name and with letters for sizes.
    """
    stated = ("left=float32[B,S]", "right=bfloat16[b, 12]")
    source = find_source(f"{models}:pair", SIZES, stated=stated)
    assert isinstance(source.inputs, dict)
    assert {k: tuple(v.shape) for k, v in source.inputs.items()} == {
        "left": (4, 12),
        "right": (4, 12),
    }
    assert source.inputs["right"].dtype == torch.bfloat16
    unnamed = find_source(f"{models}:pair", SIZES, stated=("float32[2]", "float32[2]"))
    assert isinstance(unnamed.inputs, tuple)


def test_weights_are_not_allocated_but_values_may_be_looked_at(models: Path) -> None:
    """Promise: modules are built without memory, unless the factory needs real tensors."""
    assert find_source(f"{models}:cnn", SIZES).module[0].weight.device.type == "meta"
    assert find_source(f"{models}:looks", SIZES).module.in_features == 3


def test_a_package_is_imported(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Promise: `torch:package.module:factory` finds packages in the working folder or installed."""
    monkeypatch.chdir(models.parent)
    monkeypatch.syspath_prepend(str(models.parent))
    assert find_source("torch:models:mlp", SIZES).batch == 4
    assert find_source("torch:torch.nn:Identity", SIZES, stated=("float32[B,3]",)).batch == 4


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{models}:nosuch", "no nosuch in it"),
        ("{models}:taggr", "did you mean tagger"),
        ("{models}", "name the function as well"),
        ("{models}:raises", "the factory failed with RuntimeError: no such checkpoint"),
        ("{models}:leaves", "the factory failed with SystemExit: 3"),
        ("{models}:number", "is a int, not a module of torch; return an nn.Module"),
        ("{models}:four", "returned 4 things"),
        ("{models}:needs", "its parameter width has no value"),
        ("{models}:notamodel", "is a int, not a function"),
        ("{models}:pair", "its forward takes left, right, too many to guess; state them"),
        ("nosuch.py:make", "no file nosuch.py"),
        ("torch:nosuch.models:make", "no module nosuch is installed"),
        ("gpt2", "write it as hf:gpt2"),
        ("package.module:make", "write it as torch:package.module:make"),
        ("nonsense", "not understood; write hf:NAME"),
    ],
)
def test_an_object_that_is_not_a_model_gets_a_remedy(models: Path, text: str, said: str) -> None:
    """Promise: the error names the model and the remedy."""
    with pytest.raises(ConfigError) as refused:
        find_source(text.format(models=models), Sizes())
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("stated", "said"),
    [
        (("x=float32",), "cannot be read; write it as"),
        (("x=real[3]",), "unknown type real; choose one of float32"),
        (("x=float32[B,Q]",), "Q is not a size"),
        (("x=float32[2]", "float32[2]"), "give every input a name, or none"),
        (("x=float32[2]", "x=float32[2]"), "the same name twice"),
    ],
)
def test_a_stated_input_that_cannot_be_read_is_an_error(
    models: Path, stated: tuple[str, ...], said: str
) -> None:
    """Promise: the error quotes the text, and shows the right form."""
    with pytest.raises(ConfigError) as refused:
        find_source(f"{models}:pair", Sizes(), stated=stated)
    assert said in str(refused.value)


def test_a_batch_that_disagrees_with_the_factorys_inputs_is_an_error(models: Path) -> None:
    """Promise: inputs of a fixed size are not silently predicted for another batch."""
    with pytest.raises(ConfigError, match="give the factory a parameter named batch"):
        find_source(f"{models}:with_loss", Sizes(batch=3))


def test_head_and_input_belong_to_their_kind(models: Path) -> None:
    """Promise: an option that would be ignored is refused."""
    with pytest.raises(ConfigError, match="only a model named hf:NAME"):
        find_source(f"{models}:mlp", SIZES, head="causal-lm")
    with pytest.raises(ConfigError, match="hf:gpt2 knows its inputs"):
        find_source("hf:gpt2", SIZES, stated=("float32[2]",))


def test_a_json_file_is_a_saved_workload() -> None:
    """Promise: `FILE.json` needs no torch; a configuration is named with hf:."""
    assert is_saved_workload("gpt2.json")
    assert not is_saved_workload("hf:folder/config.json")
    assert not is_saved_workload("models.py:make")
