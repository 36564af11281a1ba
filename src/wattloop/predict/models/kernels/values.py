"""Constants by dotted name, looked up from fine to coarse."""

from collections.abc import Iterable, Mapping

import numpy as np

from wattloop.predict.models.kernels.table import Floats

__all__ = ["Values"]


class Values:
    """Numbers by dotted name, `stream.efficiency.norm.batch.backward.bf16`.

    `look("stream.efficiency", "norm.batch.backward.bf16")` takes the finest name that is known:
    it leaves off parts from the end until one is found, down to `stream.efficiency` itself.
    """

    def __init__(self, numbers: Mapping[str, float]) -> None:
        self.numbers = dict(numbers)

    def __getitem__(self, name: str) -> float:
        return self.numbers[name]

    def look(self, name: str, scope: str = "") -> float:
        """The finest constant called `name` for this `scope`."""
        asked = f"{name}.{scope}" if scope else name
        while asked:
            value = self.numbers.get(asked)
            if value is not None:
                return value
            asked = asked.rpartition(".")[0]
        raise KeyError(f"{name}.{scope}")

    def column(self, name: str, scopes: Iterable[str]) -> Floats:
        """`look` for many scopes at once; each distinct one is looked up once."""
        scopes = list(scopes)
        found = {scope: self.look(name, scope) for scope in set(scopes)}
        return np.array([found[scope] for scope in scopes], dtype=np.float64)

    def with_changes(self, changes: Mapping[str, float]) -> "Values":
        """These constants with some of them replaced or added."""
        return Values({**self.numbers, **changes})
