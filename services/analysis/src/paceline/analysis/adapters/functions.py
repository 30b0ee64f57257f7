"""Names of operations of every tool, as `codes.Function` spells them in lower case."""

import re

_NAMES = {
    "allreduce": "all_reduce",
    "allreducesparse": "all_reduce",
    "allreducecoalesced": "all_reduce",
    "allreducebarrier": "barrier",
    "allgather": "all_gather",
    "allgatherbase": "all_gather",
    "allgatherintotensor": "all_gather",
    "allgathercoalesced": "all_gather",
    "allgatherv": "all_gather",
    "reducescatter": "reduce_scatter",
    "reducescatterbase": "reduce_scatter",
    "reducescattertensor": "reduce_scatter",
    "reducescattertensorcoalesced": "reduce_scatter",
    "alltoall": "all_to_all",
    "alltoallbase": "all_to_all",
    "alltoallsingle": "all_to_all",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "gather": "gather",
    "scatter": "scatter",
    "send": "send",
    "isend": "send",
    "recv": "recv",
    "irecv": "recv",
    "recvanysource": "recv",
    "barrier": "barrier",
    "monitoredbarrier": "barrier",
    "coalesced": "coalesced",
    "sendrecv": "send_recv",
}
_PREFIX = re.compile(r"^(?:nccl|gloo|mpi|ucc|xccl|hccl|rccl|c10d)(?::|(?=[A-Z]))")
_NOISE = re.compile(r"[_\s:.-]")


def function_of(text: str) -> str:
    """`_ALLGATHER_BASE`, `ncclAllGather`, `nccl:_all_gather_base` are all `all_gather`.

    A name that is not known is returned in lower case, so that two ranks can still be compared.
    """
    bare = _PREFIX.sub("", text.strip())
    bare = re.sub(r"\s+\d{1,18}(?:->|<-)\d{1,18}$", "", bare)  # Flight Recorder: nccl:send 1->3
    word = _NOISE.sub("", bare).lower()
    return _NAMES.get(word, word)
