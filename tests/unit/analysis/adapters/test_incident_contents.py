"""The list of contents of an incident's bundle: what is damaged says nothing."""

import json

import pytest

from paceline.analysis.adapters.incident import FORMAT, IncidentBundles
from paceline.analysis.adapters.model import Document

VERDICT = {"class": "H1", "sub_reason": "none", "roots": []}
ENTRY = {"what": "evidence", "verdict_id": "ver_1", "revision": 1, "sha256": "", "verdict": VERDICT}
INCIDENT = {"label": "INC-1", "job": "llama", "verdict_id": "ver_1"}


def read(**changes: object) -> list[object]:
    content = json.dumps({"format": FORMAT, "incident": INCIDENT, "files": [ENTRY | changes]}).encode()
    document = Document("manifest.json", content)
    assert IncidentBundles().recognise(document)
    return list(IncidentBundles().read(document))


def test_what_was_published_is_read() -> None:
    assert len(read()) == 1


@pytest.mark.parametrize("revision", [float("inf"), float("nan"), "x", None, []])
def test_a_damaged_one_says_nothing(revision: object) -> None:
    assert read(revision=revision) == []
