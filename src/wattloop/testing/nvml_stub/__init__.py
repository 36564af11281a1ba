"""A stand-in for NVIDIA's management library, so that GPU code is tested where no GPU is.

with StubNvml(tmp_path, gpus=2) as stub:
    stub.square(0, low_w=100, high_w=600, period_s=0.1)
    ...measure through the real nvidia-ml-py...
    truth_j = stub.true_energy_j(0, begin_s, end_s)
"""

from wattloop.testing.nvml_stub.build import NoCompiler, build
from wattloop.testing.nvml_stub.controller import StubNvml
from wattloop.testing.nvml_stub.state import Call, Wave

__all__ = ["Call", "NoCompiler", "StubNvml", "Wave", "build"]
