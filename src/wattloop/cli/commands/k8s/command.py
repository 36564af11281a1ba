"""Commands of `wattloop k8s`."""

import os
import shlex
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

from wattloop.cli.app import StoreOptions, Verb, stopping
from wattloop.cli.cluster_driver import (
    INTERVAL,
    ClusterDriverOptions,
    Console,
    readings_of,
    store_of,
    would_have_rows,
)
from wattloop.cli.options import JsonFile, option, settings_of
from wattloop.cli.output import present, print_rows, say, write_json
from wattloop.cli.stored import nothing_yet, run_filter
from wattloop.core.errors import ConfigError
from wattloop.core.files import user_path
from wattloop.core.text import plain
from wattloop.core.units import format_duration, format_energy
from wattloop.schedule.driver.event_log import DriverLog, RoundReport
from wattloop.schedule.driver.inventory import SchedulerNode
from wattloop.schedule.driver.managed_cluster import (
    DriverSettings,
    ManagedCluster,
    build_managed_cluster,
)
from wattloop.schedule.driver.rounds import run_loop
from wattloop.store.runs import RunRecord, list_runs

if TYPE_CHECKING:
    from wattloop.fleet.kubernetes.api_client import ApiAddress

app = Verb(
    "Show the energy of pods, and let a policy order Jobs and Workloads of Kubernetes.",
    example="wattloop k8s energy --by namespace --since 1d\nwattloop k8s run --policy zeus",
)
GROUPS = ("namespace", "owner", "pod", "container")


@dataclass(frozen=True, kw_only=True)
class ApiOptions:
    """Options that name an API server; None means not given."""

    api: Annotated[
        str | None,
        option("--api URL", "API server (default: of the pod); http:// for 'kubectl proxy' only."),
    ] = None
    api_token_file: Annotated[
        str | None, option("--api-token-file FILE", "Token for it (default: the pod's).")
    ] = None
    api_ca_file: Annotated[
        str | None, option("--api-ca-file FILE", "Certificates that it is checked against.")
    ] = None
    namespace: Annotated[
        list[str] | None,
        option("--namespace -n NAME", "Whose Jobs are managed (may be repeated; default: all)."),
    ] = None
    kueue: Annotated[
        bool, option("--kueue", "Gate Workloads whose queue has our AdmissionCheck, too.")
    ] = False
    lease_namespace: Annotated[
        str | None, option("--lease-namespace NAME", "Where the Lease is (default: the pod's).")
    ] = None

    def address(self) -> "ApiAddress":
        from wattloop.fleet.kubernetes.api_client import ApiAddress

        if self.api is None:
            return ApiAddress.in_cluster()
        token, ca = self.api_token_file, self.api_ca_file
        return ApiAddress(
            url=self.api,
            token_file=None if token is None else user_path(token),
            ca_file=None if ca is None else user_path(ca),
        )


@dataclass(frozen=True, kw_only=True)
class KubernetesOptions(ApiOptions, ClusterDriverOptions):
    """Options of `k8s run`; None means not given."""

    drive: Annotated[
        bool, option("--drive/--observe", "Release Jobs; --observe only says what it would do.")
    ] = False
    interval: Annotated[float, INTERVAL] = 5.0
    lease: Annotated[
        float, option("--lease SECONDS", "A driver that is silent for so long counts as dead.")
    ] = 60.0


