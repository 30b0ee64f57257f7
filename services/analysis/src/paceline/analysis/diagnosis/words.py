"""Words that the terminal, the page and the trace share."""

from collections.abc import Iterable

from paceline.analysis.diagnosis.answer import Blame, Diagnosis
from paceline.contracts.verdicts import VICTIMS_MAX, ActionKind, Owner, RootKind, VerdictClass

CLASS_WORDS = {
    VerdictClass.NONE: "no communication fault",
    VerdictClass.H1: "a rank never entered",
    VerdictClass.H2: "ranks disagree about the operation",
    VerdictClass.H3: "entered alike, no progress",
    VerdictClass.S1: "a late rank",
    VerdictClass.S2: "a slow link",
    VerdictClass.S3: "a late rank and a slow link",
    VerdictClass.DEADLOCK: "communicators wait for each other",
    VerdictClass.INIT: "stuck before the first collective",
    VerdictClass.DEAD_PROCESS: "a process is gone",
    VerdictClass.INCONCLUSIVE: "the input does not decide",
}
ACTION_WORDS = {
    ActionKind.NONE: "Nothing to do",
    ActionKind.COLLECT: "Collect more before you act",
    ActionKind.WAIT: "Wait",
    ActionKind.FIX_CODE: "Fix the code",
    ActionKind.FIX_CONFIGURATION: "Fix the configuration",
    ActionKind.RESTART_PROCESS: "Restart the process",
    ActionKind.RESET_GPU: "Reset the GPU",
    ActionKind.REPLACE_NODE: "Replace the node",
    ActionKind.NETWORK_TICKET: "Open a ticket with the network team",
}
OWNER_WORDS = {
    Owner.USER_CODE: "the training code",
    Owner.FRAMEWORK: "the framework",
    Owner.HOST: "the host",
    Owner.GPU: "the GPU",
    Owner.FABRIC: "the fabric",
    Owner.STORAGE: "storage",
    Owner.UNKNOWN: "",
}


def ranges_text(ranks: Iterable[int], parts_max: int = 8) -> str:
    """`0-3, 7`; further parts are counted, not listed."""
    parts: list[tuple[int, int]] = []
    ordered = sorted(set(ranks))
    for rank in ordered:
        if parts and rank == parts[-1][1] + 1:
            parts[-1] = (parts[-1][0], rank)
        else:
            parts.append((rank, rank))
    shown = parts[:parts_max]
    text = ", ".join(str(low) if low == high else f"{low}-{high}" for low, high in shown)
    rest = len(ordered) - sum(high - low + 1 for low, high in shown)
    return f"{text} and {rest} more" if rest else text


def named_ranks(ranks: Iterable[int]) -> str:
    """`rank 3` or `ranks 0-3, 7`."""
    known = sorted(set(ranks))
    return f"{'rank' if len(known) == 1 else 'ranks'} {ranges_text(known)}"


def victims_text(diagnosis: Diagnosis) -> str:
    """The list is bounded; a full one may not be all."""
    return named_ranks(diagnosis.victims) + (" and others" if len(diagnosis.victims) >= VICTIMS_MAX else "")


def blame_text(root: Blame, verdict_class: VerdictClass | None = None) -> str:
    """What is to blame, in as many words as are known: `rank 3 on node-7, GPU 0000:9b:00`."""
    if root.kind is RootKind.NONE:
        nobody = "nobody: " if verdict_class is VerdictClass.NONE else ""
        return f"{nobody}{root.name}" if root.name else "nobody"
    if root.kind is RootKind.ROTATING:
        return root.name or "no single rank: it changes from step to step"
    words = _subject(root)
    if root.node and root.kind is not RootKind.NODE:
        words += f" on {root.node}"
    if root.gpu and root.kind is not RootKind.GPU:
        words += f", GPU {root.gpu}"
    return words


def _subject(root: Blame) -> str:
    rank = f"rank {root.rank}" if root.rank is not None else ""
    if root.kind is RootKind.NODE:
        return f"node {root.node or root.name}".strip()
    if root.kind is RootKind.GPU:
        return " ".join(word for word in ("GPU", root.gpu or root.name, f"of {rank}" if rank else "") if word)
    if root.kind is RootKind.LINK:
        ends = [str(end) for end in (root.rank, root.peer_rank) if end is not None]
        between = f"link between ranks {' and '.join(ends)}" if len(ends) == 2 else f"a link of {rank}"
        return f"{between} ({root.name})" if root.name and (rank or ends) else root.name or between
    if root.kind is RootKind.RANK and rank:
        return f"{rank} ({root.name})" if root.name else rank
    label = {RootKind.DOMAIN: "NVLink domain", RootKind.CONFIGURATION: "setting"}.get(
        root.kind, root.kind.value
    )
    members = named_ranks(root.ranks) if root.ranks else rank
    return " ".join(word for word in (label if root.name else "", root.name, members) if word) or label


def coverage_text(diagnosis: Diagnosis) -> str:
    """`confidence 0.90, 7 of 8 ranks report, attempt 2 of 2`."""
    seen = diagnosis.seen
    of = f" of {seen.ranks_expected}" if seen.ranks_expected else ""
    words = [f"confidence {diagnosis.confidence:.2f}"]
    if seen.ranks_reporting or of:
        one = seen.ranks_reporting == 1 and not of
        words.append("1 rank reports" if one else f"{seen.ranks_reporting}{of} ranks report")
    if diagnosis.attempts > 1:
        words.append(f"attempt {diagnosis.attempt + 1} of {diagnosis.attempts}")
    return ", ".join(words)


def action_text(diagnosis: Diagnosis) -> str:
    action, owner = diagnosis.action, OWNER_WORDS[diagnosis.owner]
    target = f": {action.target}" if action.target else ""
    words = [f"{ACTION_WORDS[action.kind]}{target}."]
    if action.reason:
        words.append(sentence(action.reason))
    if owner:
        words.append(f"It belongs to {owner}.")
    return " ".join(words)


def sentence(text: str) -> str:
    """First letter large unless it begins a name (`node-05`), one full stop."""
    text = text.strip().rstrip(".")
    word = text.split(" ")[0].rstrip(",:;")
    return f"{text[:1].upper() if word.isalpha() else text[:1]}{text[1:]}." if text else ""


def exports(diagnosis: Diagnosis) -> list[str]:
    """Lines for a shell."""
    return [f"export {name}={value}" for name, value in diagnosis.export_next.items()]
