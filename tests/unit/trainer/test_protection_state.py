"""State to raw bytes and JSON and back: what fits, what is refused, and that nothing is lost."""

import json
import math
import sys
from collections import Counter, OrderedDict
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.trainer.protection import DuplicateName, Part, Protected, StateMismatch, UnprotectableState
from paceline.trainer.protection.skeleton import decode, encode
from tests.unit.trainer.captured import parts

LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary()
KEYS = st.text() | st.integers() | st.booleans() | st.tuples(st.integers(), st.text())
TREES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(KEYS, inner, max_size=4)
        | st.dictionaries(st.text(), inner, max_size=4).map(OrderedDict)
        | st.dictionaries(st.text(), st.integers(), max_size=4).map(Counter)
    ),
    max_leaves=20,
)


def no_tensor(value: Any, path: str) -> int:
    raise AssertionError(path)


@settings(deadline=None)
@given(TREES)
def test_what_is_encoded_comes_back_equal_and_of_its_type(tree: Any) -> None:
    back = decode(json.loads(json.dumps(encode(tree, no_tensor))), [])
    assert back == tree
    assert type(back) is type(tree)


@pytest.mark.parametrize("value", [object(), {1, 2}, lambda: None, {"a": {"b": [object()]}}, {object(): 1}])
def test_what_is_not_json_is_refused_with_its_place(value: Any) -> None:
    with pytest.raises(UnprotectableState, match=r"loader"):
        encode(value, no_tensor, "loader")


@pytest.mark.parametrize(
    "node",
    [{"": "pickle", "v": "x"}, {"": "tensor", "v": 9}, {"": "dtype", "v": "save"}, {"": "tensor", "v": -1}],
)
def test_a_skeleton_from_the_wire_can_only_hold_known_kinds(node: Any) -> None:
    pytest.importorskip("torch")
    with pytest.raises(StateMismatch):
        decode(node, [])


class Thing:
    def __init__(self, state: Any) -> None:
        self.state = state

    def state_dict(self) -> Any:
        return self.state

    def load_state_dict(self, state: Any) -> None:
        self.state = state


@pytest.mark.needs_torch
class TestWithTensors:
    @pytest.fixture(autouse=True)
    def _torch(self) -> None:
        self.torch = pytest.importorskip("torch")

    def test_names_are_unique_and_states_are_checked_at_the_start(self) -> None:
        with pytest.raises(DuplicateName, match="loader"):
            Protected([("loader", Thing({})), ("loader", Thing({}))])
        with pytest.raises(UnprotectableState, match=r"loader\.state\.file"):
            Protected({"loader": Thing({"file": object()})})
        with pytest.raises(UnprotectableState, match="no state_dict"):
            Protected({"loader": object()})
        with pytest.raises(UnprotectableState, match="dense"):
            Protected({"loader": Thing({"s": self.torch.eye(3).to_sparse()})})

    def test_tensors_of_every_kind_and_shape_come_back_bitwise(self) -> None:
        torch = self.torch
        state = {
            "half": torch.randn(3, 5).to(torch.bfloat16),
            "nan": torch.tensor([math.nan, math.inf, -0.0]),
            "flags": torch.tensor([True, False]),
            "view": torch.arange(24).reshape(4, 6).t()[1:],
            "empty": torch.empty(0, 3),
            "scalar": torch.tensor(7, dtype=torch.int16),
            "complex": torch.randn(2, dtype=torch.complex64),
            "position": (3, [1.5, None], {2: "b"}),
        }
        thing = Thing(state)
        protected = Protected({"thing": thing}, random_numbers=False)
        held = parts(protected)
        thing.state = None
        protected.load(held[Part.OWN], held[Part.SHARED])
        held[Part.OWN].zero_()
        for name, value in state.items():
            if name != "position":
                assert thing.state[name].dtype == value.dtype
                assert torch.equal(thing.state[name], value) or name == "nan"
        assert thing.state["position"] == state["position"]
        assert math.copysign(1, thing.state["nan"][2]) == -1
        assert math.isnan(thing.state["nan"][0])

    def test_tied_weights_are_held_once(self) -> None:
        torch = self.torch
        model = torch.nn.ModuleDict({"a": torch.nn.Linear(64, 64, bias=False)})
        model["b"] = torch.nn.Linear(64, 64, bias=False)
        model["b"].weight = model["a"].weight
        snapshot = Protected({"model": model}, random_numbers=False).capture()
        snapshot.complete()
        assert snapshot.ends[Part.OWN] == 64 * 64 * 4

    def test_random_numbers_go_on_as_they_would_have(self) -> None:
        import random

        numpy = pytest.importorskip("numpy")
        protected = Protected({})
        held = parts(protected)
        drawn = [random.random(), numpy.random.rand(), float(self.torch.rand(()))]
        protected.load(held[Part.OWN], held[Part.SHARED])
        assert [random.random(), numpy.random.rand(), float(self.torch.rand(()))] == drawn

    def test_a_copy_of_another_model_is_refused(self) -> None:
        torch = self.torch
        held = parts(Protected({"model": torch.nn.Linear(2, 3)}, random_numbers=False))
        for other in (torch.nn.Linear(2, 4), torch.nn.Conv1d(2, 3, 1), torch.nn.Linear(2, 3, bias=False)):
            with pytest.raises(StateMismatch):
                Protected({"model": other}, random_numbers=False).load(held[Part.OWN], held[Part.SHARED])

    def test_a_torn_header_is_refused(self) -> None:
        protected = Protected({"model": self.torch.nn.Linear(2, 3)}, random_numbers=False)
        held = parts(protected)
        for own in (held[Part.OWN][:-8], held[Part.OWN][:4], held[Part.OWN][8:]):
            with pytest.raises(StateMismatch):
                protected.load(own.clone(), held[Part.SHARED])

    @pytest.mark.parametrize("length", [0, 1, 4095, 4096, 229_377, 1_000_003])
    def test_a_checksum_is_the_same_with_and_without_numpy(
        self, length: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from paceline.trainer.protection.checksum import checksum

        data = self.torch.randint(0, 256, (length,), dtype=self.torch.uint8)
        found = checksum(data)
        monkeypatch.delitem(sys.modules, "numpy", raising=False)
        assert checksum(data) == found

    def test_every_kind_of_damage_changes_the_checksum(self) -> None:
        from paceline.trainer.protection.checksum import checksum

        torch = self.torch
        data = torch.randint(0, 256, (300_011,), dtype=torch.uint8)
        good = checksum(data)
        assert checksum(data.clone()) == good
        for index in (0, 4095, 4096, 299_999, 300_010):
            bad = data.clone()
            bad[index] ^= 16
            assert checksum(bad) != good
        swapped = data.clone()
        swapped[:4096], swapped[4096:8192] = data[4096:8192], data[:4096]
        torn = data.clone()
        torn[100_000:] = 0
        for bad in (swapped, torn, data[:-1].clone(), data.roll(8)):
            assert checksum(bad) != good
