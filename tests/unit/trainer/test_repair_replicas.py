"""Whom the parameters of a job are equal with."""

from typing import Any

from paceline.trainer.repair.replicas import replicas_of


class Group:
    def __init__(self, *ranks: int) -> None:
        self.ranks = ranks

    def size(self) -> int:
        return len(self.ranks)


def ranks_of(group: Group) -> tuple[int, ...]:
    return group.ranks


class Module:
    def __init__(self, *parameters: object) -> None:
        self._parameters = parameters

    def parameters(self) -> tuple[object, ...]:
        return self._parameters


class DistributedDataParallel(Module):
    def __init__(self, group: Group, *parameters: object) -> None:
        super().__init__(*parameters)
        self.process_group = group


class Optimizer:
    def __init__(self, *parameters: object) -> None:
        self.param_groups = [{"params": list(parameters)}]


def name(group: Group) -> str:
    objects: dict[str, Any] = {"model": DistributedDataParallel(group, object())}
    return replicas_of(objects, ranks_of).name(ranks_of)


def test_each_stage_is_a_replica_set_of_its_own_and_its_ranks_agree() -> None:
    assert name(Group(0, 2)) == name(Group(2, 0)) != name(Group(1, 3))


def test_what_ddp_does_not_keep_equal_is_the_ranks_own() -> None:
    ours, other, loose = object(), object(), object()
    world = Group(0, 1, 2, 3)
    objects = {
        "model": DistributedDataParallel(world, ours),
        "optimizer": Optimizer(ours),
        "expert": DistributedDataParallel(Group(0, 2), other),
        "head": Module(loose),
        "both": Optimizer(ours, loose),
        "scheduler": object(),
    }
    found = replicas_of(objects, ranks_of)
    assert found.size == 4
    assert found.own == {"expert", "head", "both"}
    assert found.shares


def test_without_ddp_nothing_is_equal() -> None:
    found = replicas_of({"model": Module(object())}, ranks_of)
    assert (found.size, found.own, found.shares) == (1, frozenset(), False)
