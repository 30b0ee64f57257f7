"""The calls that NCCL makes to a profiler plugin, as data: built here, or read from a recording.

The order is that of section B.2 of NCCL's emission; offsets are written out once more, independently of the
plugin's own header. Handles are numbers; 0 is nullptr.
"""

from dataclasses import dataclass, field
from typing import Any

TYPES = {
    "Group": 1, "Coll": 2, "P2p": 4, "ProxyOp": 8, "ProxyStep": 16, "ProxyCtrl": 32, "KernelCh": 64,
    "NetPlugin": 128, "GroupApi": 256, "CollApi": 512, "P2pApi": 1024, "KernelLaunch": 2048,
}  # fmt: skip
# Of fields, as `struct` says it; s is the address of a text, h a handle.
WIDTHS = {"b": "<B", "d": "<i", "q": "<Q", "s": "<Q", "h": "<Q"}
# name: (width, offset)
OFFSETS: dict[str, dict[str, tuple[str, int]]] = {
    "GroupApi": {"captured": ("b", 24), "depth": ("d", 28)},
    "CollApi": {
        "function": ("s", 24), "count": ("q", 32), "dtype": ("s", 40), "root": ("d", 48),
        "stream": ("q", 56), "captured": ("b", 64),
    },
    "P2pApi": {
        "function": ("s", 24), "count": ("q", 32), "dtype": ("s", 40), "stream": ("q", 48),
        "captured": ("b", 56),
    },
    "KernelLaunch": {"stream": ("q", 24)},
    "Group": {},
    "Coll": {
        "sequence": ("q", 24), "function": ("s", 32), "count": ("q", 56), "root": ("d", 64),
        "dtype": ("s", 72),
        "channels": ("b", 80), "warps": ("b", 81), "algorithm": ("s", 88), "protocol": ("s", 96),
        "parent_group": ("h", 104),
    },
    "P2p": {
        "function": ("s", 24), "dtype": ("s", 40), "count": ("q", 48), "peer": ("d", 56),
        "channels": ("b", 60), "parent_group": ("h", 64),
    },
    "ProxyOp": {
        "pid": ("d", 24), "channel": ("b", 28), "peer": ("d", 32), "steps": ("d", 36), "chunk": ("d", 40),
        "is_send": ("d", 44),
    },
    "ProxyStep": {"step": ("d", 24)},
    "KernelCh": {"channel": ("b", 24), "gpu_ns": ("q", 32)},
}  # fmt: skip
SEND_GPU_WAIT, SEND_WAIT, RECV_WAIT, RECV_FLUSH_WAIT, RECV_GPU_WAIT = 8, 9, 10, 11, 12
IN_PROGRESS, SEND_PEER_WAIT, KERNEL_STOP, START_API_STOP, END_API_START = 19, 20, 22, 23, 24
OWN_PID = "own"
USER, PROXY, PROFILER, CALLBACK = "user", "proxy", "profiler", "callback"

Call = dict[str, Any]


@dataclass
class Operation:
    """Handles of one collective, or of one group of messages."""

    context: int
    mask: int = 0  # as it was when the group began
    group: int = 0
    calls: list[int] = field(default_factory=list)
    launch: int = 0
    tasks: list[int] = field(default_factory=list)
    task_group: int = 0  # v4
    kernels: list[tuple[int, int]] = field(default_factory=list)  # handle, channel
    proxies: dict[tuple[int, int, bool], int] = field(default_factory=dict)  # channel, peer, is_send
    description: dict[str, Any] = field(default_factory=dict)


