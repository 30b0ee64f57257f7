"""Where NCCL dumps its graphs, as the hook tells the agent."""

import pytest

from paceline.trainer.surroundings import nccl_dumps

GRAPH, MACHINE = "NCCL_GRAPH_DUMP_FILE", "NCCL_TOPO_DUMP_FILE"


@pytest.mark.parametrize(
    ("environment", "found"),
    [
        ({}, ("", "", 0)),
        ({GRAPH: "/g"}, ("/g", "", 0)),
        ({GRAPH: "/g", MACHINE: "/m", f"{GRAPH}_RANK": "0x3", f"{MACHINE}_RANK": "3"}, ("/g", "/m", 3)),
        ({GRAPH: "/g", MACHINE: "/m", f"{MACHINE}_RANK": "1"}, ("/g", "", 0)),  # another rank's machine
        ({GRAPH: "/g", f"{GRAPH}_RANK": "one"}, ("/g", "", 0)),
        ({GRAPH: "/g", f"{GRAPH}_RANK": "-1"}, ("/g", "", 0)),
        ({GRAPH: "g" * 5000, f"{GRAPH}_RANK": str(1 << 40)}, ("", "", 0)),
    ],
)
def test_what_nccl_will_write(environment: dict[str, str], found: tuple[str, str, int]) -> None:
    assert nccl_dumps(environment) == found
