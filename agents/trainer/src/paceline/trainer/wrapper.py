"""The ProcessGroup wrapper: the seam for gloo and every backend whose work ends on the host.

c10d calls a ProcessGroup from Python and from C++ (DDP's reducer, functional collectives). Only a
subclass, whose methods C++ finds through the trampoline, sees both. Two forms, chosen by what the
constructor of this torch can make (docs/adr/0008-how-the-hook-gets-in.md):

- derived: the subclass is the group and calls its base. torch's own hooks keep working.
- holding: the subclass holds a plain group with the same backends and hands every call on to it,
  for a torch whose constructor with a store makes no trampoline (2.13).
"""

from collections.abc import Callable, Mapping
from typing import Any

from paceline.trainer.operations import POINT_TO_POINT, Describe
from paceline.trainer.watch import FOLLOWED_MAX, UNSEEN, Followed

WATCH = "paceline_watch"
_MIRRORED = ("_register_backend", "_set_default_backend", "_set_group_name", "_set_group_desc")
_BY_STORE = ("get_group_store", "split_group", "merge_remote_group")
# C++ asks for the newer name and then for the older one; a derived class with both calls itself for ever.
_RENAMED = {
    "_allgather_base": "all_gather_single",
    "_reduce_scatter_base": "reduce_scatter_single",
    "alltoall_base": "all_to_all_single",
    "allgather_into_tensor_coalesced": "all_gather_single_coalesced",
    "reduce_scatter_tensor_coalesced": "reduce_scatter_single_coalesced",
}


def make_group_class(base: Any, describers: Mapping[str, Describe], store: Any) -> Any:
    """A subclass of torch's ProcessGroup in the form this torch allows; `store` is for a trial."""
    derived = _derived_class(base, describers)
    try:
        derived(store, 0, 1)
    except (TypeError, RuntimeError):
        return _holding_class(base, describers)
    return derived


def _derived_class(base: Any, describers: Mapping[str, Describe]) -> Any:
    members: dict[str, Any] = {"__doc__": "A process group seen by Paceline.", WATCH: None}
    for name, describe in describers.items():
        if hasattr(base, name) and not hasattr(base, _RENAMED.get(name, "")):
            method = _observed(getattr(base, name), describe, name in POINT_TO_POINT, _itself)
            # pybind11 knows a call of the base from inside an override by the name of the frame.
            method.__code__ = method.__code__.replace(co_name=name)
            members[name] = method
    return type("ObservedProcessGroup", (base,), members)


def _holding_class(base: Any, describers: Mapping[str, Describe]) -> Any:
    def __init__(self: Any, store: Any, rank: int, size: int) -> None:
        base.__init__(self, rank, size)
        self.paceline_inner = base(store, rank, size)

    members: dict[str, Any] = {
        "__doc__": "A process group seen by Paceline.",
        WATCH: None,
        "__init__": __init__,
    }
    for name, describe in describers.items():
        if hasattr(base, name):
            members[name] = _observed(getattr(base, name), describe, name in POINT_TO_POINT, _inner)
    for name in _MIRRORED:
        members[name] = _mirrored(getattr(base, name))
    for name in filter(lambda name: hasattr(base, name), _BY_STORE):
        members[name] = _forwarded(getattr(base, name))
    return type("ObservedProcessGroup", (base,), members)


def _itself(group: Any) -> Any:
    return group


def _inner(group: Any) -> Any:
    return group.paceline_inner


def _observed(
    call: Callable[..., Any], describe: Describe, point_to_point: bool, target: Callable[[Any], Any]
) -> Any:
    def method(self: Any, *arguments: Any, **keywords: Any) -> Any:
        watch = self.paceline_watch
        if watch is None or watch.guard.off:
            return call(target(self), *arguments, **keywords)
        ticket = watch.enter(describe, arguments, keywords)
        if ticket == UNSEEN:
            return call(target(self), *arguments, **keywords)
        try:
            work = call(target(self), *arguments, **keywords)
        except BaseException:
            watch.fail(ticket)
            raise
        return watch.issued(ticket, point_to_point or _waits(arguments, keywords), work)

    return method


def _waits(arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> bool:
    """Whether the options say that the caller waits at once, as `async_op=False` does."""
    options = keywords.get("opts") if keywords else arguments[-1] if arguments else None
    return getattr(options, "asyncOp", True) is False


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

    def __init__(self: Any, inner: Any, finish: Callable[[bool], None], followed: Followed) -> None:
        base.__init__(self)
        self.paceline_inner = inner
        self.paceline_finish = finish
        self.paceline_followed = followed

    def wait(self: Any, *arguments: Any, **keywords: Any) -> Any:
        try:
            result = self.paceline_inner.wait(*arguments, **keywords)
        except BaseException:
            _report(self, True)
            raise
        _report(self, False)
        return result

    def __del__(self: Any) -> None:
        # Nobody can wait for it any more, so it holds nobody up: an open operation would say it does.
        if getattr(self, "paceline_finish", None) is not None:
            _report(self, False)

    def is_completed(self: Any) -> Any:
        completed = self.paceline_inner.is_completed()
        if completed:
            _report(self, False)
        return completed

    def get_future(self: Any) -> Any:
        future = self.paceline_inner.get_future()
        followed, token = self.paceline_followed, -id(self)

        def settle(done: Any) -> None:
            _report(self, _has_failed(done))
            followed.pop(token, None)

        if self.paceline_finish is not None and len(followed) < FOLLOWED_MAX:  # its owner may never wait now
            followed[token] = True
            future.add_done_callback(settle)
        return future

    members: dict[str, Any] = {"__init__": __init__, "__doc__": "A Work seen by Paceline."}
    for name in dir(base):
        if not name.startswith("__") and name != "_pybind11_conduit_v1_" and callable(getattr(base, name)):
            members[name] = _forwarded(getattr(base, name))
    members |= {"wait": wait, "is_completed": is_completed, "get_future": get_future, "__del__": __del__}
    return type("ObservedWork", (base,), members)


def _report(work: Any, failed: bool) -> None:
    finish, work.paceline_finish = work.paceline_finish, None
    if finish is not None:
        finish(failed)


def _has_failed(future: Any) -> bool:
    try:
        future.value()
    except Exception:
        return True
    return False


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
