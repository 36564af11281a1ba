"""What large operations reach of a data sheet's figures, and what they draw, on any GPU.

A calibration's own numbers do not serve other architectures: they describe what its libraries pick
on a GPU of its size (an H200 convolves at half of its fp32 peak, a V100 at three quarters). These
are round figures of libraries in general, for operations that fill the GPU; names are those of
`defaults`, finer names win. Watts and joules are those of a GPU like the H200 (4 nm, 1980 MHz,
700 W), rounded from its power with products, convolutions and streams running.
"""

from collections.abc import Mapping

__all__ = ["SHARES"]

SHARES: Mapping[str, float] = {
    # Products: share of the peak inside of a tile's loop, and what a tile costs besides.
    "product.efficiency": 0.72,
    "product.efficiency.gemm.fp32": 0.80,
    "product.efficiency.gemm.tf32": 0.62,
    "product.efficiency.conv": 0.55,
    "product.efficiency.conv.weight": 0.45,
    "product.efficiency.conv.forward.fp32": 0.75,
    "product.efficiency.conv.data.fp32": 0.70,
    "product.efficiency.conv.weight.fp32": 0.60,
    "product.efficiency.grouped": 0.20,
    "product.tile_s": 1.5e-6,
    "product.l2_share": 2.5,
    "product.misaligned": 3.0,
    "product.misaligned.gemm.fp32": 1.05,
    "product.layout_passes": 1.0,
    "product.layout_passes.conv.forward.fp32": 0.0,
    "product.layout_passes.conv.data.fp32": 0.0,
    "product.layout_passes.conv.weight.fp32": 0.0,
    "depthwise.efficiency": 0.25,
    "depthwise.efficiency.weight": 0.08,
    "attention.efficiency": 0.45,
    "attention.efficiency.flash.backward": 0.35,
    "attention.efficiency.efficient": 0.30,
    "attention.efficiency.efficient.backward": 0.20,
    "attention.efficiency.efficient.forward.fp32": 0.50,
    "attention.efficiency.efficient.backward.fp32": 0.40,
    "attention.efficiency.efficient.forward.tf32": 0.08,  # on the ordinary units all the same
    "attention.efficiency.efficient.backward.tf32": 0.06,
    "rnn.efficiency": 0.35,
    # Shares of the memory's bandwidth.
    "stream.efficiency": 0.82,
    "stream.efficiency.norm.batch": 0.60,
    "stream.efficiency.norm.batch.backward": 0.55,
    "stream.efficiency.norm.batch.forward.bf16": 0.25,  # torch's own kernels, not cuDNN's
    "stream.efficiency.norm.batch.backward.bf16": 0.25,
    "stream.efficiency.norm.layer.backward": 0.60,
    "stream.efficiency.softmax": 0.70,
    "stream.efficiency.loss": 0.60,
    "stream.efficiency.pool": 0.50,
    "stream.efficiency.pool.max_pool2d_with_indices_backward": 0.20,
    "stream.efficiency.embedding": 0.60,
    "stream.efficiency.embedding.backward": 0.30,
    "stream.efficiency.copy.strided": 0.50,
    "stream.efficiency.index": 0.50,
    "stream.efficiency.foreach": 0.80,
    "stream.l2_speed": 2.0,
    "stream.l2_share": 0.5,
    "power.static_w": 35.0,
    "power.busy_w": 90.0,
    **{f"power.busy_w.{part}": 90.0 for part in ("product", "rnn", "norm", "stream")},
    "power.joule_per_flop.bf16": 1.0e-12,
    "power.joule_per_flop.fp16": 1.0e-12,
    "power.joule_per_flop.tf32": 2.2e-12,
    "power.joule_per_flop.fp32": 7.5e-12,
    "power.joule_per_flop.fp64": 1.2e-11,
    "power.joule_per_flop.vector": 5.0e-12,
    "power.joule_per_byte": 8.0e-11,
}
