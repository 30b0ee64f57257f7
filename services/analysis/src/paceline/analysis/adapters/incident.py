"""The bundle of an incident, as the API writes it: list of contents, live evidence, and records beside it.

The format is docs/adr/0027-incident-bundles.md; writer and reader meet in `FORMAT` and the field names.
"""

import hashlib
import json
from collections.abc import Iterator
from typing import Any

from paceline.analysis.adapters.model import Companion, Document, UnusableInput
from paceline.analysis.bundles import MAGIC, BundleError, load_judged
from paceline.analysis.facts import Fact, IncidentSeen, LiveEvidence, Origin, PublishedVerdict

FORMAT = "paceline-incident-1"
PART_FORMAT = "paceline-incident-part-1"
_HEAD = 256
_FILES_MAX = 1000
_ROOTS_MAX = 1000


class IncidentBundles:
    """The list of contents; a damaged one says nothing, the evidence beside it still speaks."""

    name = "paceline incident"

    def recognise(self, document: Document) -> bool:
        return f'"format": "{FORMAT}"'.encode() in document.content[:_HEAD]

    def read(self, document: Document) -> Iterator[Fact]:
        try:
            content = json.loads(document.content)
            incident = content["incident"]
            files = [entry for entry in content["files"][:_FILES_MAX] if entry.get("what") == "evidence"]
            yield IncidentSeen(
                origin=Origin(document.name),
                label=str(incident["label"])[:80],
                job_name=str(incident["job"])[:200],
                verdict_id=str(incident["verdict_id"])[:200],
                published=tuple(_published(entry) for entry in files if entry["verdict"]),
            )
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
            return


class IncidentParts(Companion):
    """Records for people and programs that stand in the evidence as well."""

    name = "paceline incident records"

    def recognise(self, document: Document) -> bool:
        return f'"format": "{PART_FORMAT}"'.encode() in document.content[:_HEAD]

    def read(self, document: Document) -> Iterator[Fact]:
        return iter(())


class LiveEvidences:
    """What a live verdict was judged from (`analysis.bundles`)."""

    name = "paceline evidence"

    def recognise(self, document: Document) -> bool:
        return document.content.startswith(MAGIC)

    def read(self, document: Document) -> Iterator[Fact]:
        try:
            load_judged(document.content)
        except BundleError as error:
            raise UnusableInput(f"{document.name}: {error}") from None
        digest = hashlib.sha256(document.content).hexdigest()
        yield LiveEvidence(origin=Origin(document.name), packed=document.content, sha256=digest)


def root_text(root: dict[str, Any]) -> str:
    """A root as text: equal for equal roots, whoever wrote them."""
    return json.dumps(
        {name: value for name, value in root.items() if value not in (None, [], ())}, sort_keys=True
    )


def _published(entry: dict[str, Any]) -> PublishedVerdict:
    verdict = entry["verdict"]
    return PublishedVerdict(
        verdict_id=str(entry["verdict_id"])[:200],
        revision=int(entry["revision"]),
        evidence_sha256=str(entry["sha256"]),
        verdict_class=str(verdict["class"]),
        sub_reason=str(verdict["sub_reason"]),
        roots=tuple(root_text(root) for root in verdict["roots"][:_ROOTS_MAX]),
    )
