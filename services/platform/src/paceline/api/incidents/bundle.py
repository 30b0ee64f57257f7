"""One archive of all that is kept of an incident (docs/adr/0027-incident-bundles.md).

`paceline diagnose INC-1.bundle` judges it again. The same rows give the same bytes: no time of the
download, no order of chance. The list of contents comes first and names what was left out.
"""

import asyncio
import gzip
import hashlib
import io
import json
import re
import tarfile
from collections.abc import AsyncIterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import IO

from sqlalchemy.ext.asyncio import AsyncSession

from paceline.analysis.adapters.incident import FORMAT, PART_FORMAT
from paceline.api.incidents.bundle_records import (
    health_record,
    incident_record,
    job_record,
    timeline_record,
    verdict_digest,
    verdicts_record,
)
from paceline.contracts.events import ShipmentState
from paceline.store.base import JsonObject
from paceline.store.incident_changes import read_verdict
from paceline.store.models.evidence import EvidenceBundle
from paceline.store.models.incident import Incident
from paceline.store.models.shipment import Shipment
from paceline.store.models.verdict import StoredVerdict
from paceline.store.repositories.evidence import EvidenceRepository
from paceline.store.repositories.incidents import IncidentRepository
from paceline.store.repositories.shipments import ShipmentRepository

VERDICTS_MAX = 1000
RECORD_BYTES_MAX = 32 << 20  # of one JSON file; a larger one is left out by name
MANIFEST = "manifest.json"
SHIPPED = "shipped"
COMPRESSION = 1  # nearly everything inside is compressed already


@dataclass
class _File:
    """One file of the archive; `content` is null where it is read when its turn comes."""

    entry: JsonObject
    content: bytes | None = None

    @property
    def name(self) -> str:
        return str(self.entry["name"])


@dataclass
class _Contents:
    files: list[_File] = field(default_factory=list)
    left_out: list[JsonObject] = field(default_factory=list)

    def add_record(self, name: str, what: str, record: JsonObject) -> None:
        content = _json({"format": PART_FORMAT, **record})
        if len(content) > RECORD_BYTES_MAX:
            self.left_out.append({"name": name, "why": f"{len(content)} bytes, at most {RECORD_BYTES_MAX}"})
            return
        digest = hashlib.sha256(content).hexdigest()
        self.files.append(
            _File({"name": name, "what": what, "bytes": len(content), "sha256": digest}, content)
        )


async def write_bundle(session: AsyncSession, incident: Incident, target: IO[bytes]) -> None:
    """Write the archive of `incident` to `target`, one file in memory at a time."""
    evidence = EvidenceRepository(session)
    bundles = await evidence.of_incident(incident.id)
    verdicts = await IncidentRepository(session).verdicts(incident.id, VERDICTS_MAX)
    contents = _Contents()
    contents.add_record("verdicts.json", "verdicts", verdicts_record(verdicts))
    contents.add_record("timeline.json", "timeline", await timeline_record(session, incident))
    contents.add_record("job.json", "job", await job_record(session, incident))
    if bundles:
        newest = await evidence.get(incident.id, bundles[0].id)
        if newest is not None:
            contents.add_record("health.json", "health", health_record(newest.data))
    contents.files += _evidence_files(bundles, verdicts)
    shipments = ShipmentRepository(session)
    shipped = await shipments.of_incident(incident.id)
    contents.files += _shipped_files(shipped)
    contents.left_out += [
        {"name": f"shipped of {each.node}", "why": f"{each.state}: {each.message}".rstrip(": ")}
        for each in shipped
        if each.state != ShipmentState.SHIPPED.value
    ]
    manifest = {
        "format": FORMAT,
        "incident": incident_record(incident),
        "files": [file.entry for file in contents.files],
        "left_out": contents.left_out,
    }
    with closing(_Archive(target, f"INC-{incident.number}")) as archive:
        await asyncio.to_thread(archive.add, MANIFEST, _json(manifest))
        for file in contents.files:
            content = file.content
            if content is None and file.entry["what"] == SHIPPED:
                content = await shipments.archive(str(file.entry["id"]))
            elif content is None:
                found = await evidence.get(incident.id, str(file.entry["id"]))
                content = b"" if found is None else found.data
            await asyncio.to_thread(archive.add, file.name, content)


def _evidence_files(bundles: Sequence[EvidenceBundle], verdicts: Sequence[StoredVerdict]) -> list[_File]:
    """Oldest first; each with the verdict that was published on it."""
    published = {row.id.removesuffix("-end"): row for row in reversed(verdicts)}
    files = []
    for number, bundle in enumerate(reversed(bundles), 1):
        row = published.get(bundle.verdict_id)
        files.append(
            _File(
                {
                    "name": f"evidence/{number:02}-r{bundle.revision}.plev",
                    "what": "evidence",
                    "bytes": bundle.bytes_count,
                    "sha256": bundle.sha256,
                    "id": bundle.id,
                    "revision": bundle.revision,
                    "verdict_id": bundle.verdict_id,
                    "verdict": None if row is None else verdict_digest(read_verdict(row.verdict)),
                }
            )
        )
    return files


def _shipped_files(shipments: Sequence[Shipment]) -> list[_File]:
    """As they came: archives of `paceline collect`."""
    whole = [each for each in shipments if each.state == ShipmentState.SHIPPED.value]
    return [
        _File(
            {
                "name": f"shipped/{number:02}-{_file_name(each.node)}.tar.gz",
                "what": SHIPPED,
                "bytes": each.bytes_count,
                "sha256": each.sha256,
                "id": each.id,
                "node": each.node,
                "reason": each.reason,
                "collected_at": None if each.collected_at is None else each.collected_at.isoformat(),
            }
        )
        for number, each in enumerate(whole, 1)
    ]


def _file_name(node: str) -> str:
    """At most 60 characters that no file system minds."""
    return re.sub(r"[^A-Za-z0-9_.-]", "_", node)[:60]


def _json(value: object) -> bytes:
    return json.dumps(value, indent=1, ensure_ascii=False).encode()


class _Archive:
    """A tar.gz whose bytes depend on nothing but what is added."""

    def __init__(self, target: IO[bytes], folder: str) -> None:
        self._folder = folder
        self._gzip = gzip.GzipFile("", "wb", COMPRESSION, target, mtime=0)
        self._tar = tarfile.open(fileobj=self._gzip, mode="w|", format=tarfile.USTAR_FORMAT)  # noqa: SIM115

    def add(self, name: str, content: bytes) -> None:
        info = tarfile.TarInfo(f"{self._folder}/{name}")
        info.size, info.mode = len(content), 0o644
        self._tar.addfile(info, io.BytesIO(content))

    def close(self) -> None:
        self._tar.close()
        self._gzip.close()


async def read_parts(stream: IO[bytes], part_bytes: int = 1 << 18) -> AsyncIterator[bytes]:
    """`stream` from its start, closed at the end."""
    with closing(stream):
        stream.seek(0)
        while part := await asyncio.to_thread(stream.read, part_bytes):
            yield part
