"""What one training step does: operations with their FLOPs, bytes and shapes.

operation, workload   the records
costs/                shapes -> an operation, without torch
trace                 a torch model -> a workload (rules/ and tracing/ are its parts)
files, cache          workloads as JSON; traces made before
aggregates            totals and weighted mean dims, as the thesis counts them
"""

from wattloop.predict.workload.operation import Kind, Operation, Phase
from wattloop.predict.workload.workload import Workload

__all__ = ["Kind", "Operation", "Phase", "Workload"]
