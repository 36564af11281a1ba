"""Promise: a causal model of Transformers is traced with the attention kernel it really uses."""

import pytest

from tests.support.libraries import library
from wattloop.predict.workload.operation import Kind
from wattloop.predict.workload.trace import trace

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
transformers = library("transformers", reason="Transformers is not installed")


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_causal_attention_stays_causal_and_unmasked(kind: str) -> None:
    """A trace has no packed sequences: the kernel is causal, without a mask that slows it down."""
    sizes = {"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4, "vocab_size": 99}
    config = transformers.CONFIG_MAPPING[kind](**sizes, num_key_value_heads=2, intermediate_size=64)
    config.use_cache = False
    with torch.device("meta"):
        module = transformers.AutoModelForCausalLM.from_config(config)
    ids = torch.empty((2, 16), dtype=torch.long, device="meta")
    workload = trace(module, {"input_ids": ids, "labels": ids}, precision="bf16")
    attention = [op.detail for op in workload.operations if op.kind is Kind.ATTENTION]
    assert attention
    assert all(d["causal"] and not d["masked"] and d["algorithm"] == "flash" for d in attention)
    if kind == "llama":
        assert {d["kv_heads"] for d in attention} == {2}
