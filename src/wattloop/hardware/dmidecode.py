"""Ask the program dmidecode for the memory modules; only where the user says `dimms: dmidecode`."""

import subprocess

from wattloop.core.errors import CommandError
from wattloop.hardware.dimms import Dimm, dimms_from_dmidecode

__all__ = ["run_dmidecode"]


def run_dmidecode(program: str = "dmidecode", timeout_s: float = 10.0) -> tuple[Dimm, ...]:
    """Modules that dmidecode finds. It needs root; its own words are in the error if it fails.

    Raises:
        CommandError: it is not there, fails, or lists none.
    """
    try:
        done = subprocess.run(
            [program, "--type", "17"],
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
    except FileNotFoundError:
        raise CommandError(
            f"{program} is not installed; install it, or set 'dimms' (such as 8x32)", 127
        ) from None
    except PermissionError:
        raise CommandError(f"{program} may not be run by you; use sudo", 126) from None
    except subprocess.TimeoutExpired:
        raise CommandError(f"{program} did not answer in {timeout_s:g} s", 124) from None
    if done.returncode != 0:
        words = (done.stderr or done.stdout).strip().splitlines()
        last = words[-1] if words else "no message"
        raise CommandError(f"{program} failed: {last}; run it with sudo", done.returncode)
    dimms = dimms_from_dmidecode(done.stdout)
    if not dimms:
        raise CommandError(f"{program} lists no memory module; set 'dimms' (such as 8x32)", 1)
    return dimms
