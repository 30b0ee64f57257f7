"""Puts the hook into torch.distributed: five names of c10d and two of its Store are replaced.

`_new_process_group_helper` makes every group but those of `split_group`, so these two are the place
to observe from. `init_process_group` and `destroy_process_group` mark begin and end,
`_store_based_barrier`, `Store.wait` and `Store.get` mark waits. Each replacement calls the original
with what it was given, whatever happens here.
"""

import functools
import inspect
import logging
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from paceline.contracts.codes import HostWait, Phase
from paceline.trainer.adapters import Adapter, choose_adapter
from paceline.trainer.guard import Guard
from paceline.trainer.session import Group, OpenGroup, Session
from paceline.trainer.settings import HookChoice

log = logging.getLogger("paceline")
MARK = "_paceline_original"
WORLD = "_world"
HELPER = "_new_process_group_helper"
C10D = "torch.distributed.distributed_c10d"
OpenSession = Callable[[str], "Session | None"]
Around = Callable[[Callable[..., Any], Any, Any], Any]  # original, arguments, keywords


class Hook:
    """The replacements of one process; `open_session(init_method)` gives None where nothing is to be done."""

    def __init__(
        self, torch: Any, c10d: Any, open_session: OpenSession, choice: HookChoice, guard: Guard
    ) -> None:
        self._torch = torch
        self._c10d = c10d
        self._open_session = open_session
        self._choice = choice
        self.guard = guard
        self.outside = False  # a standby: it has no rank yet, and its groups are none of the job's
        self.session: Session | None = None
        self._adapter: Adapter | None = None
        self._lock = threading.Lock()
        self._swapped = 0
        self._trains = threading.main_thread().ident  # the thread whose waits are those of the rank
        self._waits: list[tuple[HostWait, str]] = []
        self._replaced: list[tuple[Any, str, Any, Any]] = []  # holder, name, original, replacement
        self._open: list[tuple[weakref.ref[Any], OpenGroup]] = []
        helper = getattr(c10d, HELPER, None)
        self._signature = inspect.signature(helper) if helper is not None else None

    def install(self) -> bool:
        """True where torch has what is needed; a second call changes nothing."""
        if self._signature is None or hasattr(getattr(self._c10d, HELPER), MARK):
            return False
        self._replace(HELPER, self._around_new_group)
        self._replace("init_process_group", self._around_init)
        self._replace("destroy_process_group", self._around_destroy)
        for name, around in (
            ("split_group", self._around_split),
            ("_store_based_barrier", self._around_store_barrier),
        ):
            if hasattr(self._c10d, name):
                self._replace(name, around)
        store = getattr(self._c10d, "Store", None)
        for name in ("wait", "get"):
            if hasattr(store, name):
                self._replace_in((store,), name, self._around_store_wait)
        return True

    def uninstall(self) -> None:
        """Give torch its own functions back; groups made meanwhile stay as they are."""
        for holder, name, original, replacement in self._replaced:
            if getattr(holder, name, None) is replacement:
                setattr(holder, name, original)
        self._replaced.clear()

    def forget_session(self) -> None:
        """In a forked child: what was open belongs to the parent, and the child may begin anew."""
        if self.session is not None:
            self.session.abandon()
            self.session = None
            self.guard = Guard()
            self._open = []

    def _replace(self, name: str, around: Around) -> None:
        self._replace_in((self._c10d, sys.modules.get("torch.distributed")), name, around)

    def _replace_in(self, holders: Sequence[Any], name: str, around: Around) -> None:
        original = getattr(holders[0], name)

        @functools.wraps(original)
        def replacement(*arguments: Any, **keywords: Any) -> Any:
            return around(original, arguments, keywords)

        setattr(replacement, MARK, original)
        for holder in holders:
            if getattr(holder, name, None) is original:
                self._replaced.append((holder, name, original, replacement))
                setattr(holder, name, replacement)

    def _around_init(self, original: Callable[..., Any], arguments: Any, keywords: Any) -> Any:
        method = keywords.get("init_method") or (arguments[1] if len(arguments) > 1 else None) or ""
        self._trains = threading.get_ident()
        self.guard.attempt("open", lambda: self._begin(str(method)))
        with self._waiting(HostWait.BOOTSTRAP, "init_process_group"):
            result = original(*arguments, **keywords)
        self.guard.attempt("phase", self._enter_training)
        return result

    def _begin(self, init_method: str) -> Session | None:
        if self.session is None:
            self.session = self._open_session(init_method)
            if self.session is not None:
                self.guard = self.session.guard
        return self.session

    def _enter_training(self) -> None:
        if self.session is not None:
            self.session.page.set_phase(int(Phase.TRAIN), "train")

    @contextmanager
    def _waiting(self, kind: HostWait, name: str) -> Iterator[None]:
        session = self.session
        if session is None or self.guard.off or threading.get_ident() != self._trains:
            yield
            return
        entry = (kind, name)
        self._waits.append(entry)
        self.guard.attempt("host wait", lambda: session.set_host_wait(kind, name))
        try:
            yield
        finally:
            self._waits.remove(entry)
            outer = self._waits[-1] if self._waits else (HostWait.NONE, "")
            self.guard.attempt("host wait", lambda: session.set_host_wait(*outer))

    def _around_store_barrier(self, original: Callable[..., Any], arguments: Any, keywords: Any) -> Any:
        with self._waiting(HostWait.BARRIER, "store based barrier"):
            return original(*arguments, **keywords)

    def _around_store_wait(self, original: Callable[..., Any], arguments: Any, keywords: Any) -> Any:
        keys = arguments[1] if len(arguments) > 1 else ""
        with self._waiting(HostWait.STORE, str(keys[0] if isinstance(keys, list) and keys else keys)):
            return original(*arguments, **keywords)

    def _around_new_group(self, original: Callable[..., Any], arguments: Any, keywords: Any) -> Any:
        creation = self._describe_creation(arguments, keywords)
        if creation is None or self.session is None or self._adapter is None:
            return original(*arguments, **keywords)
        wrap = self._adapter.wraps(creation.backend)
        if wrap:
            self._swap(1)
        try:
            with self._waiting(HostWait.BOOTSTRAP, f"group {creation.name}"):
                result = original(*arguments, **keywords)
        finally:
            if wrap:
                self._swap(-1)
        self.guard.attempt("open group", lambda: self._observe(result, creation))
        return result

    def _describe_creation(self, arguments: Any, keywords: Any) -> Group | None:
        if self.guard.off or self.outside:
            return None
        try:
            return self._read_creation(arguments, keywords)
        except Exception as error:
            self.guard.trip("new group", error)
            return None

    def _read_creation(self, arguments: Any, keywords: Any) -> Group | None:
        if self._signature is None:
            return None
        bound = self._signature.bind(*arguments, **keywords).arguments
        if bound["group_rank"] is None:  # this rank is no member
            return None
        ranks = tuple(bound["global_ranks_in_group"]) or tuple(range(bound["group_size"]))
        group = Group(
            name=str(bound["group_name"]),
            description=str(bound.get("group_desc") or ""),
            ranks=ranks,
            rank=int(bound["group_rank"]),
            backend=str(bound["backend"]).lower(),
        )
        session = self._begin("")
        if session is not None and not bound["global_ranks_in_group"]:
            session.join_world(group.rank, len(ranks), bound.get("store"))
        elif session is not None and session.hello.world_size == 0:  # attached after init_process_group
            session.join_world(self._c10d.get_rank(), self._c10d.get_world_size(), bound.get("store"))
        if self._adapter is None and self.session is not None:
            self._adapter = choose_adapter(self._choice, self._torch, self._c10d)
        return group

    def _swap(self, change: int) -> None:
        """Let the name `ProcessGroup` inside c10d make observed groups while any thread makes one."""
        with self._lock:
            self._swapped += change
            if self._adapter is None:
                return
            seam, base = self._adapter.seam, self._adapter.base
            # Whoever else stands there makes groups that can be observed as they are (groups/install.py).
            if self._swapped and self._c10d.ProcessGroup is base:
                self._c10d.ProcessGroup = seam
            elif not self._swapped and self._c10d.ProcessGroup is seam:
                self._c10d.ProcessGroup = base

    def _observe(self, result: Any, creation: Group) -> None:
        group = result[0] if isinstance(result, tuple) else result
        if self._adapter is None or self.session is None or not self._adapter.can_observe(group):
            return
        opened = self.session.open_group(creation)
        self._open.append((weakref.ref(group), opened))
        if opened.slot >= 0:
            session = self.session
            self._adapter.observe(
                group, session.page, opened.slot, session.guard, session.followed, creation.backend
            )

    def regenerate(self, group: Any, described: Group, store: Any) -> None:
        """A replaceable group begins a new generation: its frame is closed and another one opened.

        `store` is the one of the new generation where it is the default group, else None.
        """
        self.guard.attempt("new generation", lambda: self._regenerate(group, described, store))

    def _regenerate(self, group: Any, described: Group, store: Any) -> None:
        session = self._begin("")
        if session is None:
            return
        for reference, opened in self._open:
            if reference() is group:
                session.close_group(opened)
        self._open = [(reference, opened) for reference, opened in self._open if reference() is not group]
        if self._adapter is None:
            self._adapter = choose_adapter(self._choice, self._torch, self._c10d)
        if store is not None:
            session.join_generation(described.rank, len(described.ranks), store)
        self._observe(group, described)

    def _around_split(self, original: Callable[..., Any], arguments: Any, keywords: Any) -> Any:
        result = original(*arguments, **keywords)
        if result is not None and self.session is not None:
            self.guard.attempt("split group", lambda: self._observe(result, self._read_group(result)))
        return result

    def _read_group(self, group: Any) -> Group:
        """A group that torch made without the helper, as torch itself describes it."""
        return Group(
            name=str(group.group_name),
            description=str(group.group_desc or ""),
            ranks=tuple(self._c10d.get_process_group_ranks(group)),
            rank=int(group.rank()),
            backend=str(self._c10d.get_backend_config(group)).lower(),
        )

    def _around_destroy(self, original: Callable[..., Any], arguments: Any, keywords: Any) -> Any:
        result = original(*arguments, **keywords)
        self.guard.attempt("close group", self._close_gone)
        return result

    def _close_gone(self) -> None:
        if self.session is None:
            return
        living = getattr(self._c10d, WORLD).pg_map
        for reference, opened in self._open:
            group = reference()
            if group is None or group not in living:
                self.session.close_group(opened)
        self._open = [
            (reference, opened)
            for reference, opened in self._open
            if (group := reference()) is not None and group in living
        ]
