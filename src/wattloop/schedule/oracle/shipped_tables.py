"""Tables that come with the package, for a machine that has no others."""

from pathlib import Path

__all__ = ["CAPS", "THROUGHPUTS"]

_FOLDER = Path(__file__).with_name("tables")

THROUGHPUTS = _FOLDER / "predicted_throughputs.csv"
"""ResNet-18 and -50, BERT and GPT-2 on K80, P100, V100, A100 and H100, as `predict` sees them."""
CAPS = _FOLDER / "predicted_caps.csv"
"""What power limits do to them."""
