"""A stub of NVIDIA's management library, for tests without a GPU.

Setters work as on a card: values are in a file that all processes share, so they outlive the
process that set them. `stub.settings(0)` reads them, `stub.inject(0, "lost")` breaks a card, and
`StubCards()` does both from another process.
"""

from .attached import CardSettings, StubCards
from .build import NoCompiler, build
from .controller import StubNvml
from .state import Call, Wave

__all__ = ["Call", "CardSettings", "NoCompiler", "StubCards", "StubNvml", "Wave", "build"]
