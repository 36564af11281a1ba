"""From one call that torch made to operations: which cost rule applies.

call          a call as rules see it
registry      name of an operation -> rule, and rules that users add
products      mm, addmm, bmm, ... -> gemm
convolutions  convolution and its gradients -> conv
fused         attention, recurrent layers and RMS norm, which the tracer keeps whole
rows          norms, softmax, losses, pooling, embeddings
streams       everything that passes over its tensors once
"""

from wattloop.predict.workload.rules.call import Call, ModuleCall
from wattloop.predict.workload.rules.registry import operations_of, register_rule

__all__ = ["Call", "ModuleCall", "operations_of", "register_rule"]
