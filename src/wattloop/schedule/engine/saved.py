"""A simulation as a file: to go on later, or elsewhere."""

import hashlib
import os
import pickle
import tempfile
from pathlib import Path

from wattloop.core.errors import ConfigError

__all__ = ["load", "save"]

MAGIC = b"wattloop simulation 3\n"
DIGEST_BYTES = hashlib.sha256().digest_size


def save(thing: object, path: Path) -> None:
    """Write it whole or not at all: a file that is there can be loaded.

    Raises:
        ConfigError: it holds something that cannot be kept, such as a policy with a lambda.
    """
    try:
        payload = pickle.dumps(thing, protocol=pickle.HIGHEST_PROTOCOL)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ConfigError(
            f"{path}: this simulation cannot be saved: {error}; "
            "policies, oracles and objectives have to be made of named functions and classes"
        ) from error
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(MAGIC + hashlib.sha256(payload).digest() + payload)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def load(path: Path) -> object:
    """What was saved.

    Raises:
        ConfigError: there is no such file, it is damaged, or of another version.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    if not content.startswith(MAGIC):
        raise ConfigError(f"{path}: no simulation saved by this version; simulate again")
    digest, payload = content[len(MAGIC) :][:DIGEST_BYTES], content[len(MAGIC) + DIGEST_BYTES :]
    if hashlib.sha256(payload).digest() != digest:
        raise ConfigError(f"{path}: damaged (its checksum is wrong); simulate again")
    try:
        return pickle.loads(payload)
    except (pickle.UnpicklingError, AttributeError, ImportError) as error:
        raise ConfigError(f"{path}: names what is no longer there: {error}") from error
