"""Power-down states of idle GPUs and nodes: when they are entered, and what waking takes."""

from collections.abc import Iterable, Sequence
from heapq import heappush
from typing import NamedTuple

from wattloop.schedule.cluster.cluster import Cluster, SleepState
from wattloop.schedule.engine.machines import Machines, Nodes
from wattloop.schedule.engine.power_ledger import PowerLedger

SLEEP = 7
"""Event of the heap: a node's idle power may change. After all other events of its time."""
Entry = tuple[float, int, int, int]


class WakeUp(NamedTuple):
    """Duration of waking, and mean power of the GPUs that a job gets meanwhile."""

    time_s: float
    power_w: float


class _Timeline:
    """Power of a device by its idle time: awake, then each state, entered after its `after_s`."""

    def __init__(self, idle_w: float, states: Sequence[SleepState]) -> None:
        self.states = states
        self.times_s, self.powers_w = [0.0], [idle_w]
        for state in states:
            if state.enter_s:
                self.times_s.append(state.after_s)
                self.powers_w.append(state.enter_j / state.enter_s)
            self.times_s.append(state.after_s + state.enter_s)
            self.powers_w.append(state.power_w)
        self.first_s = states[0].after_s if states else float("inf")

    # Times are compared as the sums that `next_s` returns, so that rounding delays no change.

    def has_begun(self, since_s: float, now_s: float) -> bool:
        """Return True if the first state is entered, or has been."""
        return since_s + self.first_s <= now_s

    def power_w(self, since_s: float, now_s: float) -> float:
        passed = sum(since_s + time_s <= now_s for time_s in self.times_s)
        return self.powers_w[max(passed - 1, 0)]

    def next_s(self, since_s: float, now_s: float) -> float:
        """Return when the power changes next; infinite for never."""
        for time_s in self.times_s:
            if since_s + time_s > now_s:
                return since_s + time_s
        return float("inf")

    def wake(self, since_s: float, now_s: float) -> tuple[float, float]:
        """Return duration and energy of waking; a state that is being entered is entered first."""
        for state in reversed(self.states):
            if since_s + state.after_s <= now_s:
                left_s = max(since_s + state.after_s + state.enter_s - now_s, 0.0)
                left_j = state.enter_j * left_s / state.enter_s if left_s else 0.0
                return left_s + state.exit_s, left_j + state.exit_j
        return 0.0, 0.0


class _Idle(NamedTuple):
    """GPUs of a node that became idle together; in the future while their node boots."""

    since_s: float
    mask: int


class _Saved(NamedTuple):
    """Power of a node's host and idle GPUs below that of an awake node; its sleeping GPUs."""

    host_w: float = 0.0
    gpus_w: float = 0.0
    asleep: int = 0


