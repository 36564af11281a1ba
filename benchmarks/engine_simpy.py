"""The same jobs in SimPy: first in, first out, with GPUs, energy, users and a log of events."""

from collections import deque
from typing import Any

from engine_worlds import GPUS_PER_NODE, NODES
from wattloop.schedule.scenarios.scenario import World

__all__ = ["simpy_ends"]


class Cluster:
    """Free GPUs by node, and the cluster's power: the engine's state, in SimPy's style."""

    def __init__(self, environment: Any, world: World) -> None:
        self.environment = environment
        self.free = [list(range(GPUS_PER_NODE)) for _ in range(NODES)]
        self.nodes_with = [dict[int, None]() for _ in range(GPUS_PER_NODE + 1)]
        for node in range(NODES):
            self.nodes_with[GPUS_PER_NODE][node] = None
        self.idle_gpu_w = world.cluster.types[0].idle_w
        self.active_w, self.idle_w = 0.0, world.cluster.idle_w
        self.active_j = self.idle_j = self.peak_w = 0.0
        self.since_s = 0.0
        self.power: list[tuple[float, float]] = []
        self.log: list[tuple[float, int, int]] = []
        self.user_gpu_s = [0.0] * len(world.jobs.users)

    def draw(self, watts: float) -> None:
        """Start a GPU's work, or end it (negative): integrate power up to now."""
        passed_s = self.environment.now - self.since_s
        power_w = self.active_w + self.idle_w
        self.active_j += self.active_w * passed_s
        self.idle_j += self.idle_w * passed_s
        self.peak_w = max(self.peak_w, power_w)
        self.power.append((self.since_s, power_w))
        self.since_s = self.environment.now
        self.active_w += watts
        self.idle_w -= self.idle_gpu_w if watts > 0 else -self.idle_gpu_w

    def take(self) -> tuple[int, int]:
        """Allocate a GPU of the node with least to spare."""
        had = next(n for n, nodes in enumerate(self.nodes_with) if n and nodes)
        node, _ = self.nodes_with[had].popitem()
        self.nodes_with[had - 1][node] = None
        return node, self.free[node].pop()

    def give(self, node: int, gpu: int) -> None:
        """Free the GPU."""
        had = len(self.free[node])
        del self.nodes_with[had][node]
        self.nodes_with[had + 1][node] = None
        self.free[node].append(gpu)


class Gpus:
    """One `Resource` for all GPUs, whose queue is the waiting line: the leanest form of SimPy."""

    def __init__(self, environment: Any, cluster: Cluster, count: int) -> None:
        import simpy

        self._cluster = cluster
        self._all = simpy.Resource(environment, capacity=count)

    def hold(self, use: Any) -> Any:
        """Wait for a GPU, and use it."""
        with self._all.request() as request:
            yield request
            node, gpu = self._cluster.take()
            yield from use()
            self._cluster.give(node, gpu)


class GpusOfTheThesis:
    """A `Resource` for each GPU, and a scheduler that looks for idle ones (thesis 5.3.2.1)."""

    def __init__(self, environment: Any, cluster: Cluster, count: int) -> None:
        import simpy

        del cluster
        self._environment = environment
        self._gpus = [simpy.Resource(environment, capacity=1) for _ in range(count)]
        self._waiting: deque[Any] = deque()
        self._news = environment.event()
        environment.process(self._scheduler())

    def hold(self, use: Any) -> Any:
        """Wait for an assigned GPU, and use it."""
        turn = self._environment.event()
        self._waiting.append(turn)
        self._tell()
        gpu = yield turn
        with gpu.request() as request:
            yield request
            yield from use()
        self._tell()

    def _tell(self) -> None:
        if not self._news.triggered:
            self._news.succeed()

    def _scheduler(self) -> Any:
        while True:
            yield self._news
            self._news = self._environment.event()
            idle = [gpu for gpu in self._gpus if gpu.count == 0]
            while self._waiting and idle:
                self._waiting.popleft().succeed(idle.pop())


def simpy_ends(world: World, *, as_in_the_thesis: bool = False) -> list[float]:
    """Return the end of each job."""
    import simpy

    environment = simpy.Environment()
    cluster = Cluster(environment, world)
    gpus = (GpusOfTheThesis if as_in_the_thesis else Gpus)(
        environment, cluster, NODES * GPUS_PER_NODE
    )
    options = world.truth.options(world.jobs.kinds[0])
    sample_s, power_w = float(options.sample_s[0]), float(options.power_w[0])
    arrivals_s, works = world.jobs.arrival_s.tolist(), world.jobs.work.tolist()
    users, ends_s = world.jobs.user.tolist(), [0.0] * len(arrivals_s)
    energy_j = [0.0] * len(arrivals_s)

    def job(number: int) -> Any:
        cluster.log.append((environment.now, 0, number))

        def use() -> Any:
            cluster.draw(power_w)
            started_s = environment.now
            cluster.log.append((started_s, 1, number))
            yield environment.timeout(works[number] * sample_s)
            cluster.draw(-power_w)
            had_s = environment.now - started_s
            energy_j[number] = power_w * had_s
            cluster.user_gpu_s[users[number]] += had_s
            cluster.log.append((environment.now, 2, number))
            ends_s[number] = environment.now

        yield from gpus.hold(use)

    def arrivals() -> Any:
        for number, arrival_s in enumerate(arrivals_s):
            yield environment.timeout(max(arrival_s - environment.now, 0.0))
            environment.process(job(number))

    environment.process(arrivals())
    environment.run()
    return ends_s
