"""A state that is not listed anew is captured as one that is: to the bit, whatever has changed between."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from paceline.trainer.protection import Part, Protected
from paceline.trainer.protection import state as states
from tests.unit.trainer.captured import parts

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.needs_torch


class Job:
    """A model with buffers and tied weights, and its optimizer, some steps old."""

    def __init__(self, make: Callable[..., Any] = torch.optim.AdamW) -> None:
        torch.manual_seed(1)
        first, last = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8, bias=False)
        last.weight = first.weight
        self.model = torch.nn.Sequential(first, torch.nn.BatchNorm1d(8), last)
        self.optimizer = make(self.model.parameters(), lr=0.1)
        self.protected = self.fresh()
        for _ in range(2):
            self.step()
            parts(self.protected)

    def fresh(self) -> Protected:
        objects = {"model": self.model, "optimizer": self.optimizer}
        return Protected(objects, replicas=2, random_numbers=False)

    def step(self) -> None:
        self.optimizer.zero_grad()
        self.model(torch.randn(4, 8)).square().sum().backward()
        self.optimizer.step()

    def check(self) -> None:
        found, wanted = parts(self.protected), parts(self.fresh())
        assert all(torch.equal(found[part], wanted[part]) for part in Part)


def listed(protected: Protected, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The sections that the next capture lists anew."""
    names: list[str] = []
    write_down = states.Snapshot._write_down

    def note(snapshot: Any, name: str, section: Any, start: Any) -> Any:
        names.append(f"{name}.{section.key}")
        return write_down(snapshot, name, section, start)

    with monkeypatch.context() as patch:
        patch.setattr(states.Snapshot, "_write_down", note)
        protected.capture().complete()
    return names


def test_a_step_lists_nothing_that_has_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job()
    job.step()
    assert listed(job.protected, monkeypatch) == ["optimizer.groups"]
    job.check()


def replace_parameter(job: Job) -> None:
    job.model[2].weight = torch.nn.Parameter(torch.randn(8, 8))


def swap_data(job: Job) -> None:
    job.model[0].bias.data = torch.randn(8)


def transpose_data(job: Job) -> None:
    job.model[0].weight.data = job.model[0].weight.data.t()


def replace_buffer(job: Job) -> None:
    job.model[1].running_mean = torch.randn(8)


def hide_buffer(job: Job) -> None:
    job.model[1]._non_persistent_buffers_set.add("running_var")


def add_layer(job: Job) -> None:
    job.model.append(torch.nn.Linear(8, 2))


def exchange_layer(job: Job) -> None:
    job.model[1] = torch.nn.LayerNorm(8)


def drop_bias(job: Job) -> None:
    job.model[0].bias = None


def add_group(job: Job) -> None:
    job.optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(3))], "lr": 0.5})


def exchange_order(job: Job) -> None:
    job.optimizer.param_groups[0]["params"].reverse()


def load_optimizer(job: Job) -> None:
    job.optimizer.load_state_dict(job.optimizer.state_dict())


def forget_state(job: Job) -> None:
    job.optimizer.state.popitem()


def count_in_python(job: Job) -> None:
    next(iter(job.optimizer.state.values()))["seen"] = 7


def nest_in_state(job: Job) -> None:
    next(iter(job.optimizer.state.values()))["history"] = [1, torch.ones(2)]


def hook_into_module(job: Job) -> None:
    def scale(_: Any, state: dict[str, Any], prefix: str, __: Any) -> None:
        state[prefix + "0.bias"] = state[prefix + "0.bias"] * 2

    job.model.register_state_dict_post_hook(scale)


def hook_into_optimizer(job: Job) -> None:
    job.optimizer.register_state_dict_post_hook(lambda _, state: {**state, "state": {}})


def load_module(job: Job) -> None:
    job.model.load_state_dict({key: value + 1 for key, value in job.model.state_dict().items()})


CHANGES = [
    replace_parameter, swap_data, transpose_data, replace_buffer, hide_buffer, add_layer, exchange_layer,
    drop_bias, add_group, exchange_order, load_optimizer, forget_state, count_in_python, nest_in_state,
    hook_into_module, hook_into_optimizer, load_module,
]  # fmt: skip


def test_what_is_listed_each_time_is_not_kept() -> None:
    """Or the tensors of a listing long ago would live as long as the job."""
    job = Job()
    assert ("model", "parameters") in job.protected._known
    hook_into_module(job)
    parts(job.protected)
    assert ("model", "parameters") not in job.protected._known


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_every_change_is_seen(change: Callable[[Job], None]) -> None:
    job = Job()
    change(job)
    job.check()
    change(job)
    job.check()


class Counting(torch.optim.SGD):  # type: ignore[misc, name-defined]
    """Counts in Python, as many optimizers do that are not torch's."""

    def step(self) -> None:
        super().step()
        for values in self.state.values():
            values["count"] = values.get("count", 1000) + 1


@pytest.mark.parametrize("make", [torch.optim.SGD, torch.optim.Adagrad, torch.optim.RMSprop, Counting])
def test_steps_of_other_optimizers_are_seen(make: Callable[..., Any]) -> None:
    job = Job(make)
    for _ in range(3):
        job.step()
        job.check()


class Loader:
    """Gives the same dict each time, and changes it."""

    def __init__(self) -> None:
        self.state = {"position": 0, "order": torch.arange(3)}

    def state_dict(self) -> dict[str, Any]:
        return self.state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.state.update(state)


def test_an_object_that_gives_the_same_dict_is_read_each_time() -> None:
    loader = Loader()
    protected = Protected({"loader": loader}, random_numbers=False)
    held = parts(protected)
    loader.state["position"] = 1
    loader.state["order"] += 1
    later = parts(protected)
    protected.load(held[Part.OWN], held[Part.SHARED])
    assert (loader.state["position"], loader.state["order"].tolist()) == (0, [0, 1, 2])
    protected.load(later[Part.OWN], later[Part.SHARED])
    assert (loader.state["position"], loader.state["order"].tolist()) == (1, [1, 2, 3])


@pytest.fixture
def world() -> Iterator[None]:
    import torch.distributed as dist

    store = dist.HashStore()  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("world")
def test_shards_of_fsdp_are_listed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
    mesh = init_device_mesh("cpu", (1,))
    for part in (*model, model):
        fully_shard(part, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    objects = {"model": model, "optimizer": optimizer}
    protected = Protected(objects, random_numbers=False)
    for _ in range(3):
        model(torch.randn(4, 8)).square().sum().backward()
        optimizer.step()
        found, wanted = parts(protected), parts(Protected(objects, random_numbers=False))
        assert all(torch.equal(found[part], wanted[part]) for part in Part)
    assert listed(protected, monkeypatch) == ["optimizer.groups"]
    model(torch.randn(4, 8)).square().sum()  # its parameters are whole until backward has run
    found = parts(protected)
    assert all(torch.equal(found[part], wanted[part]) for part in Part)
