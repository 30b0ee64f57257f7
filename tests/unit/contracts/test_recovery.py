"""Messages between supervisors and whoever leads a recovery: round trip, and clear errors for the rest."""

import json
from dataclasses import asdict, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.contracts.agent_socket import MESSAGE_BYTES_MAX, Framer
from paceline.contracts.recovery import (
    FROM_SUPERVISOR_TYPES,
    MEMBERS_MAX,
    RECOVERY_TYPES,
    ChildError,
    ChildExit,
    Lease,
    Member,
    Order,
    OrderKind,
    OrderOutcome,
    OrderResult,
    PhaseReport,
    RecoveryMessage,
    RecoveryMessageError,
    RecoveryPhase,
    Role,
    SupervisorHello,
    blames_a_peer,
    encode_recovery,
    format_members,
    parse_members,
    parse_recovery,
)

HELLO = SupervisorHello(
    job="train", attempt="a1", member="m-1", role=Role.MEMBER, rank=2, pid=10, child_pid=11,
    child_pid_start=99, generation=3, step=41, store="10.0.0.1:4000", replica="10.0.0.1:4001",
    failure_domain="rack-1", ready=True, world_size=4,
)  # fmt: skip
EVERY: tuple[RecoveryMessage, ...] = (
    HELLO,
    replace(HELLO, role=Role.STANDBY, rank=-1, step=-1, child_pid=0),
    ChildExit("m-1", 11, 99, -9),
    ChildError("m-1", 3, 42, "connection closed by peer [10.0.0.2]:4000\nin all_reduce"),
    Order("ord_1", OrderKind.REBUILD, 4, 0, 100.5, {"store": "10.0.0.1:4000", "reason": "exit"}),
    OrderResult("ord_1", "m-1", OrderOutcome.REFUSED, "generation 3 is older than 4", 4),
    PhaseReport("m-1", 2, 4, RecoveryPhase.OPTIMIZER, 12.5, 42, 1, 4096, "from m-2", 1),
    Lease(4, 2.5),
)


def test_every_type_is_shown_here() -> None:
    assert {message.type for message in EVERY} == set(RECOVERY_TYPES)
    assert set(RECOVERY_TYPES) > FROM_SUPERVISOR_TYPES


@pytest.mark.parametrize("message", EVERY, ids=lambda message: message.type)
def test_a_message_survives_the_wire(message: RecoveryMessage) -> None:
    (body,) = Framer().feed(encode_recovery(message))
    assert parse_recovery(body) == message


def test_a_field_of_a_later_release_is_skipped_and_a_default_filled_in() -> None:
    raw = asdict(HELLO) | {"colour": "red"}
    del raw["support"]
    assert parse_recovery(json.dumps(raw).encode()) == HELLO
    phase = asdict(PhaseReport("m-1", 2, 4, RecoveryPhase.RESUME, 1.0, 42))
    del phase["attempt_no"]  # of an earlier release
    assert parse_recovery(json.dumps(phase).encode()) == PhaseReport(
        "m-1", 2, 4, RecoveryPhase.RESUME, 1.0, 42, attempt_no=-1
    )
    with pytest.raises(RecoveryMessageError, match="attempt_no is -2, expected -1 or more"):
        parse_recovery(json.dumps(phase | {"attempt_no": -2}).encode())


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"type": "hello"}, "type is 'hello', expected one of"),
        ({"rank": "2"}, "supervisor_hello.rank is '2', expected a 64-bit number"),
        ({"rank": True}, "supervisor_hello.rank is 'True'"),
        ({"rank": -1}, "rank is -1 of a member"),
        ({"role": "chief"}, r"role is 'chief', expected one of \['member', 'standby'\]"),
        ({"role": "standby"}, "rank is 2 of a standby"),
        ({"job": ""}, "job has 0 bytes, expected 1 to 127"),
        ({"job": "a:b"}, "expected no colon"),
        ({"member": "m\n"}, "expected printable text"),
        ({"member": "m" * 128}, "member has 128 bytes"),
        ({"generation": -1}, "generation is -1, expected 0 or more"),
        ({"step": 1 << 70}, "step is '1180591620717411303424'"),
        ({"ready": 1}, "ready is '1', expected true or false"),
        ({"pid": 0}, "pid is 0, expected 1 or more"),
    ],
)
def test_a_bad_hello_names_field_value_and_expectation(change: dict[str, object], text: str) -> None:
    with pytest.raises(RecoveryMessageError, match=text):
        parse_recovery(json.dumps(asdict(HELLO) | change).encode())


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"{", "message is not JSON"),
        (b"[]", "type is 'None'"),
        (b"[" * 50_000, "message is not JSON"),
        (b'{"type":"child_exit","member":"m"}', "child_exit.child_pid is missing"),
        (b'{"type":"lease","generation":1,"until_monotonic_s_from_now":NaN}', "expected a finite number"),
        (b'{"type":"order","id":"o","kind":"fence","generation":1,"attempt_no":0,"expires_unix_s":1,'
         b'"arguments":{"pid":7}}', "order.arguments is .* expected an object of texts"),
    ],
)  # fmt: skip
def test_bad_messages_are_refused(body: bytes, text: str) -> None:
    with pytest.raises(RecoveryMessageError, match=text):
        parse_recovery(body)