@app.command(
    "run",
    example="wattloop k8s run --policy zeus\n"
    "wattloop k8s run --policy charon --budget 4500W --drive",
)
def run_command(*, options: KubernetesOptions) -> None:
    """Let a policy decide when suspended Jobs and gated Workloads start.

    Without --drive it changes nothing. Jobs need the label wattloop.dev/managed=true.
    """
    from wattloop.accounting.grid import provider_from, read_forecast
    from wattloop.fleet.kubernetes.api_client import KubernetesClient
    from wattloop.schedule.kubernetes.driver import (
        DriverLease,
        KubernetesDriver,
        KubernetesObserver,
    )
    from wattloop.schedule.kubernetes.queue import PARTITION, KubernetesQueue, stamp
    from wattloop.schedule.policies.registry import policy_from

    policy = policy_from(options.policy)
    settings = DriverSettings(interval_s=options.interval, lease_s=options.lease, standby=False)
    client = KubernetesClient(options.address())
    queue = KubernetesQueue(client, options.namespace or (), kueue=options.kueue)
    provider = settings_of(options.config, needs=("carbon_provider",)).carbon_provider
    grid = provider_from(provider) if provider else None
    console = Console()
    rounds: list[RoundReport] = []
    with store_of(options) as store:
        asked = options.cluster_options((PARTITION,), store)

        def rebuild(nodes: "Sequence[SchedulerNode]") -> "ManagedCluster":
            return build_managed_cluster(nodes, asked, policy)

        site = rebuild(queue.nodes())
        console.introduce(site, policy.name, looks_only=not options.drive)
        log = DriverLog(user_path(options.log) if options.log else None, console.tell)
        with readings_of(options, site, log) as readings, stopping() as stop:
            known: dict[str, Any] = {
                **{"log": log, "settings": settings, "readings": readings, "rebuild": rebuild},
                "forecast": None if grid is None else lambda: read_forecast(grid),
            }
            runner: KubernetesDriver | KubernetesObserver
            if options.drive:
                lease = DriverLease(client, _lease_namespace(options), _holder(), options.lease)
                runner = KubernetesDriver(queue, site, policy, lease, **known)
            else:
                runner = KubernetesObserver(queue, site, policy, **known)

            def on_round(report: "RoundReport") -> None:
                rounds[:] = [report]
                console.round(report)

            run_loop(runner, stop, rounds=1 if options.once else None, on_round=on_round)
        log.close()
    last = rounds[-1].to_dict() if rounds else None
    data: dict[str, Any] = {"policy": policy.name, "drive": options.drive, "last": last}
    data["events"] = dict(log.counts)
    data["green"] = {
        key: {"start": stamp(found.advice.start_wall_s), "latest": stamp(found.latest_s)}
        | found.advice._asdict()
        for key, found in runner.green.advised.items()
    }
    if isinstance(runner, KubernetesObserver):
        data["would_have"] = [row.to_dict() for row in runner.table.rows.values()]
        data["commands"] = [list(words) for words in runner.commands]
        if options.json_file != "-":
            would_have_rows(runner.table)
            for words in runner.commands:
                sys.stdout.write(shlex.join(words) + "\n")
    write_json(data, options.json_file)


@app.command("release", example="wattloop k8s release --if-expired")
def release_command(
    *,
    if_expired: bool = option("--if-expired", "Only if no driver has renewed its Lease."),
    options: ApiOptions,
    json_file: JsonFile = None,
) -> None:
    """Release every managed Job and gated Workload that waits for a driver.

    The chart runs this every minute with --if-expired, so that nothing waits for a dead driver.
    """
    from wattloop.fleet.kubernetes.api_client import KubernetesClient
    from wattloop.schedule.kubernetes.driver import DriverLease
    from wattloop.schedule.kubernetes.queue import KubernetesQueue, release_all

    client = KubernetesClient(options.address())
    lease = DriverLease(client, _lease_namespace(options), "")
    if if_expired and not lease.is_expired():
        present(json_file, lambda: {"released": [], "refused": []},
                lambda: say("wattloop: a driver works; nothing is released"))  # fmt: skip
        return
    queue = KubernetesQueue(client, options.namespace or (), kueue=options.kueue)
    released, refused = release_all(queue, "released: no driver works")

    def show() -> None:
        for text in refused:
            say(f"wattloop: not released: {text}")
        sys.stdout.write(
            f"{len(released)} released{': ' if released else ''}{', '.join(released)}\n"
        )

    present(json_file, lambda: {"released": released, "refused": refused}, show)
    if refused:
        raise ConfigError(f"{len(refused)} still wait; see above, and run it again")


