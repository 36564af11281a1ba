"""Cost rules: from one torch call to its operations."""

from wattloop.predict.workload.rules.call import Call, ModuleCall
from wattloop.predict.workload.rules.registry import operations_of, register_rule

__all__ = ["Call", "ModuleCall", "operations_of", "register_rule"]
