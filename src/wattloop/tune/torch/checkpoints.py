"""Candidates on disk, so that a search that was killed goes on with what it has paid for."""

import re
from hashlib import sha256
from pathlib import Path
from typing import Any

from wattloop.core.errors import ConfigError

__all__ = ["Checkpoints"]

KEPT = 2
"""The last one may be ahead of what the search has noted."""


class Checkpoints:
    """Files `NAME-EPOCHS.pt` in one folder, the last two of each candidate."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(
                f"{folder}: no checkpoints can be written there ({error.strerror or error}); "
                "name another folder"
            ) from None

    def save(self, candidate: str, epochs: float, data: dict[str, Any]) -> None:
        """Write one; a kill in between leaves the ones before."""
        import torch

        path = self._path(candidate, epochs)
        partly = path.with_suffix(".partly")
        try:
            torch.save(data, partly)
            partly.replace(path)
        except (OSError, RuntimeError) as error:  # torch says a full disk with a RuntimeError
            partly.unlink(missing_ok=True)
            raise ConfigError(
                f"{path}: cannot be written ({error}); make room or name another folder"
            ) from error
        for old in self._all(candidate)[:-KEPT]:
            old.unlink(missing_ok=True)

    def load(self, candidate: str, epochs: float) -> dict[str, Any]:
        """What was saved after so many epochs.

        Raises:
            ConfigError: there is no such file, or it cannot be read.
        """
        import torch

        path = self._path(candidate, epochs)
        try:
            # Random states of Python and numpy are tuples and arrays; the file is our own.
            found: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=False)
        except FileNotFoundError:
            raise ConfigError(
                f"{path}: there is no checkpoint of {candidate!r} after {epochs:g} epochs; begin "
                "the search anew, or name the folder that it was begun with"
            ) from None
        except Exception as error:  # noqa: BLE001 - a damaged file raises anything
            raise ConfigError(f"{path}: cannot be read ({error}); begin the search anew") from None
        return found

    def forget(self, candidate: str) -> None:
        """Remove all of one candidate."""
        for path in self._all(candidate):
            path.unlink(missing_ok=True)

    def _path(self, candidate: str, epochs: float) -> Path:
        return self._folder / f"{_file_name(candidate)}-{epochs:013.6f}.pt"

    def _all(self, candidate: str) -> list[Path]:
        return sorted(self._folder.glob(f"{_file_name(candidate)}-??????.??????.pt"))


def _file_name(candidate: str) -> str:
    """Readable, and different for different candidates."""
    plain = re.sub(r"[^\w.]+", "_", candidate)[:40]
    return f"{plain}-{sha256(candidate.encode()).hexdigest()[:8]}"