def test_a_message_beyond_the_frame_is_not_sent() -> None:
    order = Order("ord_1", OrderKind.REBUILD, 1, 0, 0.0, {"members": "x" * MESSAGE_BYTES_MAX})
    with pytest.raises(RecoveryMessageError, match="expected at most"):
        encode_recovery(order)


@given(st.permutations(range(7)), st.integers(1, 7))
def test_members_come_back_in_the_order_of_their_ranks(ranks: list[int], count: int) -> None:
    members = [Member(rank, f"m{rank}", f"h:{rank}", "rack") for rank in ranks if rank < count]
    assert parse_members(format_members(members)) == tuple(sorted(members, key=lambda one: one.rank))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{}", "expected a list of 1 to"),
        ("[]", "expected a list of 1 to"),
        ("[1]", r"members\[0\] is '1', expected an object"),
        ('[{"rank":0}]', r"members\[0\].member is missing"),
        ('[{"rank":1,"member":"a"}]', r"ranks \[1\], expected 0 to N-1"),
        ('[{"rank":0,"member":"a"},{"rank":1,"member":"a"}]', "names one member twice"),
    ],
)
def test_bad_members_are_refused(text: str, expected: str) -> None:
    with pytest.raises(RecoveryMessageError, match=expected):
        parse_members(text)


def test_members_have_a_bound() -> None:
    with pytest.raises(RecoveryMessageError, match="expected at most 4096"):
        format_members([Member(rank, str(rank)) for rank in range(MEMBERS_MAX + 1)])


@pytest.mark.parametrize(
    ("message", "blames"),
    [
        ("RuntimeError: [gloo/transport/tcp/pair.cc:534] Connection closed by peer", True),
        ("RuntimeError: Application timeout caused pair closure", True),
        ("DistNetworkError: Connection was likely closed. Did the remote server shutdown?", True),
        ("ConnectionResetError: [Errno 104] Connection reset by peer", False),
        ("TransientFault: dataset server: Connection reset by peer", False),
        ("Connection closed by peer, told without a class", True),
        ("RuntimeError: Timed out waiting 1800000ms for recv operation to complete", True),
        ("DistBackendError: ncclRemoteError: A call failed possibly due to a network error; remote"
         " process exited or there was a network error", True),
        ("DistBackendError: Watchdog caught collective operation timeout: WorkNCCL(SeqNum=3)", True),
        ("TransientFault: the dataset's server answered 503", False),
        ("TransientFault: storage timed out", False),
        ("OSError: [Errno 101] Network is unreachable", False),
        ("RuntimeError: CUDA error: an illegal memory access was encountered", False),
    ],
)  # fmt: skip
def test_who_has_lost_a_peer_speaks_of_it(message: str, blames: bool) -> None:
    assert blames_a_peer(message) is blames
