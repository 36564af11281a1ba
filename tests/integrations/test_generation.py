"""Promises of the energy of Hugging Face `generate`, on small random models."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.integrations.conftest import Machine
from tests.support.libraries import library
from tests.support.synthetic_energy import about_j
from wattloop.integrations.generation import GenerationMeter

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
transformers = library("transformers", reason="transformers is not installed")

END = 63
PROMPTS = torch.arange(1, 9).reshape(2, 4)
MASK = torch.tensor([[0, 1, 1, 1], [1, 1, 1, 1]])


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    """Use one thread: on a busy machine threads wait for each other for seconds."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def gpt2() -> Any:
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=64, n_positions=64, n_embd=16, n_layer=1, n_head=2, bos_token_id=0,
        eos_token_id=END, pad_token_id=END,
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(config).eval()


class Streamer:
    """Collector of the tokens that `generate` streams."""

    def __init__(self) -> None:
        self.tokens: list[int] = []

    def put(self, value: Any) -> None:
        self.tokens += value.reshape(-1).tolist()

    def end(self) -> None:
        self.tokens.append(-1)


def test_prefill_and_decoding_of_a_batch(machine: Machine, gpt2: Any) -> None:
    """Promise: tokens are exact, and both parts together are the energy of the call."""
    with GenerationMeter(gpt2) as meter:
        gpt2.generate(PROMPTS, attention_mask=MASK, max_new_tokens=20, min_new_tokens=20)
        call = meter.last_call
        assert call is not None
        assert call.generated_token_j is not None  # readable while the meter is open
    assert meter.fault is None
    assert (call.prompt_tokens, call.generated_tokens, call.sequences) == (7, 40, 2)
    assert call.passes == 20
    assert call.energy_j == about_j(machine.power_w, call.duration_s, machine.driver, rel=0.3)
    assert call.prefill_j is not None
    assert call.decode_j is not None
    assert call.prefill_j + call.decode_j == pytest.approx(call.energy_j, rel=0.05)
    assert call.prefill_s + call.decode_s == pytest.approx(call.duration_s)
    assert call.generated_token_j == pytest.approx(call.energy_j / 40)
    assert call.decode_token_j == pytest.approx(call.decode_j / 38)
    assert call.prompt_token_j == pytest.approx(call.prefill_j / 7)
    assert meter.generated_token_j == call.generated_token_j
    assert set(call.to_dict()) >= {"prefill_j", "decode_token_j", "generated_tokens_per_s"}
    assert "40 tokens for" in repr(call)


def test_results_are_unchanged_by_the_meter(machine: Machine, gpt2: Any) -> None:
    """Promise: tokens, random numbers, streamed tokens and stopping criteria are unchanged."""
    ways: list[dict[str, Any]] = [
        {"max_new_tokens": 8},
        {"max_new_tokens": 8, "do_sample": True, "num_return_sequences": 3},
        {"max_new_tokens": 8, "num_beams": 4, "num_return_sequences": 2},
        {"max_new_tokens": 8, "return_dict_in_generate": True, "output_scores": True},
        {
            "stopping_criteria": transformers.StoppingCriteriaList(
                [transformers.MaxLengthCriteria(7)]
            )
        },
        {"max_new_tokens": 8, "use_cache": False},
    ]

    def all_ways() -> list[Any]:
        torch.manual_seed(1)
        outputs = [gpt2.generate(PROMPTS, attention_mask=MASK, **way) for way in ways]
        streamer = Streamer()
        gpt2.generate(PROMPTS[:1], max_new_tokens=5, streamer=streamer)
        tokens = [getattr(output, "sequences", output).tolist() for output in outputs]
        return [tokens, streamer.tokens, float(torch.rand(1))]

    expected = all_ways()
    with GenerationMeter(gpt2) as meter:
        found = all_ways()
    assert meter.fault is None
    assert found == expected
    assert all_ways() == expected
    assert "generate" not in vars(gpt2)
    assert [call.sequences for call in meter.calls] == [2, 6, 4, 2, 2, 2, 1]
    assert len(expected[0][4][0]) == 7


