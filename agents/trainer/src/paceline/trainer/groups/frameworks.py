"""What a framework has to forget after a step that was interrupted in the middle."""

from collections.abc import Iterable
from typing import Any


def forget_interrupted_step(modules: Iterable[Any]) -> None:
    """Bring modules back to before their forward pass: sharded again, no gradient, nothing awaited.

    Call it after a rebuild, before the state is restored. DDP needs nothing; FSDP2 keeps its all-gathers
    and its training state. `modules` are the outermost ones, as the script holds them.
    """
    for module in modules:
        reset = getattr(module, "reset_iter_state", None)
        if callable(reset):
            for state in module._get_fsdp_state()._state_ctx.all_states:
                for group in state._fsdp_param_groups:
                    group._all_gather_result = None  # torch would wait for it, and it has failed
            reset()
        for parameter in module.parameters():
            parameter.grad = None
