"""Promises of `hf:NAME`: published architectures, built from facts, without a download."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.libraries import library
from wattloop.core.errors import ConfigError
from wattloop.predict.sources.huggingface import (
    architecture,
    architecture_names,
    huggingface_source,
)
from wattloop.predict.sources.source import Sizes

library("transformers", reason="Transformers is not installed")

SMALL = Sizes(batch=2, seq=16, image=64)


def parameters(module: Any) -> int:
    return sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize(
    ("name", "published"),
    [
        ("gpt2", 124_439_808),
        ("opt-350m", 331_196_416),
        ("llama-7b", 6_738_415_616),
        ("tinyllama", 1_100_048_384),
        ("mistral-7b", 7_241_732_096),
        ("t5-small", 60_506_624),
        ("bart-base", 139_420_416),
        ("resnet-50", 25_557_032),
        ("mobilenet-v2", 3_504_872),
        ("efficientnet-b0", 5_288_548),
        ("regnet-y-032", 19_436_338),
        ("convnext-tiny", 28_589_128),
    ],
)
def test_parameters_are_as_many_as_published(name: str, published: int) -> None:
    """Promise: an entry of the table is the architecture of that name."""
    source = huggingface_source(name, SMALL)
    assert parameters(source.module) == published
    assert {p.device.type for p in source.module.parameters()} == {"meta"}


@pytest.mark.parametrize(
    ("name", "published"),
    [("vit-b-16", 86_567_656), ("swin-t", 28_288_354)],
)
def test_vision_transformers_have_as_many_at_their_own_size(name: str, published: int) -> None:
    """Promise: the same where the table of positions depends on the image."""
    assert parameters(huggingface_source(name, Sizes(batch=2)).module) == published


@pytest.mark.parametrize(
    ("name", "published"),
    [
        ("bert-base", 109_482_240),
        ("distilbert", 66_362_880),
        ("albert-base-v2", 11_683_584),
        ("roberta-base", 124_645_632),
    ],
)
def test_encoders_have_as_many_without_a_head(name: str, published: int) -> None:
    """Promise: `--head none` is the bare model, whose size is the commonly quoted one."""
    assert parameters(huggingface_source(name, SMALL, head="none").module) == published


@pytest.mark.parametrize(
    ("name", "head", "inputs"),
    [
        ("gpt2", "causal-lm", {"input_ids": (2, 16), "labels": (2, 16)}),
        ("distilbert", "sequence-classification", {"input_ids": (2, 16), "labels": (2,)}),
        ("t5-small", "seq2seq-lm", {"input_ids": (2, 16), "labels": (2, 16)}),
        ("resnet-18", "image-classification", {"pixel_values": (2, 3, 64, 64), "labels": (2,)}),
    ],
)
def test_the_usual_head_and_its_inputs_are_chosen(
    name: str, head: str, inputs: dict[str, tuple[int, ...]]
) -> None:
    """Promise: each kind of model gets its usual task, and the notes say so."""
    source = huggingface_source(name, SMALL)
    assert isinstance(source.inputs, dict)
    assert {key: tuple(tensor.shape) for key, tensor in source.inputs.items()} == inputs
    assert f"head: {head}" in source.notes


def test_another_head_can_be_asked_for() -> None:
    """Promise: `--head masked-lm` trains BERT on words, and labels have the shape for it."""
    source = huggingface_source("bert-base", SMALL, head="masked-lm")
    assert isinstance(source.inputs, dict)
    assert tuple(source.inputs["labels"].shape) == (2, 16)


def test_inference_has_no_labels() -> None:
    """Promise: a forward pass alone computes no loss."""
    source = huggingface_source("gpt2", SMALL, training=False)
    assert isinstance(source.inputs, dict)
    assert set(source.inputs) == {"input_ids"}


def test_sizes_that_were_not_stated_are_noted() -> None:
    """Promise: every default is in a note."""
    notes = " ".join(huggingface_source("gpt2", Sizes()).notes)
    assert "batch: 8, as none was stated" in notes
    assert "seq: 512 tokens, as none was stated" in notes


@pytest.mark.parametrize("spelling", ["GPT2", "openai-community/gpt2", "gpt2-small"])
def test_spellings_of_the_hub_are_understood(spelling: str) -> None:
    """Promise: organisation and case do not matter."""
    assert architecture(spelling) == architecture("gpt2")


def test_every_entry_is_a_configuration_that_can_be_made() -> None:
    """Promise: no name of the table leads to an error."""
    from transformers import CONFIG_MAPPING

    for name in architecture_names():
        entry = architecture(name)
        assert entry is not None
        kind = entry.pop("model_type")
        config = CONFIG_MAPPING[kind](**entry)
        for key, value in entry.items():
            assert getattr(config, key) == value, (name, key)


def test_a_config_file_and_its_folder_are_used(tmp_path: Path) -> None:
    """Promise: any configuration on disk predicts, under any file name."""
    tiny = {"model_type": "gpt2", "n_embd": 32, "n_layer": 1, "n_head": 2, "vocab_size": 100}
    (tmp_path / "config.json").write_text(json.dumps(tiny))
    for place in (tmp_path, tmp_path / "config.json"):
        source = huggingface_source(str(place), SMALL)
        assert source.module.config.n_embd == 32


def test_a_configuration_in_the_local_cache_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Promise: a downloaded configuration needs no file name, and a note says where it is."""
    snapshot = tmp_path / "models--ada--tiny" / "snapshots" / "0123"
    snapshot.mkdir(parents=True)
    (tmp_path / "models--ada--tiny" / "refs").mkdir()
    (tmp_path / "models--ada--tiny" / "refs" / "main").write_text("0123")
    tiny = {"model_type": "gpt2", "n_embd": 16, "n_layer": 1, "n_head": 2, "vocab_size": 100}
    (snapshot / "config.json").write_text(json.dumps(tiny))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    source = huggingface_source("ada/tiny", SMALL)
    assert source.module.config.n_embd == 16
    assert f"configuration from {snapshot / 'config.json'}" in source.notes


