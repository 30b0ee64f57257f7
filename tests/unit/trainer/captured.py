"""What a capture holds, as the copier lays it out."""

from typing import Any

from paceline.trainer.protection import Part, Protected


def parts(protected: Protected) -> dict[Part, Any]:
    """Both parts of a capture: flat uint8 tensors."""
    from paceline.trainer.protection.copier import Stream, reserve
    from paceline.trainer.protection.slots import Slot

    snapshot, slot = protected.capture(), Slot(pinned=False)
    snapshot.complete()
    reserve(snapshot, slot)
    Stream(on_device=False).copy(snapshot, slot)
    return {part: slot.buffer(part).content().clone() for part in Part}
