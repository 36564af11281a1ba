"""What one training step of your own model will take on a GPU you need not have."""

from torch import nn

from wattloop.predict import predict


class Classifier(nn.Module):
    def __init__(self, words: int = 30_000, width: int = 512, classes: int = 20) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        layer = nn.TransformerEncoderLayer(width, 8, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)
        self.scores = nn.Linear(width, classes)

    def forward(self, tokens):
        return self.scores(self.encoder(self.embedding(tokens)).mean(1))


forecast = predict(Classifier(), batch=64, seq=256, precision="bf16", gpu="h200")
step = forecast.prediction
print(f"{1e3 * step.step_s:.1f} ms, {step.power_w:.0f} W, {step.energy_j:.1f} J, {step.regime}")
print(f"{forecast.throughput_samples_s:.0f} samples/s; memory: {forecast.memory.words}")
print(*forecast.notes, *forecast.all_warnings, sep="\n")
