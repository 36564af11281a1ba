"""Cost rules of operations that CUDA runs as one call: see `tracing.fused_ops`."""

from collections.abc import Callable
from dataclasses import replace

from wattloop.predict.workload import costs
from wattloop.predict.workload.costs.context import OpContext
from wattloop.predict.workload.operation import Operation
from wattloop.predict.workload.rules.call import Call, dtype_name


def _attention(call: Call) -> Operation:
    direction = "backward" if call.name.endswith("_backward") else "forward"
    q, k, v, mask, causal, algorithm = call.args[:6]
    batch, heads, q_len, head_dim = (1,) * (4 - q.dim()) + tuple(q.shape)
    kv_heads, kv_len = (1, k.shape[-2]) if k.dim() == 3 else tuple(k.shape[1:3])
    place = call.place
    return costs.attention(
        direction,
        batch,
        heads,
        kv_heads,
        q_len,
        kv_len,
        head_dim,
        causal=causal,
        masked=mask is not None,
        dtype=call.product_dtype,
        algorithm=algorithm,
        value_dim=v.shape[-1],
        mask_elements=None if mask is None else mask.numel(),
        **OpContext(
            op=call.name.replace("wattloop.attention", "aten.scaled_dot_product_attention"),
            phase=call.phase,
            module=call.module,
            inputs=place["inputs"],
            outputs=place["outputs"],
        ),
    )


def _rnn(call: Call) -> list[Operation]:
    direction = "backward" if call.name.endswith("_backward") else "forward"
    cell, hidden, layers, bidirectional, batch_first, biased = call.args[-7:-1]
    training = call.args[-1]
    x = call.args[0] if direction == "forward" else call.args[1]
    seq, batch = (x.shape[1], x.shape[0]) if batch_first else (x.shape[0], x.shape[1])
    place = call.place
    made = costs.rnn(
        direction,
        cell,
        layers,
        x.shape[-1],
        hidden,
        batch,
        seq,
        bidirectional,
        call.product_dtype,
        biased=biased,
        training=training,
        **OpContext(
            op=call.name.replace("wattloop.rnn", "aten._cudnn_rnn"),
            phase=call.phase,
            module=call.module,
            inputs=place["inputs"],
            outputs=place["outputs"],
        ),
    )
    if not batch_first:
        return [made]
    # cuDNN wants the sequence first and the input dense.
    name = dtype_name(x.dtype)
    turned = costs.copy(
        x.numel(), name, name, strided=True, **(call.part | OpContext(op="aten.contiguous"))
    )
    return [replace(turned, calls=1), made]


def _rms_norm(call: Call) -> Operation:
    direction = "backward" if call.name.endswith("_backward") else "forward"
    x, columns = call.args[0], call.args[2]
    return costs.norm(
        direction,
        "rms",
        x.numel() // columns,
        columns,
        dtype=call.dtype,
        **(call.place | OpContext(op=call.name.replace("wattloop.rms", "aten._fused_rms"))),
    )


def _gates(call: Call) -> Operation:
    """Return the gates of one step of a recurrent layer."""
    op = call.name.replace("wattloop.", "aten._thnn_fused_").replace("_gates", "_cell")
    place = call.place | OpContext(op=op)
    return costs.elementwise(call.elements, 0, 0, call.dtype, flops_per_element=6.0, **place)


RULES: dict[str, Callable[[Call], Operation | list[Operation]]] = {
    "wattloop.attention": _attention,
    "wattloop.attention_backward": _attention,
    "wattloop.rnn": _rnn,
    "wattloop.rnn_backward": _rnn,
    **{
        f"wattloop.{cell}_gates{end}": _gates
        for cell in ("lstm", "gru")
        for end in ("", "_backward")
    },
    "wattloop.rms_norm": _rms_norm,
    "wattloop.rms_norm_backward": _rms_norm,
}