@dataclass
class Trace:
    """Calls in the order in which each thread makes them."""

    version: int = 5
    calls: list[Call] = field(default_factory=list)
    _last: int = 0

    def handle(self) -> int:
        self._last += 1
        return self._last

    def add(self, thread: str, call: str, **arguments: Any) -> None:
        self.calls.append({"thread": thread, "call": call, **arguments})

    def init(
        self,
        nranks: int = 4,
        rank: int = 0,
        hash_: int = 0xC0FFEE,
        name: str | None = "world",
        log: bool = True,
        nodes: int = 2,
    ) -> int:
        context = self.handle()
        self.add(
            USER,
            "init",
            context=context,
            name=name,
            hash=hash_,
            nodes=nodes,
            nranks=nranks,
            rank=rank,
            log=log,
        )
        return context

    def finalize(self, context: int) -> None:
        self.add(USER, "finalize", context=context)

    def start(
        self, thread: str, context: int | str, kind: str, parent: int | str, mask: int = 0, **fields: Any
    ) -> int:
        """`mask`: handle of the sample that decides whether NCCL makes this call; 0: it does."""
        handle = self.handle()
        self.restart(thread, handle, context, kind, parent, mask, **fields)
        return handle

    def restart(
        self,
        thread: str,
        handle: int,
        context: int | str,
        kind: str,
        parent: int | str,
        mask: int = 0,
        **fields: Any,
    ) -> None:
        self.add(
            thread,
            "start",
            handle=handle,
            context=context,
            type=kind,
            parent=parent,
            mask=mask,
            fields=fields,
        )

    def sample(self, thread: str) -> int:
        handle = self.handle()
        self.add(thread, "sample", handle=handle)
        return handle

    def record(self, thread: str, handle: int, state: int, argument: int | None = None) -> None:
        self.add(thread, "record", handle=handle, state=state, argument=argument)

    def stop(self, thread: str, handle: int) -> None:
        self.add(thread, "stop", handle=handle)

    # What NCCL does for one collective, piece by piece.

    def enter(
        self,
        context: int,
        function: str = "AllReduce",
        count: int = 1024,
        dtype: str = "ncclFloat32",
        root: int = 0,
        captured: bool = False,
        thread: str = USER,
    ) -> Operation:
        """The call itself, up to the end of its arguments' check."""
        operation = Operation(context, self.sample(thread))
        operation.description = {"function": function, "count": count, "dtype": dtype, "root": root}
        if self.version < 5:
            return operation
        operation.group = self.start(
            thread, context, "GroupApi", 0, operation.mask, captured=captured, depth=1
        )
        self.record(thread, operation.group, START_API_STOP)
        call = self.start(
            thread,
            context,
            "CollApi",
            operation.group,
            operation.mask,
            stream=7,
            captured=captured,
            **operation.description,
        )
        self.stop(thread, call)
        operation.calls.append(call)
        return operation

    def messages(self, context: int, *peers: tuple[str, int, int], name: str | None = None) -> Operation:
        """A group of sends and receives: (Send or Recv, peer, count) each."""
        operation = Operation(context, self.sample(USER))
        operation.description = {"messages": list(peers)}
        if self.version < 5:
            return operation
        operation.group = self.start(USER, context, "GroupApi", 0, operation.mask, captured=False, depth=1)
        self.record(USER, operation.group, START_API_STOP)
        for function, _, count in peers:
            call = self.start(
                USER, context, "P2pApi", operation.group, operation.mask, function=name or function,
                count=count, dtype="ncclFloat32", stream=7, captured=False,
            )  # fmt: skip
            self.stop(USER, call)
            operation.calls.append(call)
        return operation

    def connect(self, operation: Operation) -> None:
        """The group's end: what is not connected is connected now."""
        if operation.group:
            self.record(USER, operation.group, END_API_START)

    def launch_kernels(self, operation: Operation) -> None:
        self.connect(operation)
        if self.version >= 5:
            operation.launch = self.start(
                USER, operation.context, "KernelLaunch", operation.group, operation.mask, stream=7
            )
            self.stop(USER, operation.launch)

    def begin_task(
        self,
        operation: Operation,
        channels: int = 2,
        algorithm: str = "RING",
        protocol: str = "SIMPLE",
        sequence: int = 0,
        thread: str = USER,
    ) -> None:
        """The host task, up to where proxy operations are appended."""
        parent = operation.calls[0] if operation.calls else 0
        if self.version < 5:
            parent = operation.task_group = self.start(thread, operation.context, "Group", 0, operation.mask)
        fields = dict(operation.description)
        if self.version >= 5:
            fields["parent_group"] = 0
        operation.tasks.append(
            self.start(
                thread,
                operation.context,
                "Coll",
                parent,
                operation.mask,
                sequence=sequence,
                channels=channels,
                warps=16,
                algorithm=algorithm,
                protocol=protocol,
                **fields,
            )
        )

    def begin_messages(self, operation: Operation, channels: int = 1) -> None:
        if self.version < 5:
            operation.task_group = self.start(USER, operation.context, "Group", 0, operation.mask)
        for place, (function, peer, count) in enumerate(operation.description["messages"]):
            fields: dict[str, Any] = {"parent_group": 0} if self.version >= 5 else {}
            parent = operation.calls[place] if self.version >= 5 else operation.task_group
            if self.version >= 5:
                fields["channels"] = channels
            operation.tasks.append(
                self.start(
                    USER,
                    operation.context,
                    "P2p",
                    parent,
                    operation.mask,
                    function=function,
                    dtype="ncclFloat32",
                    count=count,
                    peer=peer,
                    **fields,
                )
            )

    def append_proxy(
        self,
        operation: Operation,
        channel: int,
        peer: int,
        is_send: bool,
        steps: int = 4,
        pid: str | int = OWN_PID,
        thread: str = USER,
    ) -> int:
        handle = self.start(
            thread, operation.context, "ProxyOp", operation.tasks[-1], operation.mask, pid=pid,
            channel=channel, peer=peer, steps=steps, chunk=65536, is_send=int(is_send),
        )  # fmt: skip
        operation.proxies[channel, peer, is_send] = handle
        return handle

    def end_task(self, operation: Operation, thread: str = USER) -> None:
        for task in operation.tasks:
            self.stop(thread, task)
        if operation.task_group:
            self.stop(thread, operation.task_group)
        if operation.group:
            self.stop(thread, operation.group)

    def begin_kernels(self, operation: Operation, channels: int = 2, thread: str = PROFILER) -> None:
        for task in operation.tasks:
            for channel in range(channels):
                handle = self.start(
                    thread, operation.context, "KernelCh", task, operation.mask, channel=channel, gpu_ns=1000
                )
                operation.kernels.append((handle, channel))

    def end_kernels(self, operation: Operation, thread: str = PROFILER) -> None:
        for handle, _ in operation.kernels:
            self.record(thread, handle, KERNEL_STOP, 2000)
            self.stop(thread, handle)
        operation.kernels.clear()

    def step(
        self,
        proxy: int,
        step: int,
        is_send: bool,
        upto: int | None = None,
        size: int = 4096,
        thread: str = PROXY,
    ) -> int:
        """One slice; `upto` is the state in which it stays stuck."""
        handle = self.start(thread, 0, "ProxyStep", proxy, step=step)
        states = (
            (SEND_GPU_WAIT, SEND_PEER_WAIT, SEND_WAIT)
            if is_send
            else (RECV_WAIT, RECV_FLUSH_WAIT, RECV_GPU_WAIT)
        )
        for state in states:
            self.record(thread, handle, state, size if state in (SEND_WAIT, RECV_FLUSH_WAIT) else 0)
            if state == upto:
                return handle
        self.stop(thread, handle)
        return handle

    def move(self, operation: Operation, steps: int = 4, end: bool = True) -> None:
        """All slices of all its proxy operations, side by side."""
        for proxy in operation.proxies.values():
            self.record(PROXY, proxy, IN_PROGRESS)
        for number in range(steps):
            for (_, _, is_send), proxy in operation.proxies.items():
                self.step(proxy, number, is_send)
        if end:
            self.end_proxies(operation)

    def end_proxies(self, operation: Operation) -> None:
        for proxy in operation.proxies.values():
            self.stop(PROXY, proxy)
        operation.proxies.clear()

    def ring(self, operation: Operation, rank: int, nranks: int, channels: int = 2, steps: int = 4) -> None:
        """Its proxy operations in a ring over the network."""
        for channel in range(channels):
            self.append_proxy(operation, channel, (rank + 1) % nranks, True, steps)
            self.append_proxy(operation, channel, (rank - 1) % nranks, False, steps)

    def run(
        self,
        context: int,
        rank: int = 0,
        nranks: int = 4,
        channels: int = 2,
        steps: int = 4,
        network: bool = True,
        **description: Any,
    ) -> Operation:
        """One whole collective."""
        operation = self.enter(context, **description)
        self.launch_kernels(operation)
        self.begin_task(operation, channels)
        if network:
            self.ring(operation, rank, nranks, channels, steps)
        self.end_task(operation)
        self.begin_kernels(operation, channels)
        if network:
            self.move(operation, steps)
        self.end_kernels(operation)
        return operation

    def lines(self, own_pid: int, in_turn: bool = False) -> str:
        """The calls in the harness's own words; `in_turn`: each after the one before, whatever the thread."""
        written, thread = [], None
        for call in self.calls:
            if in_turn and call["thread"] != thread:
                written.append("drain\n")
            thread = call["thread"]
            written.append(f"{_line(call, own_pid)}\n")
        return "".join(written)

    def take(self) -> "Trace":
        """The calls so far, to be made now; handles go on counting here."""
        done = Trace(self.version, self.calls, self._last)
        self.calls = []
        return done


def _line(call: Call, own_pid: int) -> str:
    thread, kind = call["thread"], call["call"]
    if kind == "init":
        words: list[Any] = [call["context"], call["name"] or "-", call["hash"], call["nodes"], call["nranks"]]
        return " ".join(map(str, [thread, kind, *words, call["rank"], int(call["log"])]))
    if kind == "start":
        fields = [f"h@8={call['parent']}", "d@16=0"]
        if call["mask"]:
            fields.append(f"m@0={call['mask']}")
        for name, value in call["fields"].items():
            width, offset = OFFSETS[call["type"]][name]
            number = own_pid if value == OWN_PID else int(value) if isinstance(value, bool) else value
            if width == "d" and isinstance(number, int) and number < 0:
                number += 1 << 32
            fields.append(f"{width}@{offset}={'-' if number is None else number}")
        return " ".join(
            map(str, [thread, kind, call["handle"], call["context"], TYPES[call["type"]], *fields])
        )
    if kind == "record":
        argument = "-" if call["argument"] is None else call["argument"]
        return f"{thread} record {call['handle']} {call['state']} {argument}"
    return f"{thread} {kind} {call.get('handle', call.get('context'))}"
