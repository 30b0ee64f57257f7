"""Nodes, versions and setups that differ from the others: what one side has and the rest has not."""

import re
from collections import Counter, defaultdict
from collections.abc import Sequence

import numpy as np

from paceline.analysis.adapters.row_fields import NETWORK_COUNTER
from paceline.analysis.diagnosis.answer import Blame, Ground
from paceline.analysis.diagnosis.case import Case
from paceline.analysis.diagnosis.rules.finding import Finding, complaining, origins_of
from paceline.analysis.facts import Membership, SampleRow, SettingSeen
from paceline.contracts.verdicts import (
    Action,
    ActionKind,
    Operation,
    Owner,
    RootKind,
    SubReason,
    VerdictClass,
)

COUNTER_RATIO = 10.0  # errors of one place against the worst of all others
COUNTER_MIN = 20.0
VERSION_RATIO = 1.15
_CONGESTION = re.compile(r"pause|cnp|ecn|xmit_wait|congest")  # says who suffers as well, not who is broken
_VERSIONS = re.compile(r"version|^nccl$|^driver$|^torch$|^cuda$|^image$|release")
_LESS_IS_BETTER = re.compile(r"(?:^|_)(?:ms|us|ns|s|sec|seconds|time|latency|duration)$")
_MORE_IS_BETTER = re.compile(r"per_s|per_sec|tok_s|busbw|algbw|bandwidth|throughput|tflops|rate")
_NO_MEASURE = frozenset({"rank", "local_rank", "run", "step", "index", "size", "peer", "capture", "nodes"})
_SIZED = 2000


def init_refused(case: Case) -> Finding | None:
    """NCCL itself compared what the processes brought and refused: versions, world sizes, one GPU twice."""
    said = [fact for fact in case.of(SettingSeen) if fact.name == "init_refused"]
    if not said:
        return None
    kind, text = said[0].value, said[0].text
    what, advice = {
        "versions": (
            "NCCL versions differ between processes",
            "one NCCL build (image, LD_LIBRARY_PATH) for all",
        ),
        "rank_count": (
            "processes were started with different world sizes",
            "one world size in all launchers",
        ),
        "same_gpu": (
            "two ranks use the same GPU (duplicate GPU)",
            "set the device of each local rank before init",
        ),
    }[kind]
    members = case.of(Membership)
    name = next((fact.group.name for fact in members if fact.group.name), "")
    return Finding(
        reason="init_refused",
        verdict_class=VerdictClass.H2,
        sub_reason=SubReason.BOOTSTRAP,
        roots=(Blame(RootKind.CONFIGURATION, name=f"{what}: {text[:120]}"),),
        communicator=name,
        operation=Operation(name, name, "init", 0),
        phase="ncclCommInitRank",
        owner=Owner.FRAMEWORK,
        action=Action(ActionKind.FIX_CONFIGURATION, "", advice),
        confidence=0.9,
        grounds=(Ground("refused", text, origins_of(said)),),
        summary=f"The init is refused: {what} ({text[:120]}); no machine is to blame",
    )


def adapters_differ(case: Case) -> Finding | None:
    """A node on which NCCL finds fewer network adapters than on the others, in a job that stands."""
    found: dict[str, set[str]] = defaultdict(set)
    facts: dict[str, list[SettingSeen]] = defaultdict(list)
    for fact in case.of(SettingSeen):
        if fact.name == "ib_devices" and fact.speaker.host:
            found[fact.speaker.host] |= set(fact.value.split(",")) - {"none"}
            facts[fact.speaker.host].append(fact)
    sizes = {host: len(devices) for host, devices in found.items()}
    most = max(sizes.values(), default=0)
    fewer = sorted(host for host, size in sizes.items() if size < most)
    begun = [fact for fact in case.of(Membership) if fact.complete is False]
    spin = any(row.numbers.get("sm_util", 0.0) >= 90.0 for row in case.of(SampleRow))
    if not fewer or len(fewer) * 2 > len(sizes) or not (begun or spin or complaining(case)):
        return None
    missing = sorted(set().union(*found.values()) - found[fewer[0]])
    words = f"{', '.join(missing)} missing" if found[fewer[0]] else "no InfiniBand device found"
    ranks = {rank for rank, place in case.places.items() if place.host in fewer}
    ranks |= {
        rank
        for fact in case.of(Membership)
        if fact.speaker.host in fewer and (rank := case.rank_of(fact)) is not None
    }
    return Finding(
        reason="adapters_differ",
        verdict_class=VerdictClass.H3,
        sub_reason=SubReason.BOOTSTRAP if begun else SubReason.MISSING_EXIT,
        roots=tuple(
            Blame(RootKind.NODE, node=host, name=words, why="fewer adapters than its peers") for host in fewer
        ),
        victims=tuple(rank for rank in case.ranks_named if rank not in ranks),
        phase="init and first inter-node collective (ncclCommInitRank)",
        owner=Owner.HOST,
        action=Action(
            ActionKind.FIX_CONFIGURATION,
            ", ".join(fewer),
            "make all adapters visible there: driver, device plugin, cabling",
        ),
        confidence=0.75,
        grounds=(
            Ground("adapters", f"{', '.join(fewer)}: {words}", origins_of(facts[fewer[0]])),
            Ground(
                "others",
                f"the others have {most}",
                origins_of(f for host in facts if host not in fewer for f in facts[host][:1]),
            ),
        ),
        summary=f"{', '.join(fewer)} has fewer network adapters than its peers ({words}), and the job stands",
    )


