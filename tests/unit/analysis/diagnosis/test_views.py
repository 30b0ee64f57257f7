"""The answer as people see it: terminal, page, trace."""

import io
import json
from html.parser import HTMLParser

import pytest
from rich.console import Console

from paceline.analysis.diagnosis.answer import Blame, Ground
from paceline.analysis.diagnosis.html import make_page
from paceline.analysis.diagnosis.picture import make_picture
from paceline.analysis.diagnosis.text import Answer
from paceline.analysis.diagnosis.trace import write_trace
from paceline.analysis.diagnosis.words import blame_text, ranges_text
from paceline.analysis.facts import Clock, Group, GroupStatus, Origin, Speaker, Work, WorkTimeout
from paceline.contracts.verdicts import RootKind, VerdictClass
from tests.unit.analysis.diagnosis.example_answers import example_diagnosis, example_picture

HOSTILE = "</title><script>alert(1)</script>\"'&"


def shown(diagnosis: object, width: int = 80) -> list[str]:
    stream = io.StringIO()
    Console(file=stream, width=width, force_terminal=False).print(diagnosis)
    return stream.getvalue().splitlines()


def test_a_usual_answer_fits_a_small_terminal() -> None:
    lines = shown(Answer(example_diagnosis(1024)))
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 80
    text = " ".join(" ".join(lines).split())
    assert text.startswith("H1 Rank 5 never entered all_reduce 412 of default_pg")
    for words in (
        "to blame",
        "only waited ranks 0-4, 6-256",
        "and others",
        "logs/5/stderr.log:12",
        "Fix the code: rank 5.",
    ):
        assert words in text
    assert "against it: Xid 13" in text


def test_what_is_long_is_counted_and_not_listed() -> None:
    grounds = tuple(
        Ground("rule", "words " * 200, tuple(Origin("f", i) for i in range(50))) for _ in range(30)
    )
    roots = tuple(Blame(RootKind.NODE, node=f"node-{i}") for i in range(100))
    decide = tuple(f"input {i}" for i in range(50))
    lines = shown(Answer(example_diagnosis(8, grounds=grounds, roots=roots, would_decide=decide)))
    text = "\n".join(lines)
    assert len(lines) < 70
    for words in ("and 95 more", "and 25 more", "and 47 more"):
        assert words in text


def test_markup_in_names_is_text() -> None:
    text = "\n".join(shown(Answer(example_diagnosis(8, summary="[red]rank[/red] [/nonsense]"))))
    assert "[red]rank[/red] [/nonsense]" in text


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        self.attributes += attrs


@pytest.mark.parametrize("ranks", [1, 8, 1024, 20_000])
def test_the_page_is_whole_and_small(ranks: int) -> None:
    late = min(5, ranks - 1)
    page = make_page(example_diagnosis(ranks, late), example_picture(ranks, late))
    assert len(page) < 400_000
    assert page.count('class="cell blame"') == 1
    assert f"rank {late} on " in page
    assert "http" not in page.replace("http-equiv", "")


def test_everything_from_the_input_is_escaped() -> None:
    diagnosis = example_diagnosis(
        8,
        summary=HOSTILE,
        phase=HOSTILE,
        operation=None,
        communicator=HOSTILE,
        roots=(Blame(RootKind.CONFIGURATION, name=HOSTILE, why=HOSTILE, node=HOSTILE),),
        grounds=(Ground("r", HOSTILE, (Origin(HOSTILE, 1),)),),
        would_decide=(HOSTILE,),
        export_next={"A": HOSTILE},
    )
    speaker = Speaker(rank=1, host=HOSTILE)
    group = Group(HOSTILE, HOSTILE)
    facts = [
        GroupStatus(origin=Origin(HOSTILE), speaker=speaker, group=group, enqueued=2, completed=1),
        WorkTimeout(
            origin=Origin(HOSTILE), speaker=speaker, group=group, work=Work(HOSTILE, 2), time_s=5.0, ran_ms=3,
            clock=Clock.UNIX,
        ),
    ]  # fmt: skip
    tags = Tags()
    tags.feed(make_page(diagnosis, make_picture(diagnosis, facts, lambda fact: fact.speaker.rank)))
    assert "script" not in tags.names
    assert "link" not in tags.names
    assert "img" not in tags.names
    assert not [name for name, _ in tags.attributes if name.startswith("on") or name in ("src", "href")]


def test_the_trace_is_valid_and_open_works_are_marked() -> None:
    stream = io.StringIO()
    assert write_trace(stream, example_diagnosis(8), example_picture(8)) == 0
    trace = json.loads(stream.getvalue())
    works = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    waits = [event for event in works if event["args"]["open"]]
    assert {event["tid"] for event in waits} == {0, 1, 2, 3, 4, 6, 7}
    assert {event["name"] for event in waits} == {"all_reduce 412"}
    assert all(event["dur"] > 0 and event["ts"] >= 0 for event in works)
    names = {event["args"]["name"] for event in trace["traceEvents"] if event["name"] == "thread_name"}
    assert "rank 5 (to blame)" in names
    assert trace["otherData"]["class"] == "H1"
    instants = {event["name"] for event in trace["traceEvents"] if event["ph"] == "i"}
    assert instants == {"timeout", "ValueError", "Xid 13"}


def test_a_timeout_without_a_group_takes_that_of_its_status_line() -> None:
    group = Group("3", "mesh_tp")
    speaker = Speaker(rank=1)
    facts = [
        WorkTimeout(
            origin=Origin("a", 1), speaker=speaker, group=Group(), work=Work("broadcast", 9), ran_ms=1,
            time_s=9.0, clock=Clock.UNIX,
        ),
        GroupStatus(origin=Origin("a", 2), speaker=speaker, group=group, enqueued=9, completed=8, failed=9),
    ]  # fmt: skip
    picture = make_picture(example_diagnosis(2, 0), facts, lambda fact: fact.speaker.rank)
    assert [bar.group for bar in picture.bars()] == ["mesh_tp"]
    assert [(item.group, item.enqueued, item.completed) for item in picture.progress] == [("mesh_tp", 9, 8)]


@pytest.mark.parametrize("verdict_class", list(VerdictClass))
@pytest.mark.parametrize("kind", list(RootKind))
def test_every_class_and_cause_has_words(verdict_class: VerdictClass, kind: RootKind) -> None:
    for root in (Blame(kind), Blame(kind, rank=3, node="n", gpu="g", peer_rank=4, name="name", ranks=(1, 2))):
        assert blame_text(root).strip()
        diagnosis = example_diagnosis(8, verdict_class=verdict_class, roots=(root,), operation=None)
        assert shown(Answer(diagnosis))
        assert make_page(diagnosis, make_picture(diagnosis, [], lambda fact: None))


def test_ranges() -> None:
    assert ranges_text([3, 1, 2, 7]) == "1-3, 7"
    assert ranges_text(range(0, 40, 2)) == "0, 2, 4, 6, 8, 10, 12, 14 and 12 more"
