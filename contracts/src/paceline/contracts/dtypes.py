"""numpy dtypes of the probe pages, built from the one table in `layout`."""

import numpy as np

from paceline.contracts.layout import (
    CHANNELS_MAX,
    CONTROL,
    EDGE,
    FRAME,
    PEER,
    PROCESS,
    ROUND,
    ROUND_TIMES,
    Field,
    Layout,
)

CHANNEL_DTYPE = np.dtype(
    [
        ("sends", "<u4"),
        ("recvs", "<u4"),
        ("send_state", "u1"),
        ("recv_state", "u1"),
        ("kernel_state", "u1"),
        ("spare", "u1"),
    ]
)


def _format(field: Field) -> object:
    if field.name == "channel":
        return (CHANNEL_DTYPE, (CHANNELS_MAX,))
    code = field.type if field.type[0] == "S" else f"<{field.type}"
    return code if field.count == 1 else (code, (field.count,))


def build_dtype(layout: Layout) -> np.dtype[np.void]:
    """A dtype with the exact offsets and size of `layout`."""
    return np.dtype(
        {
            "names": [field.name for field in layout.fields],
            "formats": [_format(field) for field in layout.fields],
            "offsets": [field.offset for field in layout.fields],
            "itemsize": layout.size,
        }
    )


PROCESS_DTYPE = build_dtype(PROCESS)
FRAME_DTYPE = build_dtype(FRAME)
ROUND_DTYPE = build_dtype(ROUND)
ROUND_TIMES_DTYPE = build_dtype(ROUND_TIMES)
EDGE_DTYPE = build_dtype(EDGE)
PEER_DTYPE = build_dtype(PEER)
CONTROL_DTYPE = build_dtype(CONTROL)
