"""Constants of the kernels model before any calibration.

Times are in seconds, energies in joules; everything else is a fraction of what the data sheet
promises, so that one set serves every GPU as a first guess. `calibrate fit` replaces them.
"""

__all__ = ["DEFAULTS"]

DEFAULTS: dict[str, float] = {
    # A kernel that has nothing to do still takes this long on the GPU.
    "kernel.minimum_s": 1.8e-6,
    # Logarithm of a factor on the time of a class, as training steps ask for it.
    "scale": 0.0,
    # Products: share of the peak that a tile reaches, and what a tile costs besides its loop.
    "product.efficiency": 0.72,
    "product.efficiency.gemm.fp32": 0.80,
    "product.efficiency.conv": 0.55,
    "product.efficiency.conv.weight": 0.45,
    "product.efficiency.conv.forward.fp32": 0.75,
    "product.efficiency.conv.data.fp32": 0.70,
    "product.efficiency.conv.weight.fp32": 0.60,
    "product.efficiency.grouped": 0.20,
    "product.tile_s": 1.5e-6,
    "product.splits": 32.0,  # parts that the sum over K may be cut into
    "product.l2_share": 2.5,  # bytes a second from L2 into the tiles, against the memory's
    "product.misaligned": 2.2,  # slower when rows do not start at 16 bytes
    "product.misaligned.gemm.fp32": 1.05,
    "product.layout_passes": 1.0,  # cuDNN turns NCHW operands around before and after
    "product.layout_passes.conv.forward.fp32": 0.0,
    "product.layout_passes.conv.data.fp32": 0.0,
    "product.layout_passes.conv.weight.fp32": 0.0,
    # Depthwise convolution: bytes at this share of the memory's bandwidth.
    "depthwise.efficiency": 0.25,
    "depthwise.efficiency.weight": 0.08,
    "depthwise.start_s": 1.0e-6,
    # Attention: share of the peak of the units that do it.
    "attention.efficiency": 0.45,
    "attention.efficiency.flash.backward": 0.35,
    "attention.efficiency.efficient": 0.30,
    "attention.efficiency.efficient.backward": 0.20,
    "attention.block_s": 2.0e-6,
    # Recurrent nets: efficiency of their products, and latency of one time step of a layer.
    "rnn.efficiency": 0.35,
    "rnn.step_s": 6.0e-6,
    "rnn.step_s.persistent": 1.0e-6,
    # Memory-bound classes.
    "stream.efficiency": 0.82,
    "stream.efficiency.norm.batch": 0.60,
    "stream.efficiency.norm.batch.backward": 0.55,
    "stream.efficiency.norm.layer.backward": 0.60,
    "stream.efficiency.softmax": 0.70,
    "stream.efficiency.loss": 0.60,
    "stream.efficiency.pool": 0.50,
    "stream.efficiency.embedding": 0.60,
    "stream.efficiency.embedding.backward": 0.30,
    "stream.efficiency.copy.strided": 0.50,
    "stream.efficiency.index": 0.50,
    "stream.efficiency.foreach": 0.80,
    "stream.start_s": 1.0e-7,  # beyond the minimum of its kernels
    "stream.l2_speed": 2.0,  # times the memory's bandwidth when all of it stays in L2
    "stream.l2_share": 0.5,  # of the L2 that an operation can count on
    "stream.l2_use": 0.5,  # of what could be in L2 that is: some tensors were written long ago
    # Host: seconds of one dispatched operation by phase and kind, of a launch beyond the first of
    # a call, of a tensor in a list, of a module call, and of a phase.
    "host.call_s": 8.0e-6,
    "host.call_s.forward": 9.0e-6,
    "host.call_s.forward.view": 2.5e-6,
    "host.call_s.forward.conv": 2.5e-5,
    "host.call_s.forward.norm": 2.0e-5,
    "host.call_s.forward.attention": 2.5e-5,
    "host.call_s.forward.rnn": 8.0e-5,
    "host.call_s.backward": 9.0e-6,
    "host.call_s.backward.view": 2.0e-6,
    "host.call_s.backward.conv": 3.0e-5,
    "host.call_s.backward.norm": 2.0e-5,
    "host.call_s.backward.attention": 3.0e-5,
    "host.call_s.backward.rnn": 8.0e-5,
    "host.call_s.optimizer": 5.0e-6,
    "host.call_s.optimizer.foreach": 2.0e-5,
    "host.launch_s": 3.0e-6,
    "host.launch_s.rnn.forward": 1.5e-5,
    "host.launch_s.rnn.backward": 2.0e-5,
    "host.tensor_s": 1.0e-6,
    "host.module_s": 4.0e-6,
    "host.step_s.forward": 1.0e-4,
    "host.step_s.backward": 1.0e-4,
    "host.step_s.optimizer": 1.0e-4,
    "host.overlap": 12.0,  # sharpness of max(GPU, host)
    # Power: watts that flow whatever runs, and joules of work.
    "power.idle_w": 80.0,
    "power.static_w": 35.0,
    "power.busy_w": 220.0,
    "power.joule_per_flop.bf16": 9.0e-13,
    "power.joule_per_flop.fp16": 9.0e-13,
    "power.joule_per_flop.tf32": 2.0e-12,
    "power.joule_per_flop.fp32": 6.5e-12,
    "power.joule_per_flop.fp64": 1.2e-11,
    "power.joule_per_flop.vector": 4.0e-11,
    "power.joule_per_byte": 6.2e-11,
    "power.cap_share": 0.985,  # what the mean settles at under a cap
    "power.voltage_floor": 0.70,  # of the voltage at full clock, at and below the knee
    "power.voltage_knee": 0.60,
}
