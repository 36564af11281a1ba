"""Slurm's prolog and epilog: shell scripts that report a job to the agent and never fail it."""

from importlib.resources import files
from pathlib import Path

from wattloop.core.errors import ConfigError
from wattloop.core.files import atomic_write

__all__ = ["HOOKS", "hook_text", "install_hooks"]
HOOKS = ("prolog", "epilog")
DEFAULT_WAIT_S = 2.0
_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._-{}@+,:=")


def hook_text(name: str, folder: str, wait_s: float = DEFAULT_WAIT_S) -> str:
    """Return the script `prolog` or `epilog` for agents whose folder is `folder`.

    `wait_s` is the longest time that a prolog waits for a power cap.

    Raises:
        ConfigError: the folder cannot be written into a script as it is.
    """
    if not folder.startswith("/") or set(folder) - _PLAIN or "{" in folder.replace("{node}", ""):
        raise ConfigError(
            f"--folder {folder}: name an absolute path of letters, digits and /._- such as "
            "/var/lib/wattloop/{node}"
        )
    text = files(__package__).joinpath(f"{name}.sh").read_text("utf-8")
    place = folder.replace("{node}", "${SLURMD_NODENAME}")
    return text.replace("@FOLDER@", place).replace("@LOOKS@", str(round(20 * wait_s)))


def install_hooks(target: Path, folder: str, wait_s: float = DEFAULT_WAIT_S) -> list[Path]:
    """Write both scripts into a directory, for `Prolog=` and `Epilog=` in slurm.conf."""
    written = []
    try:
        target.mkdir(parents=True, exist_ok=True)
        for name in HOOKS:
            path = target / f"wattloop-{name}"
            # atomic: a node may be running the old one just now
            atomic_write(path, hook_text(name, folder, wait_s), mode=0o755)
            written.append(path)
    except OSError as error:
        raise ConfigError(
            f"--install {target}: {error.strerror or error}; name a directory you may write"
        ) from None
    return written
