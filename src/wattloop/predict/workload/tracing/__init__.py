"""How a model is run on fake tensors so that its operations can be written down.

building   a module, configuration or factory -> a module of fake tensors
whole      attention, recurrent layers, RMS norm and dropout as single operations, as on CUDA
autocast   which types CUDA's autocast gives each operation
paths      which module an operation belongs to, forward and backward
memory     what is alive when
unpacked   no packed samples in models of Transformers, so that their kernels stay causal
scalars    values and shapes that depend on data
blocks     blocks that are alike are traced once
recorder   the mode that sees every operation
"""
