"""Measurement of energy: sampling of meters, energy curves, windows and runs.

The package carries the name of its verb, so it can be called: `wattloop.measure("training")` is
`wattloop.measure.api.measure("training")`.
"""

import sys
from types import ModuleType
from typing import Any


class _CallableModule(ModuleType):
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        from wattloop.measure import api

        return api.measure(*args, **kwargs)


sys.modules[__name__].__class__ = _CallableModule
