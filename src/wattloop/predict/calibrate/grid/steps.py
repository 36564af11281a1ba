"""Training steps of small models: which model, batch and precision."""

from wattloop.predict.calibrate.case import Case

__all__ = ["profile_cases", "step_cases"]

STEPS = (
    "mobilenet_v2@224 64 fp32", "densenet121@224 64 bf16", "bert_base@128 32 tf32",
    "convnext_tiny@224 64 bf16", "unet@128 16 tf32", "llama_300m@4096 2 bf16",
    "efficientnet_b0@224 64 tf32", "swin_tiny@224 64 tf32", "gru@100 512 tf32",
    "mobilenet_v1@224 128 bf16", "t5_small@256 32 bf16", "resnet101@224 64 tf32",
    "lstm_lm@35 80 fp32", "deit_small@224 64 fp32", "regnet_x_400mf@224 128 bf16",
    "resnext50@224 64 tf32", "gpt2_medium@256 8 bf16", "opt_125m@512 16 tf32",
    "mobilenet_v2@224 128 bf16", "lstm_deep@64 256 bf16", "unet@128 8 bf16",
    "resnet34@224 128 bf16", "shufflenet_v2@224 64 fp32", "bert_base@512 16 bf16",
    "resnet34@32 4096 tf32", "resnet101@224 128 bf16", "densenet121@224 128 tf32",
    "resnet101@32 1024 bf16", "unet@256 16 tf32", "resnext50@224 128 fp32",
    "mobilenet_v2@32 2048 bf16", "resnet34@224 256 tf32", "densenet121@32 1024 tf32",
    "convnext_tiny@224 128 bf16", "resnet34@32 1024 fp32", "regnet_x_400mf@224 256 tf32",
    "resnet101@224 128 fp32", "resnext50@32 2048 tf32", "efficientnet_b0@224 256 tf32",
    "resnet34@224 256 bf16", "resnet101@32 2048 tf32", "unet@256 16 fp32",
    "mobilenet_v1@224 256 tf32", "densenet121@224 128 bf16", "regnet_x_400mf@32 4096 bf16",
    "shufflenet_v2@224 256 tf32", "mobilenet_v1@32 4096 fp32", "resnet34@32 2048 bf16",
    "mixer_s16@224 64 bf16", "densenet121@224 32 tf32", "roberta_base@256 32 bf16",
    "convnext_tiny@224 32 fp32", "t5_small@256 16 fp32", "llama_300m@4096 1 tf32",
    "efficientnet_b0@224 128 bf16", "deit_small@224 128 bf16", "gru@100 64 fp32",
    "swin_tiny@224 64 bf16", "resnet101@224 64 bf16", "mobilenet_v1@224 64 fp32",
    "gpt2_medium@256 2 tf32", "regnet_x_400mf@224 64 fp32", "lstm_lm@35 20 bf16",
    "resnext50@224 64 bf16", "opt_125m@512 8 bf16", "mobilenet_v2@224 128 tf32", "unet@128 4 fp32",
    "resnet34@224 64 fp32", "deit_small@224 16 bf16", "convnext_tiny@224 64 tf32",
    "bert_base@128 64 bf16", "lstm_deep@64 64 tf32", "efficientnet_b0@224 64 fp32",
    "densenet121@224 16 fp32", "gru@100 2048 bf16", "mixer_s16@224 64 tf32",
    "roberta_base@256 16 tf32", "swin_tiny@224 16 fp32", "shufflenet_v2@224 128 bf16",
    "t5_small@256 32 tf32", "resnet101@224 16 fp32", "mobilenet_v2@32 512 tf32",
    "llama_300m@4096 1 fp32", "gpt2_medium@256 8 fp32", "regnet_x_400mf@224 32 tf32",
    "lstm_lm@35 256 tf32", "opt_125m@512 4 fp32", "resnext50@224 16 fp32",
    "mobilenet_v1@224 128 tf32", "bert_base@512 4 fp32", "mobilenet_v2@224 16 bf16",
    "resnet34@224 16 tf32", "efficientnet_b0@224 8 bf16", "unet@256 8 bf16",
    "convnext_tiny@224 8 bf16", "lstm_deep@64 32 fp32",
    "t5_gated@256 16 bf16", "googlenet@224 64 fp32", "qwen2_500m@512 2 bf16",
    "bilstm_tagger@80 64 tf32", "wide_resnet28_4@32 128 bf16", "bart_base@256 16 tf32",
    "dlrm@26 2048 fp32", "segformer_b0@224 32 bf16", "darknet53@256 16 tf32",
    "electra_small@128 32 bf16", "gru_speech@400 32 tf32", "pythia_160m@1024 4 bf16",
    "squeezenet@224 32 bf16", "whisper_tiny@128 8 tf32", "tabular_resnet@64 512 bf16",
    "xception@224 32 fp32", "mobilevit_small@256 32 tf32", "lstm_text@200 64 fp32",
    "alexnet@224 128 tf32", "llama_300m@512 2 bf16", "t5_gated@512 16 tf32",
    "wide_resnet28_4@32 512 fp32", "qwen2_500m@4096 1 tf32", "bart_base@1024 8 bf16",
    "darknet53@256 64 bf16", "electra_small@512 64 tf32", "googlenet@224 256 bf16",
    "bilstm_tagger@80 512 bf16", "segformer_b0@512 16 fp32", "pythia_160m@2048 8 tf32",
    "xception@224 128 bf16", "gru_speech@400 128 bf16", "dlrm@26 16384 bf16",
    "squeezenet@224 256 tf32", "whisper_tiny@128 32 bf16", "mobilevit_small@256 128 bf16",
    "lstm_text@200 512 bf16", "alexnet@224 512 bf16", "resnet34@32 128 fp32",
    "bart_base@256 4 fp32", "t5_small@512 32 fp32", "qwen2_500m@512 8 fp32",
    "darknet53@256 64 fp32", "electra_small@128 16 fp32", "wide_resnet28_4@32 1024 tf32",
    "segformer_b0@224 128 tf32", "pythia_160m@512 2 fp32", "whisper_tiny@128 4 fp32",
    "tabular_resnet@64 8192 tf32", "xception@224 64 tf32", "gru_speech@400 16 fp32",
    "squeezenet@224 64 fp32", "llama_300m@1024 8 bf16", "googlenet@224 128 tf32",
    "mobilevit_small@256 16 fp32", "bilstm_tagger@80 1024 fp32", "alexnet@224 64 fp32",
    "lstm_text@200 2048 tf32", "resnet101@32 64 bf16", "t5_gated@256 4 fp32",
)  # fmt: skip
"""Model, batch, precision; neighbours differ in kind, so that any part is a mixture."""
PROFILES = (0, 1, 3, 4, 6, 7, 9, 10, 12, 14, 15, 17, 20, 24)
"""Which of the steps are also profiled, operation by operation."""


def step_cases() -> list[Case]:
    """In the order of the list."""
    return [_case("steps", row) for row in STEPS]


def profile_cases() -> list[Case]:
    """A dozen and two, of all kinds."""
    return [_case("profile", STEPS[number]) for number in PROFILES]


def _case(section: str, row: str) -> Case:
    name, batch, precision = row.split()
    return Case(section, "step", {"model": name, "batch": int(batch), "precision": precision})