@pytest.mark.parametrize(
    ("name", "sizes", "head", "said"),
    [
        ("gtp2", SMALL, None, "did you mean hf:gpt2"),
        ("no/such/config.json", SMALL, None, "no file no/such/config.json"),
        ("gpt2", Sizes(seq=4096), None, "seq 4096: gpt2 has 1024 positions"),
        ("roberta-base", Sizes(seq=513), None, "roberta-base has 512 positions"),
        ("vit-b-16", Sizes(image=100), None, "patches of 16 pixels; choose a multiple"),
        ("resnet-50", SMALL, "causal-lm", "resnet has none; it has image-classification, none"),
        ("gpt2", SMALL, "poetry", "head poetry: unknown; choose one of causal-lm"),
    ],
)
def test_an_impossible_model_says_why(name: str, sizes: Sizes, head: str | None, said: str) -> None:
    """Promise: the error names the field and the remedy."""
    with pytest.raises(ConfigError) as refused:
        huggingface_source(name, sizes, head=head)
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "is not a configuration in JSON"),
        ("[]", "no model_type in it"),
        ('{"model_type": "hal9000"}', "model_type hal9000 is not known to transformers"),
        ('{"model_type": "gpt2", "n_embd": 30, "n_head": 7}', "cannot be built"),
    ],
)
def test_a_broken_config_file_is_an_error(tmp_path: Path, text: str, said: str) -> None:
    """Promise: a corrupted configuration is named, not a traceback."""
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=said):
        huggingface_source(str(path), SMALL)


def test_sizes_must_be_positive() -> None:
    """Promise: an empty batch is refused."""
    with pytest.raises(ConfigError, match="batch 0"):
        Sizes(batch=0)


def test_shipped_workloads_equal_fresh_traces() -> None:
    """scripts/make_workloads.py was run after the last change of the tracer."""
    from wattloop.predict.request import request_workload
    from wattloop.predict.workload.files import load_workload
    from wattloop.schedule.estimates.analytic import predict_question, shipped_workload
    from wattloop.schedule.jobs import JobKind

    vit = JobKind("hf:google/vit-base-patch16-224", "tf32")
    traced, saved = (
        request_workload(predict_question(vit, 64)),
        load_workload(shipped_workload(vit, 64)),
    )
    assert saved.operations == traced.operations
    assert (saved.peak_bytes, saved.gradient_bytes) == (traced.peak_bytes, traced.gradient_bytes)
