"""The native module of the probe, where it is installed beside the detector and new enough."""

from paceline.analysis.detection.placing import Placing
from paceline.contracts.batch_run import Checksums, crc32_each


def native_placing() -> Placing | None:
    """None where there is none: everything works without it, at a third of the speed."""
    try:
        from paceline.probe import _native
    except ImportError:
        return None
    return _native if hasattr(_native, "place_rounds") else None


def native_checksums() -> Checksums:
    """The fastest way there is."""
    try:
        from paceline.probe import _native
    except ImportError:
        return crc32_each
    return getattr(_native, "crc32_each", crc32_each)
