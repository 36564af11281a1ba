"""Node power from the baseboard controller: `ipmitool dcmi power reading` on /dev/ipmi0."""

import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from wattloop.core.clock import Clock
from wattloop.core.errors import MeterUnavailable
from wattloop.core.records import Gap
from wattloop.meters.base import Context
from wattloop.meters.polling import STALE_S, UPDATE_PERIOD_S, PolledNode

COMMAND = ("dcmi", "power", "reading")
TIMEOUT_S = 10.0


def detect(context: Context) -> Sequence["Ipmi"]:
    """Only on request: the controller is slow to answer and usually open to root alone."""
    if not context.settings.ipmi:
        raise MeterUnavailable("ipmi", "not asked for", "set WATTLOOP_IPMI=yes to read node power")
    tool = shutil.which("ipmitool")
    if tool is None:
        raise MeterUnavailable(
            "ipmi",
            "ipmitool is not installed",
            "install it: 'sudo apt install ipmitool'",
            ("node",),
        )
    devices = [Path("/dev/ipmi0"), Path("/dev/ipmi/0"), Path("/dev/ipmidev/0")]
    present = [device for device in devices if device.exists()]
    if present and not os.access(present[0], os.R_OK | os.W_OK):
        raise MeterUnavailable(
            "ipmi",
            f"{present[0]} is not open to this user",
            f"run 'sudo chmod a+rw {present[0]}' or run as root",
            ("node",),
        )
    return [Ipmi(tool, context.clock)]


class Ipmi(PolledNode):
    """Runs ipmitool in a background thread."""

    name: ClassVar[str] = "ipmi"

    def __init__(
        self,
        tool: str,
        clock: Clock,
        *,
        period_s: float = UPDATE_PERIOD_S,
        stale_s: float = STALE_S,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        self._tool = tool
        self._timeout_s = timeout_s
        super().__init__(
            self._poll_w, clock, source="IPMI DCMI", period_s=period_s, stale_s=stale_s
        )

    def _poll_w(self) -> float | Gap:
        import subprocess

        try:
            done = subprocess.run(
                [self._tool, *COMMAND],
                capture_output=True,
                text=True,
                errors="replace",
                timeout=self._timeout_s,
                stdin=subprocess.DEVNULL,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return Gap(f"ipmitool gave no answer within {self._timeout_s:g} s")
        except OSError as error:
            return Gap(f"{self._tool}: {error.strerror}")
        if done.returncode != 0:
            said = (done.stderr or done.stdout).strip().splitlines()
            return Gap(f"ipmitool failed: {said[0] if said else f'exit code {done.returncode}'}")
        return parse_power_w(done.stdout)


def parse_power_w(text: str) -> float | Gap:
    """Parse the watts of `ipmitool dcmi power reading`."""
    match = re.search(r"Instantaneous power reading\s*:\s*(\d+(?:\.\d+)?)\s*Watts", text)
    if match is None:
        return Gap("ipmitool printed no instantaneous power reading")
    if re.search(r"Power reading state is\s*:\s*deactivated", text):
        return Gap("the controller's power reading is deactivated")
    power_w = float(match.group(1))
    if power_w == 0:
        # A node that runs this program draws something: controllers print 0 for "unknown".
        return Gap("the controller says 0 W, which means that it does not know")
    return power_w
