"""A child without torch: does what its argument says, and answers orders by saying that it did."""

import os
import sys
import time

from paceline.contracts.recovery import OrderOutcome
from paceline.trainer.repair.control import epoch_of, open_control
from paceline.trainer.supervisor import ROLE_VARIABLE
from paceline.trainer.supervisor.local import ChildState


def main() -> int:
    what = sys.argv[1]
    if what == "exit":
        return int(sys.argv[2])
    control = open_control(os.environ, lambda order: None, lambda order: None)
    assert control is not None
    control.start()
    role = os.environ[ROLE_VARIABLE]
    rank = -1 if role == "standby" else int(os.environ["RANK"])
    control.tell_state(ChildState(rank, 2, 0, 1, store=f"{role}:1", ready=True))
    epoch = (0, -1)
    while not control.lost:
        order = control.await_newer(epoch, 60.0)
        if order is None:
            break
        epoch = epoch_of(order)
        control.answer(order, OrderOutcome.DONE, f"{role} went on")
        time.sleep(0)
    return 0


if __name__ == "__main__":
    sys.exit(main())
