"""How a model is run on fake tensors so that its operations can be written down.

request          what to trace, checked
identity         what determines a trace, as text
building         a configuration or factory -> a module (`converting`: to another type)
devices          GPUs that a model names
standing_in      fake tensors in place of a module's own
step             forward, loss, backward; then what the optimizer does (`optimizing`)
losses, modes    what is differentiated; the state of torch and model meanwhile
whole            attention, recurrent layers, RMS norm and dropout as single operations, as on CUDA
                 (`whole_attention`, `whole_recurrent`, `whole_cells`, `defining`)
autocast         which types CUDA's autocast gives each operation (`autocast_inside`: models
                 that enter it themselves)
paths            which module an operation belongs to, forward and backward
memory           what is alive when
unpacked         no packed samples in models of Transformers, so that their kernels stay causal
scalars          values and shapes that depend on data (`known`: of some the expected value is)
ruled            modules that a user's rule counts
blocks           blocks that are alike are traced once (`alike`, `block_calls`, `skipping`)
recorder         the mode that sees every operation
joining          what was written down -> the operations of the step
"""
