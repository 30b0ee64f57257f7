"""Inline SVG of the page: the rank map, how far each rank came, works in time. All text is escaped."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

from paceline.analysis.diagnosis.answer import Diagnosis
from paceline.analysis.diagnosis.picture import RECORDER, Bar, Picture, Progress
from paceline.analysis.diagnosis.words import named_ranks
from paceline.contracts.verdicts import VICTIMS_MAX

GROUPS_DRAWN = 4
ROWS_DRAWN = 12  # of one group
BARS_OF_ROW = 12
READABLE = 420  # pixels below which a chart scrolls instead of shrinking
_CELL, _LABEL, _WIDTH, _ROW = 18, 108, 560, 22
_STATES = {
    "blame": "to blame",
    "waits": "only waited",
    "seen": "reports, not in the way",
    "silent": "no report",
}


@dataclass(frozen=True)
class Roles:
    """Ranks by what the diagnosis says of them."""

    blamed: frozenset[int]
    victims: frozenset[int]

    def of(self, rank: int, picture: Picture) -> str:
        if rank in self.blamed:
            return "blame"
        if rank in self.victims:
            return "waits"
        return "seen" if rank in picture.reporting else "silent"


def roles_of(diagnosis: Diagnosis, picture: Picture) -> Roles:
    """The list of victims is bounded; where it is full, those who stand in an open operation are added."""
    blamed = {rank for root in diagnosis.roots for rank in (root.rank, root.peer_rank, *root.ranks)}
    victims = set(diagnosis.victims)
    if len(victims) >= VICTIMS_MAX:
        victims |= picture.waiting()
    return Roles(frozenset(rank for rank in blamed if rank is not None), frozenset(victims - blamed))


def rank_map(picture: Picture, roles: Roles) -> str:
    """A cell for each rank in reading order; equal neighbours share a rectangle."""
    world = picture.world_size
    if not world:
        return ""
    columns = _columns(world)
    rows = -(-world // columns)
    left = 10 + 7 * len(str(world - 1))
    parts = []
    for row in range(rows):
        first, after = row * columns, min(world, (row + 1) * columns)
        parts.append(_text(left - 6, row * _CELL + 13, str(first), "axis end"))
        for low, high, state in _runs(range(first, after), picture, roles):
            x, width = left + (low - first) * _CELL, (high - low + 1) * _CELL
            title = _cell_title(low, high, state, picture)
            parts.append(_rect(x, row * _CELL, width, _CELL, f"cell {state}", title))
    grid = "".join(f"M{left + column * _CELL} 0V{rows * _CELL}" for column in range(1, columns))
    grid += "".join(f"M{left} {row * _CELL}H{left + columns * _CELL}" for row in range(1, rows))
    parts.append(f'<path class="grid" d="{grid}"/>')
    width = left + columns * _CELL + 2
    return _svg(width, rows * _CELL, f"Rank map: {_map_words(picture, roles)}", parts, least=0)


def legend(picture: Picture, roles: Roles) -> str:
    counts: dict[str, int] = defaultdict(int)
    for rank in range(picture.world_size):
        counts[roles.of(rank, picture)] += 1
    items = [
        f'<li><span class="key {state}"></span>{words} <b>{counts[state]}</b></li>'
        for state, words in _STATES.items()
        if counts[state]
    ]
    return f'<ul class="legend">{"".join(items)}</ul>'


def progress_chart(picture: Picture, roles: Roles, first_group: str) -> str:
    """For each group a row per set of ranks that came equally far: done, then entered and not done."""
    groups: dict[str, list[Progress]] = defaultdict(list)
    for progress in picture.progress:
        if progress.enqueued is not None or progress.completed is not None:
            groups[progress.group].append(progress)
    ordered = sorted(groups, key=lambda name: (name != first_group, -_spread(groups[name]), name))
    charts = [_progress_of(name, groups[name], picture, roles) for name in ordered[:GROUPS_DRAWN]]
    if len(ordered) > GROUPS_DRAWN:
        charts.append(f'<p class="more">{len(ordered) - GROUPS_DRAWN} more groups are not drawn.</p>')
    return "".join(charts)


def time_chart(picture: Picture, roles: Roles) -> str:
    """Last works of some ranks of each clock and group: those to blame first, then evenly chosen others."""
    lanes: dict[tuple[str, str], dict[int, list[Bar]]] = defaultdict(lambda: defaultdict(list))
    for bar in picture.bars(last=BARS_OF_ROW):
        row = lanes[bar.clock, bar.group][bar.rank]
        if len(row) < BARS_OF_ROW:
            row.append(bar)
    ordered = sorted(lanes, key=lambda key: (-sum(len(row) for row in lanes[key].values()), key))
    charts = [_times_of(_lane_name(*key), lanes[key], roles) for key in ordered[:GROUPS_DRAWN]]
    return "".join(charts)


def _columns(world: int) -> int:
    if world <= 16:
        return world
    return 32 if world <= 2048 else 64 if world <= 16_384 else 128


def _runs(ranks: Iterable[int], picture: Picture, roles: Roles) -> list[tuple[int, int, str]]:
    runs: list[tuple[int, int, str]] = []
    for rank in ranks:
        state = roles.of(rank, picture)
        if runs and runs[-1][2] == state and state != "blame":
            runs[-1] = (runs[-1][0], rank, state)
        else:
            runs.append((rank, rank, state))
    return runs


def _cell_title(low: int, high: int, state: str, picture: Picture) -> str:
    host = picture.hosts.get(low, "") if low == high else ""
    return f"{named_ranks(range(low, high + 1))}{f' on {host}' if host else ''}: {_STATES[state]}"


def _map_words(picture: Picture, roles: Roles) -> str:
    return f"{picture.world_size} ranks, {len(roles.blamed)} to blame, {len(roles.victims)} only waited"


def _spread(members: Sequence[Progress]) -> int:
    known = [member.completed if member.completed is not None else member.enqueued or 0 for member in members]
    return max(known) - min(known) if known else 0


def _progress_of(name: str, members: Sequence[Progress], picture: Picture, roles: Roles) -> str:
    folded: dict[tuple[bool, int | None, int | None], list[int]] = defaultdict(list)
    for member in members:
        folded[member.rank in roles.blamed, member.completed, member.enqueued].append(member.rank)
    rows = sorted(folded, key=lambda key: (not key[0], key[1] if key[1] is not None else key[2] or 0))
    numbers = [n for _, done, entered in rows for n in (done, entered) if n is not None]
    low, high = min(numbers), max(max(numbers), min(numbers) + 1)
    start = low - max(1, (high - low) // 8)
    scale = (_WIDTH - _LABEL - 64) / (high - start)
    parts = []
    for index, key in enumerate(rows[:ROWS_DRAWN]):
        parts += _progress_row(index * _ROW, folded[key], key, start, scale)
    more = len(rows) - ROWS_DRAWN
    foot = f'<p class="more">{more} more sets of ranks are not drawn.</p>' if more > 0 else ""
    height = min(len(rows), ROWS_DRAWN) * _ROW + 4
    label = f"Progress in {name}"
    return (
        f"<figure><figcaption>{escape(name)}</figcaption>{_svg(_WIDTH, height, label, parts)}{foot}</figure>"
    )


def _progress_row(
    y: int, ranks: list[int], key: tuple[bool, int | None, int | None], start: int, scale: float
) -> list[str]:
    blamed, done, entered = key
    title = f"{named_ranks(ranks)}: {_steps(done, entered)}"
    parts = [_text(_LABEL - 8, y + 15, _short(ranks), "end strong" if blamed else "end")]
    done_to = _LABEL + ((done if done is not None else start) - start) * scale
    if done is not None:
        parts.append(_rect(_LABEL, y + 3, max(done_to - _LABEL, 2), _ROW - 6, "done", title))
    end = done_to
    if entered is not None and (done is None or entered > done):
        end = _LABEL + (entered - start) * scale
        kind = "open" if done is not None else "unsure"
        parts.append(_rect(done_to, y + 3, max(end - done_to, 2), _ROW - 6, kind, title))
    last = max(number for number in (done, entered) if number is not None)
    parts.append(_text(end + 5, y + 15, str(last), "strong" if blamed else "axis"))
    return parts


def _steps(done: int | None, entered: int | None) -> str:
    words = [
        f"completed {done}" if done is not None else "",
        f"entered {entered}" if entered is not None else "",
    ]
    return ", ".join(word for word in words if word)


def _times_of(name: str, lanes: dict[int, list[Bar]], roles: Roles) -> str:
    chosen = _choose(sorted(lanes), roles)
    bars = [bar for rank in chosen for bar in lanes[rank]]
    low = min(bar.start_s for bar in bars)
    high = max(bar.end_s if bar.end_s is not None else bar.start_s for bar in bars)
    high += max((high - low) * 0.08, 0.001)
    scale = (_WIDTH - _LABEL - 10) / (high - low)
    parts = []
    for index, rank in enumerate(chosen):
        y = index * _ROW
        parts.append(
            _text(_LABEL - 8, y + 15, f"rank {rank}", "end strong" if rank in roles.blamed else "end")
        )
        for bar in lanes[rank]:
            x = _LABEL + (bar.start_s - low) * scale
            end = _LABEL + ((bar.end_s if bar.end_s is not None else high) - low) * scale
            parts.append(_rect(x, y + 3, max(end - x, 1.5), _ROW - 6, _bar_kind(bar), _bar_title(bar, low)))
    height = len(chosen) * _ROW
    parts.append(_text(_LABEL, height + 14, "0 s", "axis"))
    parts.append(_text(_WIDTH - 10, height + 14, _seconds(high - low), "axis end"))
    more = len(lanes) - len(chosen)
    foot = f'<p class="more">{len(chosen)} of {len(lanes)} ranks are drawn.</p>' if more else ""
    label = f"Works in time, {name}"
    svg = _svg(_WIDTH, height + 20, label, parts)
    return f"<figure><figcaption>{escape(name)}</figcaption>{svg}{foot}</figure>"


def _lane_name(clock: str, group: str) -> str:
    return f"{group}, from {'Flight Recorder dumps' if clock == RECORDER else 'logs'}"


def _choose(ranks: list[int], roles: Roles) -> list[int]:
    blamed = [rank for rank in ranks if rank in roles.blamed][: ROWS_DRAWN - 4]
    others = [rank for rank in ranks if rank not in roles.blamed]
    room = ROWS_DRAWN - len(blamed)
    step = max(1, -(-len(others) // room))
    return sorted([*blamed, *others[::step][:room]])


def _bar_kind(bar: Bar) -> str:
    return "done" if bar.end_s is not None else "open"


def _bar_title(bar: Bar, zero_s: float) -> str:
    number = "" if bar.sequence is None else f" {bar.sequence}"
    took = "not ended" if bar.end_s is None else f"took {_seconds(bar.end_s - bar.start_s)}"
    begun = _seconds(bar.start_s - zero_s)
    return f"rank {bar.rank}: {bar.function or 'work'}{number}, begun at {begun}, {took}"


def _seconds(value: float) -> str:
    return f"{value * 1000:.1f} ms" if value < 1 else f"{value:.1f} s"


def _short(ranks: list[int]) -> str:
    text = named_ranks(ranks)
    return text if len(text) <= 14 else f"{len(ranks)} ranks"


def _svg(width: float, height: float, label: str, parts: list[str], least: int = READABLE) -> str:
    body = "".join(parts)
    size = f"max-width:{1.25 * width:g}px;min-width:{least}px"
    box = f'viewBox="0 0 {width:g} {height:g}" style="{size}"'
    return f'<div class="scroll"><svg {box} role="img" aria-label="{escape(label)}">{body}</svg></div>'


def _rect(x: float, y: float, width: float, height: float, kind: str, title: str) -> str:
    shape = f'x="{x:.1f}" y="{y:g}" width="{width:.1f}" height="{height:g}"'
    return f'<rect class="{kind}" {shape}><title>{escape(title)}</title></rect>'


def _text(x: float, y: float, text: str, kind: str) -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:g}">{escape(text)}</text>'
