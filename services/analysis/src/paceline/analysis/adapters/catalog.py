"""All adapters, in the order of asking. A new tool is one module and one line here or in `catalog_lines`.

Both halves are imported when something is asked for them: a folder of dumps needs none of the others.
"""

from collections.abc import Iterator

from paceline.analysis.adapters.flight_pickle import FlightPickles
from paceline.analysis.adapters.model import DocumentAdapter, LineAdapter
from paceline.analysis.adapters.reading import Adapters, Later


def _documents() -> Iterator[DocumentAdapter]:
    yield FlightPickles()  # by the first two bytes, which no other document has
    from paceline.analysis.adapters.collected import CollectedProcesses
    from paceline.analysis.adapters.flight_json import FlightJson
    from paceline.analysis.adapters.incident import IncidentBundles, IncidentParts, LiveEvidences
    from paceline.analysis.adapters.json_documents import JsonDocuments
    from paceline.analysis.adapters.nccl_profiles import NcclProfiles
    from paceline.analysis.adapters.nccl_ras_json import RasJson
    from paceline.analysis.adapters.recording import Recordings

    yield from (IncidentBundles(), IncidentParts(), LiveEvidences(), Recordings())
    yield from (CollectedProcesses(), FlightJson(), RasJson(), NcclProfiles())
    yield JsonDocuments()  # last of all: every other JSON document is asked for first


def _lines() -> Iterator[LineAdapter]:
    from paceline.analysis.adapters.catalog_lines import LINES

    yield from LINES


ADAPTERS = Adapters(documents=Later(_documents), lines=Later(_lines))
