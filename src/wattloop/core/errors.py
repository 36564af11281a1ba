"""The exceptions of Wattloop.

    WattloopError
    ├── ConfigError          a setting, specification or argument is wrong
    ├── MeterUnavailable     a source of energy readings cannot be used here
    ├── GridUnavailable      a provider of carbon intensity or prices cannot be used
    ├── CommandError         the program to measure cannot be started
    ├── LeverError           a lever cannot be read, set or restored
    │   └── DeviceBusy       another process holds the device's levers
    ├── StrategyError        a strategy cannot continue from its input
    ├── ImpossibleAction     a scheduling policy asked for an impossible action
    ├── InvariantBroken      an invariant of a simulation failed
    ├── ClusterError         the scheduler of a cluster refuses a request
    │   ├── SlurmError       Slurm refuses a request
    │   │   └── SlurmAway    Slurm does not answer; it may later
    │   └── KubernetesError  Kubernetes refuses a request
    │       └── KubernetesAway   its API server or kubelet does not answer; it may later
    └── StoreError           runs cannot be stored or found
        ├── StoreUnwritable
        ├── StoreTooNew
        ├── StoreLocked
        ├── RunSenseless
        ├── RunNotFound
        └── ExperimentNotFound

Every message says what is wrong, where, and what to do next. Errors of other libraries are
translated where they are caught; a user never needs to know which library we use.
"""


class WattloopError(Exception):
    """Base of all errors that Wattloop raises on purpose."""


class ConfigError(WattloopError):
    """A setting, specification or argument is wrong; the message names it and the remedy."""


class MeterUnavailable(WattloopError):
    """A meter cannot be used on this machine.

    Args:
        meter: name of the meter, such as `rapl`.
        reason: what is missing, in one sentence, with the path or device concerned.
        remedy: the command or setting that would make it available; empty when nothing would.
        parts: domains a person would expect from this meter (`cpu:0/package`, `gpu:1`), so that
            they are reported as missing instead of silently left out.
    """

    def __init__(
        self, meter: str, reason: str, remedy: str = "", parts: tuple[str, ...] = ()
    ) -> None:
        super().__init__(f"{meter}: {reason}" + (f"; {remedy}" if remedy else ""))
        self.meter = meter
        self.reason = reason
        self.remedy = remedy
        self.parts = parts


class GridUnavailable(WattloopError):
    """A provider of carbon intensity or prices does not answer, or not with usable numbers."""


class CommandError(WattloopError):
    """The program to measure cannot be started.

    `exit_code` is what a shell would return: 127 for "not found", 126 for "not executable".
    """

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class LeverError(WattloopError):
    """A lever cannot be read, set or restored: no permission, device lost, or driver refuses."""


class DeviceBusy(LeverError):
    """Another living process holds the device; the message names it."""


class StrategyError(WattloopError):
    """A strategy cannot continue from its input, such as the events of another search."""


class ImpossibleAction(WattloopError):
    """A scheduling policy asked for an impossible action; the message says which policy, when and
    why.
    """


class InvariantBroken(WattloopError):
    """An invariant of a simulation failed: what was lost or used twice, and after which event."""


class ClusterError(WattloopError):
    """The scheduler of a cluster refused a request; `is_away` if it only did not answer."""

    is_away = False


class SlurmError(ClusterError):
    """Slurm refused a request; the message quotes it."""


class SlurmAway(SlurmError):
    """Slurm does not answer: slurmctld restarts, or cannot be reached. Ask again later."""

    is_away = True


class KubernetesError(ClusterError):
    """Kubernetes refused a request; `status` is that of HTTP, 0 where there is none."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class KubernetesAway(KubernetesError):
    """The API server or the kubelet does not answer, or not with sense. Ask again later."""

    is_away = True


class StoreError(WattloopError):
    """Runs cannot be stored or found."""


class StoreUnwritable(StoreError):
    """The store's path cannot be written: read-only, full, a directory, or no permission."""


class StoreTooNew(StoreError):
    """The store was written by a newer version of Wattloop."""


class StoreLocked(StoreError):
    """Another process has locked the store for longer than the timeout."""


class RunSenseless(StoreError):
    """The record of a run is invalid, or no database can hold it."""


class RunNotFound(StoreError):
    """No stored run has that identifier."""


class ExperimentNotFound(StoreError):
    """No stored sweep or search has that identifier."""
