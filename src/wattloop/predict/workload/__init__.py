"""Workload of one training step: operations with their FLOPs, bytes and shapes."""

from wattloop.predict.workload.operation import Kind, Operation, Phase
from wattloop.predict.workload.workload import Workload

__all__ = ["Kind", "Operation", "Phase", "Workload"]
