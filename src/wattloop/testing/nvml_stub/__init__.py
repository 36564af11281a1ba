"""A stand-in for NVIDIA's management library, so that GPU code is tested where no GPU is.

with StubNvml(tmp_path, gpus=2) as stub:
    stub.square(0, low_w=100, high_w=600, period_s=0.1)
    ...measure through the real nvidia-ml-py...
    truth_j = stub.true_energy_j(0, begin_s, end_s)

Setters work as on a card: what they set is kept in a file that all processes share, so it outlives
whoever set it. `stub.settings(0)` tells what is set, `stub.inject(0, "lost")` breaks a card, and
`StubCards()` does both from another process.
"""

from wattloop.testing.nvml_stub.attached import CardSettings, StubCards
from wattloop.testing.nvml_stub.build import NoCompiler, build
from wattloop.testing.nvml_stub.controller import StubNvml
from wattloop.testing.nvml_stub.state import Call, Wave

__all__ = ["Call", "CardSettings", "NoCompiler", "StubCards", "StubNvml", "Wave", "build"]
