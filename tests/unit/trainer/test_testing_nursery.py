"""The kit's supervisors where the process that forked them is gone."""

import signal

from paceline.trainer.testing.job import Nursery, Nursling


def test_what_a_lost_nursery_had_started_counts_as_killed() -> None:
    nursery = Nursery()
    nursery._process.kill()
    nursery._process.wait()
    nursling = Nursling(nursery, 1)
    assert nursling.poll() == -signal.SIGKILL
    nursery.close()