class Sleepers:
    """Idle GPUs of all nodes by idle time, and the power that sleeping saves.

    The state of idle GPUs follows from their idle time. A node sleeps when all of its GPUs have
    been idle for long enough; its state then replaces those of its GPUs. A job that gets a
    sleeping GPU waits until it is awake. A node that boots draws all of its power as a host.

    Attributes:
        saved_w: power that sleeping saves now.
        wakes: number of starts that had to wait for a GPU or node.
    """

    def __init__(
        self, cluster: Cluster, machines: Machines, ledger: PowerLedger, heap: list[Entry]
    ) -> None:
        self._machines, self._ledger, self._heap = machines, ledger, heap
        types = [_Timeline(each.idle_w, each.sleeps) for each in cluster.types]
        groups = {group.name: _Timeline(group.host_w, group.sleeps) for group in cluster.groups}
        self._gpu = [types[index] for index in machines.node_type]
        self._node = [groups[group.name] for group in cluster.node_groups]
        nodes = len(machines.sizes)
        self._idle: list[list[_Idle]] = [[_Idle(0.0, mask)] for mask in machines.free_mask]
        self._boot: list[tuple[float, float]] = [(0.0, 0.0)] * nodes
        """End of each node's last boot, and its power meanwhile."""
        self._saved = [_Saved()] * nodes
        self._event_s = [0.0] * nodes
        self._asleep_gpu_s = [0.0] * len(types)
        self._since_s = [0.0] * nodes
        self.saved_w = 0.0
        self.wakes = 0
        for node in range(nodes):
            self.update(0.0, node)

    def most_awake(self, nodes: Iterable[int]) -> int:
        """Return the node with the GPUs that became idle last; of equals the last node."""
        idle = self._idle
        return max(nodes, key=lambda node: (max(idle[node], default=(0.0, 0))[0], -node))

    def without(self, node: int, mask: int, gpus: int) -> int:
        """Remove GPUs from a mask of idle ones, first those that became idle last."""
        for idle in sorted(self._idle[node], reverse=True):
            bits = idle.mask & mask
            while bits and gpus:
                mask ^= bits & -bits
                bits &= bits - 1
                gpus -= 1
        return mask

    def take(self, now_s: float, nodes: Nodes) -> WakeUp | None:
        """Give GPUs to a job; return how they wake up, None if all are awake."""
        time_s, parts = 0.0, list[tuple[float, float, float]]()
        for node, mask in nodes:
            boot_s = self._boots_s(now_s, node)
            gpu, left = self._gpu[node], list[_Idle]()
            for idle in self._idle[node]:
                if taken := (idle.mask & mask).bit_count():
                    wake_s, wake_j = (boot_s, 0.0) if boot_s else gpu.wake(idle.since_s, now_s)
                    parts.append((wake_s, taken * wake_j, taken * gpu.powers_w[0]))
                    time_s = max(time_s, wake_s)
                if rest := idle.mask & ~mask:
                    left.append(_Idle(idle.since_s, rest))
            self._idle[node] = left
            self.update(now_s, node)
        if not time_s:
            return None
        self.wakes += 1
        # a GPU that is awake before the others idles
        joules = sum(wake_j + idle_w * (time_s - wake_s) for wake_s, wake_j, idle_w in parts)
        return WakeUp(time_s, joules / time_s)

    def give(self, now_s: float, nodes: Nodes) -> None:
        """Add GPUs that a job has left."""
        for node, mask in nodes:
            self._idle[node].append(_Idle(max(now_s, self._boot[node][0]), mask))
            self.update(now_s, node)

    def move_node(self, now_s: float, node: int, *, is_up: bool) -> None:
        """Forget a node that fails, or add one that was repaired, awake."""
        self._boot[node] = (0.0, 0.0)
        self._idle[node] = [_Idle(now_s, self._machines.free_mask[node])] if is_up else []
        self.update(now_s, node)

    def update(self, now_s: float, node: int) -> None:
        """Enter the node's power of now into the ledger, and schedule its next change."""
        before, after = self._saved[node], self.saved(now_s, node)
        if after != before:
            host_w, gpus_w = after.host_w - before.host_w, after.gpus_w - before.gpus_w
            self._ledger.add_node_w(-host_w, -gpus_w)
            self.saved_w += host_w + gpus_w
            self._count(now_s, node)
            self._saved[node] = after
        next_s = self._next_s(now_s, node)
        if next_s < float("inf") and next_s != self._event_s[node]:
            self._event_s[node] = next_s
            heappush(self._heap, (next_s, SLEEP, node, 0))

    def asleep_gpu_s(self, now_s: float) -> tuple[float, ...]:
        """Return the GPU seconds of sleep by GPU type."""
        for node in range(len(self._saved)):
            self._count(now_s, node)
        return tuple(self._asleep_gpu_s)

    def saved(self, now_s: float, node: int) -> _Saved:
        """Compute what a node saves now."""
        gpu, idle = self._gpu[node], self._idle[node]
        idle_w, free = gpu.powers_w[0], sum(each.mask.bit_count() for each in idle)
        until_s, boot_w = self._boot[node]
        host_w, off = self._node[node].powers_w[0], self._node[node]
        if now_s < until_s:
            return _Saved(host_w - boot_w, idle_w * free, free)
        since_s = self._empty_since_s(node)
        if off.has_begun(since_s, now_s):
            return _Saved(host_w - off.power_w(since_s, now_s), idle_w * free, free)
        saved_w, asleep = 0.0, 0
        for since_s, mask in idle:
            if gpu.has_begun(since_s, now_s):
                saved_w += mask.bit_count() * (idle_w - gpu.power_w(since_s, now_s))
                asleep += mask.bit_count()
        return _Saved(0.0, saved_w, asleep)

    def idle_mask(self, node: int) -> int:
        return sum(each.mask for each in self._idle[node])

    def _boots_s(self, now_s: float, node: int) -> float:
        """Return how long a node still boots; begin if it sleeps."""
        if now_s < self._boot[node][0]:
            return self._boot[node][0] - now_s
        off, since_s = self._node[node], self._empty_since_s(node)
        if not off.has_begun(since_s, now_s):
            return 0.0
        wake_s, wake_j = off.wake(since_s, now_s)
        if wake_s:
            self._boot[node] = (now_s + wake_s, wake_j / wake_s)
        self._idle[node] = [_Idle(now_s + wake_s, each.mask) for each in self._idle[node]]
        return wake_s

    def _empty_since_s(self, node: int) -> float:
        """Return since when all GPUs of a node are idle; infinite if they are not."""
        idle = self._idle[node]
        if not self._node[node].states:
            return float("inf")
        if sum(each.mask.bit_count() for each in idle) < self._machines.sizes[node]:
            return float("inf")
        return max(idle)[0]

    def _next_s(self, now_s: float, node: int) -> float:
        """Return when the power of a node changes next, if nothing happens to it."""
        off, since_s = self._node[node], self._empty_since_s(node)
        if now_s < self._boot[node][0]:
            return self._boot[node][0]
        if off.has_begun(since_s, now_s):
            return off.next_s(since_s, now_s)
        nexts_s = [self._gpu[node].next_s(idle_s, now_s) for idle_s, _ in self._idle[node]]
        return min(since_s + off.first_s, *nexts_s, float("inf"))

    def _count(self, now_s: float, node: int) -> None:
        gpu_s = self._saved[node].asleep * (now_s - self._since_s[node])
        self._asleep_gpu_s[self._machines.node_type[node]] += gpu_s
        self._since_s[node] = now_s
