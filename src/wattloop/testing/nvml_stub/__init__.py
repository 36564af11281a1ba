"""A stub of NVIDIA's management library, for tests without a GPU.

Setters work as on a card: values are in a file that all processes share, so they outlive the
process that set them. `stub.settings(0)` reads them, `stub.inject(0, "lost")` breaks a card, and
`StubCards()` does both from another process.
"""

from wattloop.testing.nvml_stub.attached import CardSettings, StubCards
from wattloop.testing.nvml_stub.build import NoCompiler, build
from wattloop.testing.nvml_stub.controller import StubNvml
from wattloop.testing.nvml_stub.state import Call, Wave

__all__ = ["Call", "CardSettings", "NoCompiler", "StubCards", "StubNvml", "Wave", "build"]
