"""Operations of a step under `torch.compile`: fused as Inductor fuses them.

The recorded calls of an eager step are AOTAutograd's joint graph before its decompositions. From
them this module makes the kernels of a compiled step in three stages:

1.  Composed operations are split the way Inductor's decompositions split them: a layer norm is a
    reduction of rows and a pointwise pass, a batch norm a reduction of columns and a pointwise
    pass, a cross entropy never writes its probabilities.
2.  A tensor that forward makes by pointwise operations is computed again in backward when the
    tensors it is made of take less memory than itself (the min-cut partition, decided greedily).
3.  Pointwise operations whose result no kernel needs in memory disappear into their consumers.
    What remains is fused where two kernels share tensors and loop over the same elements.

Matrix products, convolutions, attention and recurrent layers stay the library's kernels.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from wattloop.predict.workload.costs.call import Call, tensor_bytes
from wattloop.predict.workload.operation import DTYPE_BYTES, Kind, Operation, Phase

MODES = ("default", "reduce-overhead")
"""Modes of `torch.compile` that are predicted."""
POINTWISE, REDUCTION = "inductor.pointwise", "inductor.reduction"
"""Names of fused operations."""
MOST_READS = 4
"""Inductor writes a shared tensor to memory when its formula reads more tensors than this."""
LONGEST_ROW = 16_384
"""Rows up to this length are reduced and then used by one kernel."""
LOOPS = frozenset({"point", "joined", "rows", "long_rows", "columns"})
"""Forms that Inductor generates loops for."""
JOINING = frozenset({"aten.cat", "aten.stack"})
"""Operations whose every element looks for the tensor that it comes from."""
FUSED_KINDS = frozenset(
    {Kind.CONV, Kind.ELEMENTWISE, Kind.COPY, Kind.RANDOM, Kind.REDUCTION, Kind.NORM, Kind.SOFTMAX,
     Kind.LOSS, Kind.POOL, Kind.EMBEDDING, Kind.INDEX}
)  # fmt: skip


class Read(NamedTuple):
    """Part of a value that a kernel reads."""

    value: int
    part: tuple[object, ...]
    bytes: float


@dataclass
class Step:
    """One primitive operation.

    Its form is `point`, `joined` (a pointwise choice of several tensors), `rows`, `long_rows` or
    `columns` (reductions), `scatter` or `extern` (a library's).

    Attributes:
        shape: of its loop.
        reads, writes: values; the bytes of each written one are in `StepGraph.sizes`.
        operations: the library's kernels, where it is `extern`.
        repeatable: False where it cannot be computed twice, such as random numbers.
        from_memory: its inputs are written to memory first: each element is read several times.
    """

    form: str
    phase: Phase
    module: str
    dtype: str
    elements: int
    reads: tuple[Read, ...]
    writes: tuple[int, ...]
    flops: float = 0.0
    operations: tuple[Operation, ...] = ()
    repeatable: bool = True
    from_memory: bool = False


@dataclass
class StepGraph:
    """Recorder of the calls of a step with the tensors that connect them.

    Attributes:
        steps: primitive operations in order.
        sizes: value -> bytes.
        calls: recorded, views apart; what compiling takes time for.
    """

    steps: list[Step] = field(default_factory=list)
    sizes: list[float] = field(default_factory=list)
    calls: int = 0
    _current: dict[int, int] = field(default_factory=dict)

    def add(self, call: Call, operations: Sequence[Operation], *, inside: bool) -> None:
        """Record a call; `inside` the compiled model, or else in the eager code around it."""
        reads = tuple(self._read(each) for each in call.inputs)
        known = {each.untyped_storage()._cdata for each in call.inputs}
        in_place = call.name.endswith("_") and not call.name.endswith("__")
        if operations and all(each.kind is Kind.VIEW for each in operations):
            for each in call.outputs:
                if each.untyped_storage()._cdata not in known:
                    self._written(each)
            return
        self.calls += 1
        written = []
        for number, each in enumerate(call.outputs):
            fresh = each.untyped_storage()._cdata not in known
            if fresh or (in_place and number == 0):
                written.append((self._written(each), each))
        if in_place and not call.outputs and call.inputs:
            written.append((self._written(call.inputs[0]), call.inputs[0]))
        made = _Expansion(self, call, tuple(operations), reads, tuple(written))
        self.steps += made.steps() if inside else made.extern()

    def new_value(self, size: float) -> int:
        self.sizes.append(size)
        return len(self.sizes) - 1

    def _written(self, tensor: Any) -> int:
        storage = tensor.untyped_storage()
        value = self._current[storage._cdata] = self.new_value(float(storage.nbytes()))
        return value

    def _read(self, tensor: Any) -> Read:
        key = tensor.untyped_storage()._cdata
        if key not in self._current:  # a parameter, buffer or input
            self._written(tensor)
        part = (tensor.storage_offset(), tuple(tensor.shape))
        return Read(self._current[key], part, float(tensor_bytes(tensor)))


@dataclass
class _Expansion:
    """Steps of one call."""

    graph: StepGraph
    call: Call
    operations: tuple[Operation, ...]
    reads: tuple[Read, ...]
    written: tuple[tuple[int, Any], ...]

    def steps(self) -> list[Step]:
        if not self.operations:
            return []
        first = self.operations[0]
        if not all(each.ruled and each.kind in FUSED_KINDS for each in self.operations):
            return self.extern()
        split = {
            Kind.CONV: self._conv,
            Kind.NORM: self._norm,
            Kind.SOFTMAX: self._softmax,
            Kind.LOSS: self._loss,
            Kind.REDUCTION: self._reduction,
            Kind.EMBEDDING: self._embedding,
            Kind.INDEX: self._index,
            Kind.POOL: self._pool,
        }.get(first.kind, self._pointwise)
        return split(first)

    def extern(self) -> list[Step]:
        made = self._step("extern", self.reads, self.outputs)
        return [replace(made, operations=self.operations)]

    @property
    def outputs(self) -> tuple[int, ...]:
        return tuple(value for value, _ in self.written)

    def _step(
        self, form: str, reads: Sequence[Read], writes: Sequence[int], elements: int | None = None
    ) -> Step:
        return Step(
            form=form,
            phase=self.call.phase,
            module=self.call.module,
            dtype=self.call.dtype,
            elements=self.call.elements if elements is None else elements,
            reads=tuple(reads),
            writes=tuple(writes),
        )

    def _whole(self, value: int) -> Read:
        return Read(value, (), self.graph.sizes[value])

    def _pointwise(self, op: Operation) -> list[Step]:
        made = self._pointwise_of(self.reads)
        if op.op in JOINING:
            made = replace(made, form="joined")
        return [replace(made, flops=op.flops, repeatable=op.kind is not Kind.RANDOM)]

    def _pointwise_of(self, reads: Sequence[Read]) -> Step:
        elements = max((each.numel() for _, each in self.written), default=self.call.elements)
        return self._step("point", reads, self.outputs, elements)

    def _embedding(self, op: Operation) -> list[Step]:
        if op.detail["direction"] == "backward":
            return self._scatter(op.bytes_read)
        table, *rest = self.reads
        return [self._pointwise_of((table._replace(bytes=op.bytes_written), *rest))]

    def _norm(self, op: Operation) -> list[Step]:
        norm, columns = str(op.detail["norm"]), _number(op, "columns")
        most = max((each.numel() for _, each in self.written), default=0)
        large = [v for v, each in self.written if each.numel() == most and each.dim() > 1]
        small = [v for v, each in self.written if v not in large]
        backward = self.call.phase is Phase.BACKWARD and "backward" in self.call.name
        by_rows = norm in {"layer", "rms"} or (norm == "group" and columns <= LONGEST_ROW)
        form = "rows" if by_rows else "columns"
        if not backward:
            statistics = small or [self.graph.new_value(4.0 * most / max(columns, 1))]
            first = self._step(form, self.reads[:1], statistics)
            return [first, self._after(first, large)]
        if norm == "batch":
            statistics = small or [self.graph.new_value(8.0 * columns)]
            first = self._step("columns", self.reads, statistics)
            return [first, self._after(first, large)]
        sums = self.graph.new_value(8.0 * most / max(columns, 1))
        first = self._step(form, self.reads, [sums])
        made = [first, self._after(first, large)] if large else []
        return [*made, self._step("columns", self.reads, small)] if small else made

    def _after(self, reduced: Step, writes: Sequence[int]) -> Step:
        """The pointwise pass that uses the result of a reduction."""
        known = [self._whole(value) for value in reduced.writes]
        return self._step("point", (*self.reads, *known), writes, reduced.elements)

    def _softmax(self, op: Operation) -> list[Step]:
        columns = _number(op, "columns")
        result = self.graph.new_value(8.0 * self.call.elements / max(columns, 1))
        form = "rows" if columns <= LONGEST_ROW else "long_rows"
        first = self._step(form, self.reads, [result])
        return [first, self._after(first, self.outputs)]

    def _loss(self, op: Operation) -> list[Step]:
        rows, columns = _number(op, "rows"), _number(op, "columns")
        if "nll" not in self.call.name:
            form = "point" if self.call.phase is Phase.BACKWARD else "columns"
            return [self._step(form, self.reads, self.outputs)]
        small = [r for r in self.reads if r.bytes <= 16.0 * rows]
        if self.call.phase is Phase.FORWARD:
            # The one probability of each row is computed again where it is needed.
            return [self._step("columns", small, self.outputs, rows)]
        return [self._step("point", small, self.outputs, rows * columns)]

    def _reduction(self, _: Operation) -> list[Step]:
        given = self.call.inputs[0]
        axes = self.call.arg(1, "dim")
        axes = [axes] if isinstance(axes, int) and not isinstance(axes, bool) else axes
        if isinstance(axes, (list, tuple)) and axes and given.dim():
            last = max(axis % given.dim() for axis in axes if isinstance(axis, int))
            kept = all(given.stride(a) <= given.stride(-1) or given.shape[a] == 1 for a in (last,))
            if last == given.dim() - 1 and kept:
                return [self._step("rows", self.reads, self.outputs)]
        return [self._step("columns", self.reads, self.outputs)]

    def _scatter(self, moved: float) -> list[Step]:
        """Zeros of the whole size, to which a second kernel adds."""
        zeros = self.graph.new_value(sum(self.graph.sizes[v] for v in self.outputs))
        size = self.written[0][1] if self.written else self.call.inputs[0]
        fill = replace(self._step("point", (), [zeros], size.numel()), repeatable=False)
        adds = self._step("scatter", (*self.reads, Read(zeros, (), moved)), self.outputs)
        return [fill, adds]

    def _index(self, op: Operation) -> list[Step]:
        name = self.call.name
        if "put" in name or "scatter" in name or "add" in name:
            return self._scatter(op.bytes_written)
        if op.kernels > 1:
            return self.extern()
        source, *rest = self.reads
        gathered = source._replace(bytes=min(source.bytes, op.bytes_written))
        return [self._pointwise_of((gathered, *rest))]

    def _pool(self, _: Operation) -> list[Step]:
        if "adaptive" in self.call.name and self.call.phase is Phase.FORWARD:
            return [self._step("rows", self.reads, self.outputs)]
        reads = list(self.reads)
        if "max" in self.call.name:
            if self.call.phase is Phase.BACKWARD:
                # The position in the window takes a byte; the picture is not read again.
                reads = [reads[0], reads[-1]._replace(bytes=reads[-1].bytes / 8)]
            else:
                for value, each in self.written[1:]:
                    self.graph.sizes[value] = float(each.numel())
        return [replace(self._pointwise_of(reads), repeatable=False, from_memory=True)]

    def _conv(self, _: Operation) -> list[Step]:
        """The convolution, and what of its bias is not the library's."""
        products = tuple(each for each in self.operations if each.kind is Kind.CONV)
        if self.call.phase is Phase.FORWARD or "backward" not in self.call.name:
            if len(products) == len(self.operations):
                return self.extern()
            raw = self.graph.new_value(sum(self.graph.sizes[v] for v in self.outputs))
            conv = replace(self._step("extern", self.reads, [raw]), operations=products)
            bias = self.reads[2:]
            return [conv, self._step("point", (self._whole(raw), *bias), self.outputs)]
        sums = [v for v, each in self.written if each.dim() == 1]
        rest = [v for v in self.outputs if v not in sums]
        made = [replace(self._step("extern", self.reads, rest), operations=products)]
        if sums:
            made.append(self._step("columns", self.reads[:1], sums))
        return made


def _number(op: Operation, key: str) -> int:
    value = op.detail.get(key, 1)
    return int(value) if isinstance(value, (int, float)) else 1


@dataclass
class FusedKernel:
    """Group of steps that are one kernel.

    Attributes:
        forms: of its steps.
        reads: value and part -> bytes.
        writes: values it leaves in memory.
        before: kernels that must run earlier, as bits.
    """

    phase: Phase
    module: str
    dtype: str
    elements: int
    forms: set[str]
    reads: dict[tuple[int, tuple[object, ...]], float]
    writes: set[int]
    flops: float = 0.0
    before: int = 0
    operations: tuple[Operation, ...] = ()


@dataclass(frozen=True)
class CompiledStep:
    """Kernels of a compiled step.

    Attributes:
        operations: in order; fused ones are called `inductor.pointwise` and `inductor.reduction`.
        saved_bytes: what forward leaves in memory for backward.
        peak_bytes: most memory of tensors made within the step.
    """

    operations: tuple[Operation, ...]
    saved_bytes: float
    peak_bytes: float


def compiled_step(graph: StepGraph) -> CompiledStep:
    """Return the kernels of a recorded step."""
    plan = _Plan(graph)
    kernels = plan.kernels()
    operations = tuple(_operations(kernels, graph, _channels_last(graph)))
    saved, peak = plan.memory(kernels)
    return CompiledStep(operations, saved, peak)


class _Plan:
    """Values that are written to memory, and the kernels that make them."""

    def __init__(self, graph: StepGraph) -> None:
        self.graph = graph
        self.sizes = graph.sizes
        self.maker: dict[int, Step] = {}
        self.readers: dict[int, list[Step]] = {}
        for step in graph.steps:
            for value in step.writes:
                self.maker[value] = step
            for read in step.reads:
                self.readers.setdefault(read.value, []).append(step)
        self.trains = any(step.phase is Phase.BACKWARD for step in graph.steps)
        self.saved = self._saved()
        self._formulas: dict[tuple[int, bool], tuple[Read, ...]] = {}
        self.in_memory: set[int] = set()

    # Stage 2: which forward tensors backward finds in memory.

    def _forward(self, value: int) -> bool:
        maker = self.maker.get(value)
        return maker is not None and maker.phase is Phase.FORWARD

    def _is_formula(self, value: int) -> bool:
        maker = self.maker.get(value)
        return maker is not None and maker.form in {"point", "joined"} and maker.repeatable

    def _saved(self) -> set[int]:
        saved: set[int] = set()
        asked: list[int] = []
        for value, readers in self.readers.items():
            if not self._forward(value):
                continue
            backward = [step for step in readers if step.phase is not Phase.FORWARD]
            if not backward:
                continue
            library = any(step.form in {"extern", "scatter"} for step in backward)
            if library or not self._is_formula(value):
                saved.add(value)
            else:
                asked.append(value)
        for value in sorted(asked):
            leaves = self._leaves(value, saved)
            missing = leaves - saved
            # A tensor that only fused kernels use would have to be written for backward alone.
            written = any(step.form == "extern" for step in self.readers[value])
            price = self.sizes[value] * (1 if written else 2)
            if len(leaves) <= MOST_READS and sum(self.sizes[v] for v in missing) <= price:
                saved |= missing
            else:
                saved.add(value)
        return saved

    def _leaves(self, value: int, saved: set[int], depth: int = 0) -> set[int]:
        """Forward values from which `value` can be computed again."""
        if not self._forward(value):
            return set()  # parameters and inputs are in memory anyway
        if (depth and value in saved) or not self._is_formula(value) or depth > 24:
            return {value}
        found: set[int] = set()
        for read in self.maker[value].reads:
            found |= self._leaves(read.value, saved, depth + 1)
            if len(found) > MOST_READS:
                break
        return found

    # Stage 3: what each kernel reads.

    def kernels(self) -> list[FusedKernel]:
        self._decide_in_memory()
        made: list[FusedKernel] = []
        owner: dict[int, int] = {}
        users: dict[int, list[int]] = {}
        for step in self.graph.steps:
            writes = [v for v in step.writes if v in self.in_memory]
            if step.form in LOOPS and not writes:
                continue
            reads: dict[tuple[int, tuple[object, ...]], float] = {}
            backward = step.phase is not Phase.FORWARD
            for read in step.reads:
                for each in self._formula(read, backward):
                    key = (each.value, each.part)
                    reads[key] = max(reads.get(key, 0.0), each.bytes)
            index = self._place(step, reads, made, owner, users)
            kernel = made[index]
            kernel.reads.update({k: v for k, v in reads.items() if k[0] not in kernel.writes})
            kernel.writes.update(writes)
            kernel.forms.add(step.form)
            kernel.flops += step.flops
            for value in writes:
                owner[value] = index
            for value, _ in reads:
                users.setdefault(value, []).append(index)
        # A tensor that only its own kernel uses stays in registers.
        needed = {value for kernel in made for value, _ in kernel.reads}
        for kernel in made:
            if not kernel.operations:
                kernel.writes = {
                    value
                    for value in kernel.writes
                    if value in needed or not self.readers.get(value)
                }
        return made

    def _decide_in_memory(self) -> None:
        for step in reversed(self.graph.steps):
            for value in step.writes:
                if self._needs_memory(step, value):
                    self.in_memory.add(value)

    def _needs_memory(self, step: Step, value: int) -> bool:
        if step.form not in {"point", "joined"} or value in self.saved:
            return True
        readers = [each for each in self.readers.get(value, ()) if each.phase is step.phase]
        if not readers:
            # What no operation reads is a gradient or the model's result; in a forward pass that
            # is differentiated, it is not used at all.
            return not self.readers.get(value) and not (self.trains and self._forward(value))
        if any(each.form in {"extern", "scatter"} or each.from_memory for each in readers):
            return True
        if not step.repeatable:
            return len(readers) > 1
        if len(readers) == 1:
            return False
        return len(step.reads) > 1 and self._weight(value) > MOST_READS

    def _weight(self, value: int, depth: int = 0) -> int:
        """Number of tensors that a formula reads when nothing in it is in memory."""
        if not self._is_formula(value) or depth > 8 or value in self.saved:
            return 1
        return sum(self._weight(read.value, depth + 1) for read in self.maker[value].reads)

    def _formula(self, read: Read, backward: bool) -> tuple[Read, ...]:
        """Parts of values in memory from which what is read can be computed."""
        if self._recomputed_by(read.value, backward) is None:
            return (read,)
        # A chain of operations may be longer than Python's stack.
        asked = [read.value]
        while asked:
            value = asked[-1]
            maker = self._recomputed_by(value, backward)
            if (value, backward) in self._formulas or maker is None:
                asked.pop()
                continue
            missing = [
                inner.value
                for inner in maker.reads
                if self._recomputed_by(inner.value, backward)
                and (inner.value, backward) not in self._formulas
            ]
            if missing:
                asked += missing
                continue
            found: dict[tuple[int, tuple[object, ...]], Read] = {}
            for inner in maker.reads:
                for each in self._formulas.get((inner.value, backward), (inner,)):
                    found[each.value, each.part] = each
            self._formulas[value, backward] = tuple(found.values())
        return self._formulas[read.value, backward]

    def _recomputed_by(self, value: int, backward: bool) -> Step | None:
        """Return the pointwise operation that makes a value where it is not read from memory."""
        maker = self.maker.get(value)
        if maker is None or maker.form not in {"point", "joined"}:
            return None
        recomputed = backward and maker.phase is Phase.FORWARD and value not in self.saved
        return None if value in self.in_memory and not recomputed else maker

    def _place(
        self,
        step: Step,
        reads: Mapping[tuple[int, tuple[object, ...]], float],
        made: list[FusedKernel],
        owner: Mapping[int, int],
        users: Mapping[int, list[int]],
    ) -> int:
        """Index of the kernel that a step becomes part of, perhaps a new one."""
        sources = {owner[value] for value, _ in reads if value in owner}
        if step.form in LOOPS:
            shared: dict[int, float] = {}
            for (value, _), size in reads.items():
                if value in owner:
                    shared[owner[value]] = shared.get(owner[value], 0.0) + size
                for user in set(users.get(value, ())):
                    shared[user] = shared.get(user, 0.0) + size
            for index in sorted(shared, key=lambda i: (-shared[i], -i)):
                kernel = made[index]
                vertical = index in sources
                if not _fits(step, kernel, vertical=vertical):
                    continue
                if any(made[each].before >> index & 1 for each in sources if each != index):
                    continue
                _depend(made, index, sources - {index})
                return index
        before = 0
        for each in sources:
            before |= made[each].before | 1 << each
        made.append(
            FusedKernel(
                step.phase,
                step.module,
                step.dtype,
                step.elements,
                set(),
                {},
                set(),
                before=before,
                operations=step.operations,
            )
        )
        return len(made) - 1

    def memory(self, kernels: Sequence[FusedKernel]) -> tuple[float, float]:
        """Bytes saved for backward, and the most that is alive at once."""
        last: dict[int, int] = {}
        for index, kernel in enumerate(kernels):
            for value, _ in kernel.reads:
                last[value] = index
        ends: dict[int, list[int]] = {}
        for value, index in last.items():
            ends.setdefault(index, []).append(value)
        live = peak = 0.0
        born: set[int] = set()
        for index, kernel in enumerate(kernels):
            fresh = kernel.writes - born
            born |= fresh
            live += sum(self.sizes[v] for v in fresh)
            peak = max(peak, live)
            for value in ends.get(index, ()):
                if value in born:
                    live -= self.sizes[value]
        saved = sum(self.sizes[v] for v in self.saved)
        return saved, peak


def _fits(step: Step, kernel: FusedKernel, *, vertical: bool) -> bool:
    """Whether Inductor makes one kernel of both: same phase, same loop, compatible reductions."""
    if "extern" in kernel.forms or "scatter" in kernel.forms:
        return False
    if step.phase is not kernel.phase or step.elements != kernel.elements:
        return False
    if "columns" in kernel.forms:
        # The pass after a reduction of columns has to wait for all of its rows.
        return not vertical and step.form == "columns"
    if step.form == "columns":
        return bool(kernel.forms & {"rows", "long_rows"}) and not vertical
    return True


def _depend(made: Sequence[FusedKernel], index: int, sources: Iterable[int]) -> None:
    """Add dependencies of a kernel, also to all that come after it."""
    more = 0
    for each in sources:
        more |= made[each].before | 1 << each
    if more | made[index].before == made[index].before:
        return
    made[index].before |= more
    for kernel in made:
        if kernel.before >> index & 1:
            kernel.before |= more


SLOWEST_FIRST = ("scatter", "long_rows", "columns", "joined", "rows", "point")
"""Forms in the order in which they decide the speed of a kernel."""


def _operations(
    kernels: Sequence[FusedKernel], graph: StepGraph, channels_last: bool
) -> Iterator[Operation]:
    copied: set[tuple[object, ...]] = set()
    for kernel in kernels:
        for op in kernel.operations:
            if op.kind is Kind.CONV and channels_last:
                yield replace(op, detail={**op.detail, "channels_last": True})
            else:
                yield from _padded(op, copied)
        if kernel.operations or not kernel.writes:
            continue
        by_value: dict[int, float] = {}
        for (value, _), size in kernel.reads.items():
            by_value[value] = by_value.get(value, 0.0) + size
        read = sum(min(size, max(graph.sizes[v], 1.0)) for v, size in by_value.items())
        written = sum(graph.sizes[v] for v in kernel.writes)
        form = next(each for each in SLOWEST_FIRST if each in kernel.forms)
        place = Operation("", Kind.ELEMENTWISE, kernel.phase, kernel.module, kernel.dtype)
        made = _loop(place, form, kernel.elements, read, written)
        yield replace(made, flops=max(kernel.flops, made.flops))


ALIGNMENTS = {"bf16": 8, "fp16": 8, "tf32": 4, "fp32": 4}
"""Elements to which Inductor pads the sides of a product (`pad_mm`)."""
LEAST_INTENSITY = 100.0
"""Multiply-adds per element, above which a product is bound by arithmetic and worth padding."""


def _padded(op: Operation, copied: set[tuple[object, ...]]) -> Iterator[Operation]:
    """Yield a product with aligned sides, and the copies of its operands that this takes.

    An operand that several products pad is copied once; `copied` has those of before.
    """
    multiple = ALIGNMENTS.get(op.dtype)
    if op.kind is not Kind.GEMM or op.dims is None or multiple is None:
        yield op
        return
    batch, m, n, k = op.dims
    sides = {side: -(-side // multiple) * multiple for side in (m, n, k)}
    intensity = m * n * k / max(m * k + n * k + m * n, 1)
    if all(side == padded for side, padded in sides.items()) or intensity < LEAST_INTENSITY:
        yield op
        return
    for operand in ((m, k), (k, n)):
        key = (op.phase, batch, *sorted(operand))
        if key not in copied and any(side != sides[side] for side in operand):
            copied.add(key)
            size = float(DTYPE_BYTES[op.dtype] * batch * operand[0] * operand[1])
            yield _loop(op, "point", int(size / DTYPE_BYTES[op.dtype]), size, size)
    yield replace(op, dims=(batch, sides[m], sides[n], sides[k]))


def _loop(like: Operation, form: str, elements: int, read: float, written: float) -> Operation:
    """Return a generated kernel in the place of `like`."""
    return Operation(
        op=POINTWISE if form in {"point", "joined", "scatter"} else REDUCTION,
        kind=Kind.ELEMENTWISE,
        phase=like.phase,
        module=like.module,
        dtype=like.dtype,
        flops=float(elements),
        bytes_read=read,
        bytes_written=written,
        # A reduction of columns is split over the multiprocessors and then summed.
        kernels=2 if form == "columns" else 1,
        detail={"elements": elements, "form": form},
    )


SMALL_CHANNELS = 64
FEW_CONVOLUTIONS = 300
"""Operations per convolution from which Inductor leaves the layout alone."""


def _channels_last(graph: StepGraph) -> bool:
    """Whether Inductor gives convolutions channels-last tensors: its `decide_layout_opt`."""
    convs = [
        op
        for step in graph.steps
        for op in step.operations
        if op.kind is Kind.CONV and op.detail.get("direction") == "forward"
    ]
    if not convs or graph.calls >= FEW_CONVOLUTIONS * len(convs):
        return False
    shapes = []
    for op in convs:
        groups = _number(op, "groups")
        c_in, c_out = _number(op, "c_in") // groups, _number(op, "c_out")
        if groups > 1 and c_in > 1:
            return False
        if c_out * 2 <= c_in and _number(op, "k_h") > 1:
            return False
        shapes.append((c_in, c_out))
    return not all(max(pair) <= SMALL_CHANNELS for pair in shapes)
