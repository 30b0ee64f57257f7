"""torch's own pre and post hooks of a ProcessGroup, where it has them.

They fire in the dispatcher, so they see every caller and every group and nothing is wrapped. They
do not tell the reduce op: it is recorded as unknown.
"""

from typing import Any

from paceline.contracts.codes import Function
from paceline.trainer.operations import ANY_PEER, NO_PEER, Describer, Description
from paceline.trainer.watch import UNSEEN, Watch

HOOK_ID = 0x50414345  # "PACE": ours among the hooks of a group
IN_FLIGHT_MAX = 4096  # operations between their pre and post hook

_FUNCTIONS = {
    "SEND": Function.SEND,
    "RECV": Function.RECV,
    "BROADCAST": Function.BROADCAST,
    "ALLREDUCE": Function.ALL_REDUCE,
    "ALLREDUCE_COALESCED": Function.ALL_REDUCE,
    "REDUCE": Function.REDUCE,
    "ALLGATHER": Function.ALL_GATHER,
    "ALLGATHER_BASE": Function.ALL_GATHER,
    "ALLGATHER_COALESCED": Function.ALL_GATHER,
    "ALLGATHER_INTO_TENSOR_COALESCED": Function.ALL_GATHER,
    "REDUCE_SCATTER": Function.REDUCE_SCATTER,
    "REDUCE_SCATTER_BASE": Function.REDUCE_SCATTER,
    "REDUCE_SCATTER_TENSOR_COALESCED": Function.REDUCE_SCATTER,
    "ALLTOALL": Function.ALL_TO_ALL,
    "ALLTOALL_BASE": Function.ALL_TO_ALL,
    "BARRIER": Function.BARRIER,
    "SCATTER": Function.SCATTER,
    "GATHER": Function.GATHER,
}
_UNEVEN = (Function.ALL_TO_ALL, Function.GATHER, Function.SCATTER, Function.ALL_GATHER)


def has_native_hooks(group_class: Any) -> bool:
    """Whether this torch lets a ProcessGroup call us before and after each operation."""
    return all(hasattr(group_class, name) for name in ("register_pre_hook", "register_post_hook"))


class NativeHooks:
    """Registers a Watch with the group's own hooks."""

    def __init__(self, describer: Describer) -> None:
        self._describer = describer

    def observe(self, group: Any, watch: Watch) -> None:
        """From now on every operation of `group` is told to `watch`."""
        tickets: dict[int, int] = {}

        def before(call: Any) -> None:
            if watch.guard.off:
                return
            if len(tickets) >= IN_FLIGHT_MAX:
                watch.count_unseen()
                return
            try:
                description = self._describe(call)
            except Exception as error:
                watch.guard.trip("pre hook", error)
                return
            if description is not None:
                ticket = watch.enter_described(description)
                if ticket != UNSEEN:
                    tickets[call.op_id] = ticket

        def after(call: Any) -> None:
            ticket = tickets.pop(call.op_id, UNSEEN)
            if ticket != UNSEEN:
                watch.issued_elsewhere(ticket, call.work)

        group.register_pre_hook(HOOK_ID, before)
        group.register_post_hook(HOOK_ID, after)

    def _describe(self, call: Any) -> Description | None:
        function = _FUNCTIONS.get(call.name.name)
        if function is None:
            return None
        outputs = function in (Function.RECV, Function.SCATTER)
        tensors = call.output_tensors if outputs else call.input_tensors
        dtype, count, nbytes = self._describer.size(tensors) if tensors else (0, 0, 0)
        peer = int(call.root)
        if function is Function.RECV and peer < 0:
            function, peer = Function.RECV_ANY, ANY_PEER
        agreed = 0 if function in _UNEVEN else count
        return int(function), dtype, 0, peer if peer != -1 else NO_PEER, count, nbytes, agreed
