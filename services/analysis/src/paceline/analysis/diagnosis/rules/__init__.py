"""Rules: pure functions from a case to a finding; `order.RULES` is their order, the first answer decides."""

from paceline.analysis.diagnosis.case import Case
from paceline.analysis.diagnosis.rules import judged
from paceline.analysis.diagnosis.rules.finding import Finding, Rule
from paceline.analysis.facts import FlightDump

# Rules of the order that say something where dumps are all there is; the others need not be imported then.
DUMPS_ALONE: tuple[Rule, ...] = (judged.dumps, judged.dumps_undecided)


def decide(case: Case) -> Finding:
    """The finding of the first rule that has one."""
    if all(isinstance(fact, FlightDump) for fact in case.facts):
        for rule in DUMPS_ALONE:
            finding = rule(case)
            if finding is not None:
                return finding
    from paceline.analysis.diagnosis.rules.order import decide_in_order

    return decide_in_order(case)
