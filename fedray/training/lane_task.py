"""The description of a block that a compiled kernel gets: the structures of `fedray/core/kernels/lane.h`, by field."""

from __future__ import annotations

import ctypes

MOST_LAYERS, MOST_STAGES = 16, 8


class Stage(ctypes.Structure):
    """As `Stage` in `kernels/lane.h`."""

    _fields_ = tuple(
        (name, ctypes.c_int32)
        for name in (
            *("channels", "height", "width", "out", "kernel_h", "kernel_w", "padding_h", "padding_w", "bias"),
            *("activation", "pool", "pool_h", "pool_w", "activation_first"),
        )
    )


class LaneTask(ctypes.Structure):
    """As `LaneTask` in `kernels/lane.h`; kernels without features do not read the stages."""

    _fields_ = (
        *((name, ctypes.c_int32) for name in ("layers", "objective")),
        ("width", ctypes.c_int32 * (MOST_LAYERS + 1)),
        *((name, ctypes.c_int32 * MOST_LAYERS) for name in ("activation", "bias")),
        *((name, ctypes.c_int32) for name in ("optimizer", "batch", "lanes", "first_step", "end_step", "keeps_state")),
        ("momentum", ctypes.c_double),
        *((name, ctypes.c_void_p) for name in ("rate", "decay", "pull", "step_rate", "steps")),
        *((name, ctypes.c_int64) for name in ("d", "start_row", "anchor_row", "offset_row", "gives_change")),
        *((name, ctypes.c_void_p) for name in ("start", "anchor", "offset", "final", "loss")),
        *((name, ctypes.c_int32) for name in ("x_kind", "y_kind", "targets", "inputs", "still_from")),
        *((name, ctypes.c_int64) for name in ("x_rows", "y_rows")),
        *((name, ctypes.c_void_p) for name in ("x", "y", "index", "first", "world")),
        *((name, ctypes.c_void_p) for name in ("shift", "scale", "y_shift", "y_scale", "weight")),
        *((name, ctypes.c_int64) for name in ("weight_step", "weight_lane", "weight_sample")),
        *((name, ctypes.c_void_p) for name in ("scratch", "state", "key")),
        ("drop", ctypes.c_double * MOST_LAYERS),
        ("drop_channels", ctypes.c_int32 * MOST_LAYERS),
        *((name, ctypes.c_int32) for name in ("stages", "unused_too")),
        ("stage", Stage * MOST_STAGES),
    )
