"""Identifiers, signed commands, golden schemas, clear errors."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.contracts import ids
from paceline.contracts.commands import Command, CommandKind, is_signed, sign
from paceline.contracts.registry import HealthEvent, HealthKind
from paceline.contracts.schemas import ContractError, build_schemas, dump_json, load_json
from paceline.contracts.topics import TOPICS

SCHEMAS = Path(__file__).parents[3] / "contracts" / "schemas"


@given(st.lists(st.integers(0, 5000), max_size=80))
def test_ranks_survive_their_text_form(ranks: list[int]) -> None:
    assert ids.parse_ranks(ids.format_ranks(ranks)) == ranks


@pytest.mark.parametrize(
    ("ranks", "text"), [([0, 1, 2, 3], "0-3"), ([0, 8, 16], "0-16/8"), ([5], "5"), ([3, 1], "3,1"), ([], "")]
)
def test_ranks_are_written_short(ranks: list[int], text: str) -> None:
    assert ids.format_ranks(ranks) == text


@pytest.mark.parametrize("text", ["a", "3-1", "1-2-3", "0-9/0", "0-99999999999", "-4"])
def test_bad_ranks_are_named(text: str) -> None:
    with pytest.raises(ValueError, match="ranks"):
        ids.parse_ranks(text)


def test_communicator_id_depends_on_name_members_and_instance() -> None:
    same = {ids.communicator_id("tp_1", [0, 1]) for _ in range(3)}
    others = {
        ids.communicator_id("tp_1", [1, 0]),
        ids.communicator_id("tp_2", [0, 1]),
        ids.communicator_id("tp_1", [0, 1], 1),
    }
    assert len(same) == 1
    assert len(same | others) == 4
    comm = same.pop()
    assert ids.parse_communicator(ids.format_communicator(comm)) == comm
    assert comm == 0x0 or len(ids.format_communicator(comm)) == 16


def test_derived_ids_are_equal_for_equal_parts() -> None:
    assert ids.derived_id("epi", "job", 1) == ids.derived_id("epi", "job", 1)
    assert ids.derived_id("epi", "job", 1) != ids.derived_id("epi", "job1", "")
    assert ids.new_id("inc") != ids.new_id("inc")


def test_committed_schemas_are_the_generated_ones() -> None:
    committed = {path.stem: json.loads(path.read_text()) for path in SCHEMAS.glob("*.json")}
    assert committed == build_schemas(), "run python -m paceline.contracts.schemas contracts/schemas"


def test_signature_covers_every_field() -> None:
    command = Command("cmd_1", CommandKind.FENCE, "n1", "j", "a", 3, 100.0, rank=5, pid=7, pid_start=9)
    signed = sign(command, b"key")
    assert is_signed(signed, b"key")
    assert not is_signed(signed, b"other")
    assert not is_signed(replace(signed, rank=6), b"key")
    assert not is_signed(replace(signed, generation=4), b"key")
    assert not is_signed(command, b"key")
    assert is_signed(load_json(Command, dump_json(signed)), b"key")


def test_bad_json_names_field_value_and_expectation() -> None:
    event = HealthEvent("h1", HealthKind.XID, "n", "j", "a", 1, 2, 3.0)
    assert load_json(HealthEvent, dump_json(event)) == event
    broken = dump_json(event).replace(b'"xid"', b'"melted"')
    with pytest.raises(ContractError, match=r"HealthEvent: kind is 'melted'.*process_exit"):
        load_json(HealthEvent, broken)
    with pytest.raises(ContractError, match="Invalid JSON"):
        load_json(HealthEvent, b"{")


def test_topics_have_unique_versioned_names() -> None:
    names = [topic.name for topic in TOPICS]
    assert len(set(names)) == len(names)
    assert all(name.startswith("paceline.") and name.endswith(".v1") for name in names)
    compacted = {topic.name for topic in TOPICS if topic.config.get("cleanup.policy") == "compact"}
    assert compacted == {"paceline.jobs.v1", "paceline.detector-state.v1"}
