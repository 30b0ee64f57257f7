"""The ProcessGroup wrapper: the seam for gloo and every backend without native hooks.

c10d calls a ProcessGroup from Python and from C++ (DDP's reducer, functional collectives). Only an
object whose methods C++ finds through the trampoline sees both, so the group that c10d gets is a
subclass that holds a plain group with the same backends and hands every call on to it
(docs/adr/0008-how-the-hook-gets-in.md).
"""

from collections.abc import Callable, Mapping
from typing import Any

from paceline.trainer.operations import POINT_TO_POINT, Describe
from paceline.trainer.watch import UNSEEN

INNER = "paceline_inner"
WATCH = "paceline_watch"
_MIRRORED = ("_register_backend", "_set_default_backend", "_set_group_name", "_set_group_desc")
_BY_STORE = ("get_group_store", "split_group", "merge_remote_group")


def make_group_class(base: Any, describers: Mapping[str, Describe]) -> Any:
    """A subclass of torch's ProcessGroup, made from `ProcessGroup` itself at run time."""
    members: dict[str, Any] = {"__doc__": "A process group seen by Paceline.", "__init__": _initializer(base)}
    for name, describe in describers.items():
        if hasattr(base, name):
            members[name] = _observed(getattr(base, name), describe, name in POINT_TO_POINT)
    for name in _MIRRORED:
        members[name] = _mirrored(getattr(base, name))
    for name in filter(lambda name: hasattr(base, name), _BY_STORE):
        members[name] = _forwarded(getattr(base, name))
    return type("ObservedProcessGroup", (base,), members)


def _initializer(base: Any) -> Callable[..., None]:
    def __init__(self: Any, store: Any, rank: int, size: int) -> None:
        # The constructor that takes a store makes no trampoline object in torch 2.13.
        base.__init__(self, rank, size)
        setattr(self, INNER, base(store, rank, size))
        setattr(self, WATCH, None)

    return __init__


def _observed(call: Callable[..., Any], describe: Describe, point_to_point: bool) -> Callable[..., Any]:
    def method(self: Any, *arguments: Any, **keywords: Any) -> Any:
        watch = self.paceline_watch
        if watch is None or watch.guard.off:
            return call(self.paceline_inner, *arguments, **keywords)
        ticket = watch.enter(describe, arguments, keywords)
        if ticket == UNSEEN:
            return call(self.paceline_inner, *arguments, **keywords)
        try:
            work = call(self.paceline_inner, *arguments, **keywords)
        except BaseException:
            watch.fail(ticket)
            raise
        return watch.issued(ticket, point_to_point, work)

    return method


def _mirrored(call: Callable[..., Any]) -> Callable[..., Any]:
    def method(self: Any, *arguments: Any, **keywords: Any) -> Any:
        call(self.paceline_inner, *arguments, **keywords)
        return call(self, *arguments, **keywords)

    return method


def _forwarded(call: Callable[..., Any]) -> Callable[..., Any]:
    def method(self: Any, *arguments: Any, **keywords: Any) -> Any:
        return call(self.paceline_inner, *arguments, **keywords)

    return method


def make_work_class(base: Any) -> Any:
    """A subclass of torch's Work that reports completion when its owner waits or asks."""

    def __init__(self: Any, inner: Any, finish: Callable[[bool], None]) -> None:
        base.__init__(self)
        self.paceline_inner = inner
        self.paceline_finish = finish

    def wait(self: Any, *arguments: Any, **keywords: Any) -> Any:
        try:
            result = self.paceline_inner.wait(*arguments, **keywords)
        except BaseException:
            _report(self, True)
            raise
        _report(self, False)
        return result

    def is_completed(self: Any) -> Any:
        completed = self.paceline_inner.is_completed()
        if completed:
            _report(self, False)
        return completed

    members: dict[str, Any] = {"__init__": __init__, "__doc__": "A Work seen by Paceline."}
    for name in dir(base):
        if not name.startswith("__") and name != "_pybind11_conduit_v1_" and callable(getattr(base, name)):
            members[name] = _forwarded(getattr(base, name))
    members |= {"wait": wait, "is_completed": is_completed}
    return type("ObservedWork", (base,), members)


def _report(work: Any, failed: bool) -> None:
    finish, work.paceline_finish = work.paceline_finish, None
    if finish is not None:
        finish(failed)


class Seam(type):
    """Stands in for the name `ProcessGroup` inside c10d while a group is made.

    Calling it makes an observed group; class tests and attributes are those of the real class.
    """

    base: Any
    make: Callable[..., Any]

    def __call__(cls, *arguments: Any, **keywords: Any) -> Any:
        return cls.make(*arguments, **keywords)

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, cls.base)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, cls.base)

    def __getattr__(cls, name: str) -> Any:
        return getattr(type.__getattribute__(cls, "base"), name)


def make_seam(base: Any, make: Callable[..., Any]) -> Any:
    """A class object for `c10d.ProcessGroup`; `make(store, rank, size)` must not raise."""
    return Seam("ProcessGroup", (), {"base": base, "make": staticmethod(make)})
