"""Which reports share a transaction."""

from dataclasses import replace

from paceline.remediator.model import Tick
from paceline.remediator.reports import Told, group_reports


def test_reports_of_a_job_and_attempt_stay_together_in_their_order_and_are_bounded() -> None:
    one = Told("a", "1", Tick(), {"id": "0"}, "", "")
    other, later = replace(one, job="b"), replace(one, attempt="2")
    own = [replace(one, values={"id": str(number)}) for number in range(5)]
    told = [own[0], other, own[1], later, own[2], other, own[3], own[4]]
    assert group_reports(told, 3) == [own[:3], own[3:], [other, other], [later]]
    assert group_reports([]) == []