@app.command("energy", example="wattloop k8s energy --by owner --since 1d")
def energy_command(
    *,
    by: str = option("--by GROUP", "namespace, owner, pod or container.", "namespace"),
    since: str | None = option(
        "--since TIME", "Runs begun since 2026-05-01, '7 d' or 12h (default: all)."
    ),
    given: StoreOptions,
) -> None:
    """Show the measured energy of pods, most first, and what no pod used."""
    if by not in GROUPS:
        raise ConfigError(f"--by {by}: unknown; choose one of {', '.join(GROUPS)}")
    wanted = replace(run_filter(None, None, [], since=since), trials=True)
    with given.open_existing_store() as store:
        groups = None if store is None else energy_by(list_runs(store, wanted), by)
    if groups is None:
        say(nothing_yet(given.store, given.config))
        write_json({"by": by, "groups": []}, given.json_file)
        return
    rows = sorted(groups.values(), key=lambda one: -one["energy_j"])
    present(given.json_file, lambda: {"by": by, "groups": rows}, lambda: _show(rows, by))


UNUSED = "(no pod)"


def energy_by(records: "Iterable[RunRecord]", by: str) -> dict[str, dict[str, Any]]:
    """Return the energy of containers and of no container, added up by group."""
    found: dict[str, dict[str, Any]] = {}
    for record in records:
        facts = (record.job or {}).get("scheduler") or {}
        is_pod = record.kind == "kubernetes"
        if (
            record.result is None
            or not record.counted
            or not (is_pod or record.kind == "unallocated")
        ):
            continue
        names = {
            "namespace": ("namespace",),
            "owner": ("namespace", "owner_kind", "owner"),
            "pod": ("namespace", "pod"),
            "container": ("namespace", "pod", "container"),
        }[by]
        key = "/".join(str(facts.get(name) or "?") for name in names) if is_pod else UNUSED
        row = found.setdefault(
            plain(key),
            {
                **{"group": plain(key), "runs": 0, "pods": set(), "seconds": 0.0},
                **{"energy_j": 0.0, "gpu_j": 0.0, "cpu_j": 0.0, "dram_j": 0.0},
            },
        )
        row["runs"] += 1
        row["seconds"] += record.duration_s or 0.0
        row["energy_j"] += record.result.energy_j or 0.0
        row["gpu_j"] += record.result.gpu_energy_j or 0.0
        row["cpu_j"] += record.result.cpu_energy_j or 0.0
        row["dram_j"] += record.result.dram_energy_j or 0.0
        if is_pod:
            row["pods"].add(facts.get("pod_uid"))
    for row in found.values():
        row["pods"] = len(row["pods"])
    return found


def _show(rows: Sequence[dict[str, Any]], by: str) -> None:
    if not rows:
        say("wattloop: no run of a pod; see docs/kubernetes.md")
        return
    total_j = sum(row["energy_j"] for row in rows)
    print_rows(
        (by, "pods", "GPU", "CPU", "DRAM", "energy", "share", "time"),
        [
            (
                row["group"],
                str(row["pods"] or "-"),
                *(format_energy(row[name]) if row[name] else "-"
                  for name in ("gpu_j", "cpu_j", "dram_j", "energy_j")),
                f"{row['energy_j'] / total_j:.1%}" if total_j else "-",
                format_duration(row["seconds"]),
            )
            for row in rows
        ],
    )  # fmt: skip


def _lease_namespace(options: ApiOptions) -> str:
    return options.lease_namespace or options.address().namespace


def _holder() -> str:
    """Return a name of this driver: of its pod, which a restarted container keeps."""
    return os.environ.get("POD_NAME") or f"{os.uname().nodename}-{os.getpid()}"