def test_tokens_end_with_the_end_of_a_sequence(machine: Machine, gpt2: Any) -> None:
    """Promise: padding after the end of a sequence is not counted as generated."""

    def ended(batch: int, input_ids: Any) -> list[int]:
        length = int(input_ids.shape[0])
        return [END] if batch == 0 and length >= 6 else [5]

    with GenerationMeter(gpt2) as meter:
        output = gpt2.generate(
            PROMPTS, attention_mask=MASK, max_new_tokens=10, prefix_allowed_tokens_fn=ended
        )
    assert output.shape == (2, 14)
    call = meter.last_call
    assert call is not None
    assert call.generated_tokens == 3 + 10


def test_other_inputs(machine: Machine, gpt2: Any) -> None:
    """Promise: embeddings, no prompt at all, and an assistant model are counted as well."""
    with GenerationMeter(gpt2) as meter:
        gpt2.generate(inputs_embeds=torch.randn(2, 5, 16), max_new_tokens=4, min_new_tokens=4)
        gpt2.generate(max_new_tokens=4, min_new_tokens=4, do_sample=True)
        gpt2.generate(
            PROMPTS[:1], assistant_model=gpt2, max_new_tokens=9, min_new_tokens=9, do_sample=False
        )
    assert meter.fault is None
    assert [call.generated_tokens for call in meter.calls] == [8, 4, 9]
    assert [call.prompt_tokens for call in meter.calls] == [10, None, 4]


def test_an_encoder_and_decoder(machine: Machine) -> None:
    torch.manual_seed(0)
    config = transformers.T5Config(
        vocab_size=64, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2,
        decoder_start_token_id=0, eos_token_id=END, pad_token_id=0,
    )  # fmt: skip
    model = transformers.T5ForConditionalGeneration(config).eval()
    with GenerationMeter(model) as meter:
        model.generate(input_ids=PROMPTS, max_new_tokens=6, min_new_tokens=6)
    call = meter.last_call
    assert call is not None
    assert (call.prompt_tokens, call.sequences, call.passes) == (8, 2, 6)
    assert call.generated_tokens == 12


def test_a_call_that_fails_raises_its_own_error(machine: Machine, gpt2: Any) -> None:
    with GenerationMeter(gpt2) as meter:
        with pytest.raises(ValueError, match="max_new_tokens"):
            gpt2.generate(PROMPTS, max_new_tokens=-4)
        gpt2.generate(PROMPTS, max_new_tokens=2)
    assert len(meter.calls) == 1


def test_a_fault_of_the_meter_leaves_the_model_alone(
    machine: Machine, gpt2: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Promise: the text is generated although its energy cannot be measured."""

    def broken(*_: object) -> None:
        raise ZeroDivisionError("oops")

    monkeypatch.setattr("wattloop.integrations.generation._generated", broken)
    with GenerationMeter(gpt2) as meter:
        assert gpt2.generate(PROMPTS, max_new_tokens=2).shape == (2, 6)
        assert gpt2.generate(PROMPTS, max_new_tokens=2).shape == (2, 6)
    assert meter.fault == "generate: ZeroDivisionError: oops"
    assert meter.calls == []
    assert "generate" not in vars(gpt2)


def test_calls_are_in_the_journal(machine: Machine, gpt2: Any) -> None:
    """Promise: each call is stored with its parts and tokens."""
    with GenerationMeter(gpt2):
        gpt2.generate(PROMPTS, max_new_tokens=3, min_new_tokens=3)
    (journal,) = machine.journals()
    steps = [event for event in journal.events if event["type"] == "step"]
    assert sorted(step["kind"] for step in steps) == ["decode", "generate", "prefill"]
    (whole,) = (step for step in steps if step["kind"] == "generate")
    assert whole["metrics"]["generated_tokens"] == 6
    assert whole["metrics"]["prompt_tokens"] == 8