def port_counters(case: Case) -> Finding | None:
    """Error counters of adapters that grow at one place only."""
    first: dict[tuple[str, str], dict[str, tuple[float, float]]] = defaultdict(dict)
    samples: Counter[tuple[tuple[str, str], str]] = Counter()
    rows = [row for row in case.of(SampleRow) if row.kind == "network"]
    for row in rows:
        place = row.speaker.host or row.words.get("node", ""), row.words.get("gpu", "")
        for name, value in row.numbers.items():
            if NETWORK_COUNTER.search(name) and not _CONGESTION.search(name):
                begin, _ = first[place].get(name, (value, value))
                first[place][name] = (min(begin, value), value)
                samples[place, name] += 1
    whole = all(row.words.get("tool") == "ibqueryerrors" for row in rows)  # who is not listed has none
    once = bool(samples) and max(samples.values()) == 1  # counters since the start of the driver
    guilty: dict[tuple[str, str], list[str]] = defaultdict(list)
    for name in {name for counters in first.values() for name in counters}:
        growth = {
            place: counters[name][1] - (0.0 if once else counters[name][0])
            for place, counters in first.items()
            if name in counters
        }
        worst = max(growth, key=lambda place: growth[place])
        rest = max((value for place, value in growth.items() if place != worst), default=0.0)
        if (len(growth) > 1 or whole) and growth[worst] >= max(COUNTER_MIN, COUNTER_RATIO * rest):
            guilty[worst].append(f"{name} +{growth[worst]:.0f}")
    if len(guilty) != 1 or complaining(case):
        return None
    (node, device), words = next(iter(guilty.items()))
    if not node:
        return None
    return Finding(
        reason="port_counters",
        verdict_class=VerdictClass.S2,
        sub_reason=SubReason.SLOW_LINK,
        roots=(Blame(RootKind.NODE, node=node, name=device, why=", ".join(sorted(words)[:4])),),
        victims=(),
        phase="inter-node collective (bandwidth)",
        owner=Owner.FABRIC,
        action=Action(
            ActionKind.NETWORK_TICKET,
            f"{node} {device}".strip(),
            "cable, optics and switch port of this adapter",
        ),
        confidence=0.75,
        grounds=(Ground("counters", f"{node} {device}: {', '.join(sorted(words)[:6])}", origins_of(rows)),),
        summary=f"Errors grow on one adapter only, {node} {device} ({', '.join(sorted(words)[:3])}): "
        "collectives over it are slow",
    )


def version_slow(case: Case) -> Finding | None:
    """The same nodes measured with two versions: slow with one of them everywhere."""
    rows = [
        row
        for row in case.of(SampleRow)
        if row.words and row.kind in ("other", "bandwidth", "steps", "operations", "rates")
    ]
    for key in sorted({key for row in rows for key in row.words if _VERSIONS.search(key)}):
        for measure in sorted({name for row in rows for name in row.numbers} - _NO_MEASURE):
            sign = -1.0 if _LESS_IS_BETTER.search(measure) and not _MORE_IS_BETTER.search(measure) else 1.0
            values: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
            for row in rows:
                if key in row.words and measure in row.numbers:
                    values[row.words[key]][row.speaker.host or row.words.get("node", "")].append(
                        row.numbers[measure]
                    )
            slow = _slow_version(values, sign) if 2 <= len(values) <= _SIZED else None
            if slow is not None:
                return _of_version(key, slow, measure, rows)
    return None


def _slow_version(values: dict[str, dict[str, list[float]]], sign: float) -> tuple[str, str, float] | None:
    """The worst version against the best, where every node of it is worse than every node of the best."""
    middle = {
        version: [float(np.median(found)) for found in nodes.values()] for version, nodes in values.items()
    }
    best = max(middle, key=lambda version: sign * float(np.median(middle[version])))
    worst = min(middle, key=lambda version: sign * float(np.median(middle[version])))
    good, bad = float(np.median(middle[best])), float(np.median(middle[worst]))
    if min(good, bad) <= 0 or max(good, bad) / min(good, bad) < VERSION_RATIO or len(middle[worst]) < 2:
        return None
    apart = min(sign * value for value in middle[best]) > max(sign * value for value in middle[worst])
    return (worst, best, bad / good) if apart else None


def _of_version(key: str, found: tuple[str, str, float], measure: str, rows: Sequence[SampleRow]) -> Finding:
    worst, best, ratio = found
    return Finding(
        reason="version_slow",
        verdict_class=VerdictClass.S2,
        sub_reason=SubReason.SHARED_PATH,
        roots=(
            Blame(RootKind.CONFIGURATION, name=f"{key} {worst}", why=f"slow on all nodes, {best} is not"),
        ),
        victims=(),
        phase=f"bench of versions ({measure})",
        owner=Owner.FRAMEWORK,
        action=Action(ActionKind.FIX_CONFIGURATION, f"{key} {worst}", f"use {best}; report the regression"),
        confidence=0.75,
        grounds=(
            Ground(
                "versions",
                f"{measure} with {worst} is {ratio:.2f} of that with {best}, on every node",
                origins_of(rows),
            ),
        ),
        summary=f"All nodes are slow with {key} {worst} ({measure} {ratio:.2f} of {best}): "
        "the version, no rank and no node",
    )


def shared_peer(failed: Sequence[tuple[str, str]], addresses: dict[str, str]) -> str:
    """The one far end of failed completions that several hosts saw, as a host where a line gives its address.

    `failed`: (host that says so, address of its peer); `addresses`: host by address.
    """
    peers = Counter(peer for _, peer in failed)
    if len(peers) != 1:
        return ""
    peer = next(iter(peers))
    hosts = {host for host, _ in failed if host}
    return addresses.get(peer, peer) if len(hosts) > 1 and addresses.get(peer, "") not in hosts else ""
