"""A small ResNet in Keras that can be quantised before or after training, or compiled."""

import os
from collections.abc import Callable

os.environ["KERAS_BACKEND"] = "torch"

import keras  # the backend is chosen before Keras is loaded
import numpy as np

__all__ = [
    "CompiledModel",
    "QuantizedConv2D",
    "QuantizedDense",
    "kernels",
    "network",
    "quantize_weights",
]

LEVELS = 127
"""Of eight bits with a sign, symmetric about zero."""


def network(
    side: int, classes: int, *, internal: str = "none", widths: tuple[int, ...] = (8, 16)
) -> keras.Model:
    """Build a stem and one residual block per width, in the global dtype policy."""
    pre = internal == "pre_quantization"
    conv = QuantizedConv2D if pre else keras.layers.Conv2D
    dense = QuantizedDense if pre else keras.layers.Dense

    def convolved(x: keras.KerasTensor, width: int, size: int, stride: int) -> keras.KerasTensor:
        x = conv(width, size, strides=stride, padding="same", use_bias=False)(x)
        return keras.layers.BatchNormalization(momentum=0.9)(x)  # few steps in an epoch

    inputs = keras.Input((side, side, 1))
    x = keras.layers.ReLU()(convolved(inputs, widths[0], 3, 2))
    for width in widths:
        stride = 1 if width == widths[0] else 2
        y = keras.layers.ReLU()(convolved(x, width, 3, stride))
        y = convolved(y, width, 3, 1)
        if x.shape[-1] != width:
            x = convolved(x, width, 1, stride)
        x = keras.layers.ReLU()(keras.layers.add([x, y]))
    x = dense(classes)(keras.layers.GlobalAveragePooling2D()(x))
    # a softmax stays in float32 in mixed precision, as Keras advises
    mixed = keras.config.dtype_policy().name.startswith("mixed_")
    outputs = keras.layers.Softmax(dtype="float32" if mixed else None)(x)
    made = CompiledModel if internal == "jit_compilation" else keras.Model
    return made(inputs, outputs)


def rounded(x: keras.KerasTensor, axis: tuple[int, ...] | None = None) -> keras.KerasTensor:
    """Round `x` to the levels of eight bits; gradients pass unchanged (straight through)."""
    largest = keras.ops.max(keras.ops.abs(x), axis=axis, keepdims=True)
    scale = keras.ops.maximum(largest / LEVELS, 1e-6)
    levels = keras.ops.round(x / scale) * scale
    return x + keras.ops.stop_gradient(levels - x)


class QuantizedConv2D(keras.layers.Conv2D):
    """Weights (per output channel) and inputs in eight bits in every forward pass."""

    def convolution_op(
        self, inputs: keras.KerasTensor, kernel: keras.KerasTensor
    ) -> keras.KerasTensor:
        """Convolve with both rounded."""
        return super().convolution_op(rounded(inputs), rounded(kernel, axis=(0, 1, 2)))


class QuantizedDense(keras.layers.Dense):
    """Weights (per output) and inputs in eight bits in every forward pass."""

    def call(self, inputs: keras.KerasTensor, training: bool | None = None) -> keras.KerasTensor:
        """Multiply with both rounded."""
        product = keras.ops.matmul(rounded(inputs), rounded(self.kernel, axis=(0,)))
        return keras.ops.add(product, self.bias)


def quantize_weights(model: keras.Model) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Round every kernel to the levels of eight bits; return the integers and their scales by
    kernel.
    """
    stored = {}
    for variable in kernels(model):
        kernel = keras.ops.convert_to_numpy(variable).astype(np.float64)
        largest = np.abs(kernel).max(axis=tuple(range(kernel.ndim - 1)))
        scale = np.maximum(largest / LEVELS, 1e-6)
        integers = np.round(kernel / scale).astype(np.int8)
        variable.assign((integers * scale).astype(variable.dtype))
        stored[variable.path] = (integers, scale)
    return stored


def kernels(model: keras.Model) -> list[keras.Variable]:
    """Return the quantised weights: of convolutions and of the last layer."""
    kinds = keras.layers.Conv2D | keras.layers.Dense
    return [layer.kernel for layer in model.layers if isinstance(layer, kinds)]


class CompiledModel(keras.Model):
    """Forward and backward pass of training compiled by torch for full batches.

    Keras's own `jit_compile` hands torch every layer by itself, with Python in between, and
    compiles for minutes. Here the whole pass is traced to one graph of tensor operations first.
    A smaller last batch is trained uncompiled: it is not worth another compilation.
    """

    backend = "inductor"
    graph: Callable[..., tuple] | None = None
    graph_shape: tuple[int, ...] = ()
    tracing = False

    def call(
        self,
        inputs: keras.KerasTensor,
        training: bool | None = None,
        mask: object = None,
    ) -> keras.KerasTensor:
        """Run the compiled pass in training; evaluation is as usual."""
        if not training or self.tracing or isinstance(inputs, keras.KerasTensor):
            return super().call(inputs, training=training, mask=mask)
        weights = [variable.value for variable in self.trainable_variables]
        state = [variable.value for variable in self.non_trainable_variables]
        if self.graph is None:
            self.graph = self._compiled(weights, state, inputs)
            self.graph_shape = tuple(inputs.shape)
        if tuple(inputs.shape) != self.graph_shape:
            return super().call(inputs, training=training, mask=mask)
        outputs, new_state = self.graph(weights, state, inputs)
        for variable, value in zip(self.non_trainable_variables, new_state, strict=True):
            variable.assign(value.detach())
        return outputs

    def _compiled(self, weights: list, state: list, inputs: object) -> Callable[..., tuple]:
        import torch
        from torch.fx.experimental.proxy_tensor import make_fx

        def forward(weights: list, state: list, x: object) -> tuple:
            return self.stateless_call(weights, state, x, training=True)

        self.tracing = True
        try:
            graph = make_fx(forward)(weights, state, inputs)
        finally:
            self.tracing = False
        # its method, because torch would count the module among the layers
        return torch.compile(graph, dynamic=False, backend=self.backend).forward
