"""What an agent ships of its node before anything is killed: the archive of `paceline collect`, in parts.

Parts go to `paceline.evidence.v1` under the id of the command that asked for them, so that they meet in
one partition in their order; the command's result says that there are no more.
"""

from dataclasses import dataclass

PART_BYTES_MAX = 512 * 1024  # 700 kB of base64: below a record's 1 MiB
ARCHIVE_BYTES_MAX = 8 << 20
PARTS_MAX = ARCHIVE_BYTES_MAX // PART_BYTES_MAX


@dataclass(frozen=True)
class EvidencePart:
    """One part of one node's archive."""

    id: str
    command: str  # the command's id
    incident: str
    job: str
    attempt: str
    node: str
    part: int  # from 0
    parts: int
    bytes_count: int  # of the whole archive
    sha256: str  # of the whole archive
    data: str  # base64 of this part, PART_BYTES_MAX bytes but for the last
    collected_unix_s: float


def parts_of(bytes_count: int) -> int:
    """How many parts an archive of so many bytes has."""
    return -(-bytes_count // PART_BYTES_MAX)
