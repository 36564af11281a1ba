"""Settings that runs of a program have learned, for its next run.

A small file for each program and kind of GPU, in a folder next to the store.
"""

import hashlib
import json
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from wattloop.cap.saving import LearnedSetting
from wattloop.core.errors import ConfigError
from wattloop.core.files import atomic_write_json, user_path
from wattloop.core.settings import Settings

VERSION = 1
VOLATILE = re.compile(
    r"--?(seed|random[-_]seed|output|out|output[-_]dir|save[-_]\w+|run[-_]?name|name|wandb\S*|"
    r"log\S*|resume\S*|checkpoint\S*|ckpt\S*|port|master[-_]port|master[-_]addr|rdzv\S*|"
    r"local[-_]rank|node[-_]rank|epochs?|num[-_]train[-_]epochs|max[-_]steps|steps|tensorboard\S*)"
)
"""Options that differ from run to run, or do not change what a step costs."""
INTERPRETERS = re.compile(r"(python|pypy)[\d.]*|torchrun|accelerate|deepspeed|mpirun|mpiexec|srun")


class ProgramKey(NamedTuple):
    """Identity of a program on some GPUs: by the content of its script, and by its path."""

    by_content: str
    by_path: str

    @classmethod
    def of(cls, command: Sequence[str], models: Sequence[str]) -> "ProgramKey":
        words, script = _lasting(command)
        path = "" if script is None else str(script)
        content = ""
        if script is not None:
            with suppress(OSError):
                content = hashlib.sha256(script.read_bytes()).hexdigest()
        shared = [words, list(models)]
        return cls(digest(["content", content or path, *shared]), digest(["path", path, *shared]))


def _lasting(command: Sequence[str]) -> tuple[list[str], Path | None]:
    """Return the arguments that matter for the cost of a step, and the script."""
    words: list[str] = []
    script: Path | None = None
    rest = list(command)
    while rest:
        word = rest.pop(0)
        name, separator, _ = word.partition("=")
        if VOLATILE.fullmatch(name):
            if not separator and rest and not rest[0].startswith("-"):
                rest.pop(0)
            continue
        path = Path(word)
        if script is None and not word.startswith("-") and path.suffix and path.is_file():
            script, word = path.resolve(), path.name
        elif not words:
            word = path.name  # the interpreter of another environment is the same program
        words.append(word)
    if script is None and command and not INTERPRETERS.fullmatch(Path(command[0]).name):
        path = Path(command[0])
        script = path.resolve() if path.is_file() else None
    return words, script


def digest(parts: Any) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


def learned_folder(settings: Settings) -> Path:
    """Return `<folder of the store>/saver`; a store on a server has none, the user's is used."""
    place = settings.store_location
    return user_path(Settings().store_location if "://" in place else place).parent / "saver"


def read_learned(folder: Path, program: ProgramKey) -> LearnedSetting | None:
    """Return what the last run of the same script learned, else of the same path."""
    for key in program:
        with suppress(OSError, ValueError, KeyError, TypeError, ConfigError):
            data = json.loads((folder / f"{key}.json").read_text("utf-8"))
            if data["version"] == VERSION:
                return LearnedSetting.from_dict(data["learned"])
    return None


def write_learned(folder: Path, program: ProgramKey, learned: LearnedSetting) -> None:
    """Write it for the next run; a folder that cannot be written only costs that run a search."""
    data: Mapping[str, Any] = {
        "version": VERSION,
        "written_wall_s": time.time(),
        "learned": learned.to_dict(),
    }
    with suppress(OSError):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for key in program:
            atomic_write_json(folder / f"{key}.json", data, mode=0o600)
