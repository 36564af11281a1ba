"""Training steps of small batches, which wait for the host, in rounds.

The host is no steady clock. Each step is taken once in every round, with all others in between, so
that what differs between rounds is the host's own, and what is left after them is the step's.
"""

from wattloop.predict.calibrate.case import Case

__all__ = ["ROUNDS", "WAITING", "waiting_cases"]

WAITING = (
    "resnet34@32 64 bf16", "bert_base@128 8 tf32", "bilstm_tagger@80 16 bf16",
    "llama_300m@512 1 bf16", "deit_small@224 8 tf32", "t5_small@256 4 bf16", "gru@100 16 tf32",
    "mobilenet_v2@32 64 tf32", "gpt2_medium@256 1 bf16", "tabular_resnet@64 256 tf32",
    "resnet34@32 64 tf32", "bert_base@128 8 bf16", "lstm_text@200 16 tf32",
    "llama_300m@512 1 tf32", "deit_small@224 8 bf16", "t5_small@256 4 fp32", "gru@100 16 bf16",
    "wide_resnet28_4@32 32 bf16", "bart_base@256 2 bf16", "resnet101@32 64 tf32",
    "electra_small@128 8 bf16", "bart_base@256 2 tf32",
)  # fmt: skip
"""Model, batch, precision."""
ROUNDS = 3


def waiting_cases() -> list[Case]:
    """Round after round."""
    return [
        Case(
            "waiting",
            "step",
            {"model": name, "batch": int(batch), "precision": precision, "round": number},
        )
        for number in range(1, ROUNDS + 1)
        for name, batch, precision in map(str.split, WAITING)
    ]
