"""Takes launchers' prefixes off a line and keeps what they say: rank, node, pid, time.

Forms: torchrun `[default3]:`, torch `[rank3]:`, Ray `(Actor pid=7, ip=10.0.0.1)` and `[repeated 6x across
cluster]`, srun `--label` ` 3: `, kubelet `2026-...Z stderr F `, syslog and dmesg, logging's and glog's times,
`task 98:`, `rank5 `, and whatever a progress bar left before the message.
"""

import calendar
import json
import re
from dataclasses import dataclass, replace

from paceline.analysis.facts import Clock, Line, Origin, Speaker

_MONTHS = {name: index for index, name in enumerate(calendar.month_abbr) if name}
_GLOG = re.compile(
    r"\[([EWIFC])\s?(?:(?P<month>\d{1,2})(?P<day>\d{2}) )?(?P<time>\d{2}:\d{2}:\d{2}(?:\.\d{1,18})?)? "
    r"?(?:\d{1,18} )?"
    r"[\w./-]{1,200}\.(?:cpp|cc|h|hpp|cu)(?::\d*)?\]"
)
_RAY = re.compile(
    r"\((?P<actor>[\w.:\[\]=-]+)(?: |,)[^()]{0,80}?pid=(?P<pid>\d{1,18})(?:, ip=(?P<ip>[\w.:-]+))?\)\s?"
)
_ACTOR_NAMES = re.compile(r"(?<![\w-])rank=(\d{1,6})\b")
_POD = re.compile(r"^\[pod/[\w./-]{1,200}\] ")  # kubectl logs --prefix
_RAY_REPEATED = re.compile(r"\[repeated (\d{1,9})x across cluster\]")
_ACTOR_RANK = re.compile(r"^[\w.]{1,80}\[rank=(\d{1,18})\]:\s?")
_KUBELET = re.compile(r"^(\d{4}-\d\d-\d\dT\S+) (?:stdout|stderr) [FP] ")
_DATE = re.compile(
    r"^(?:\[(?:DEBUG|INFO|WARNING|WARN|ERROR|CRITICAL)\] (?=[\d\[]))?\[?(?P<date>\d{4}[-/]\d\d[-/]\d\d)[T_ "
    r"](?P<time>\d\d:\d\d:\d\d(?:[.,]\d{1,18})?)(?:Z|[+-]\d\d:?\d\d)?\]?[:,]? ?"
)
_WEEKDAY = re.compile(
    r"^\[?(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) (?P<month>[A-Z][a-z]{2}) +(?P<day>\d{1,2}) "
    r"(?P<time>\d\d:\d\d:\d\d) "
    r"(?P<year>\d{4})\]? ?"
)
_SYSLOG = re.compile(
    r"^(?P<month>[A-Z][a-z]{2}) +(?P<day>\d{1,2}) (?P<time>\d\d:\d\d:\d\d(?:\.\d{1,9})?) "
    r"(?P<host>[\w.-]+) (?:kernel|systemd|nv-fabricmanager|nvidia-[\w-]{1,32})(?:\[\d{1,9}\])?: ?"
)
_SEARCHED = re.compile(  # grep over several files
    r"^[\w./-]{1,120}:(?:\d{1,9}:)?(?=[A-Z][a-z]{2} +\d{1,2} \d\d:|\[ *\d{1,9}\.\d|NVRM: |\d{4}-\d\d-\d\dT)"
)
_RELATIVE = re.compile(r"^\[(?: *\+\d{1,6}\.\d{1,9}|[A-Z][a-z]{2} ?\d{1,2} \d\d:\d\d)\] ")  # dmesg --reltime
_JOURNAL = re.compile(  # after an ISO date
    r"^(?P<host>[A-Za-z][\w.-]{0,63}) kernel: ?(?:\[ *\d{1,9}\.\d{1,9}\] ?)?"
)
_CLOCK = re.compile(r"^(?P<time>\d\d:\d\d:\d\d(?:[.,]\d{1,18})?)\s+")
_SERVED = re.compile(  # SGLang: `[2025-01-30 18:11:28 DP0 TP2 EP2] `
    r"^\[(?P<date>\d{4}-\d\d-\d\d) (?P<time>\d\d:\d\d:\d\d(?:[.,]\d{1,6})?)"
    r"(?P<axes>(?: [A-Z]{2,4}\d{1,5}){1,6})\] "
)
_TENSOR_RANK = re.compile(r"(?<![A-Za-z])TP(\d{1,5})\b")
_STAGE = re.compile(r"(?<![A-Za-z])PP\d")
_REPLICA = re.compile(r"(?<![A-Za-z])DP[1-9]")
_MPI = re.compile(
    r"^\[(?:[\w.-]{1,80}@)?\d{1,9},(?:mpirank:)?(?P<rank>\d{1,6})(?:,(?P<host>[\w.-]{1,64}))?\]<std(?:out|err|diag)>:\s?"
)
_BOOT = re.compile(r"^\[ *(?P<time>\d{1,9}\.\d{1,9})\] ?")
_FACILITY = re.compile(  # dmesg -x
    r"^(?:kern|user|daemon|syslog) {0,8}: ?(?:emerg|alert|crit|err|warn|notice|info|debug) {0,8}: ?"
    r"(?=\[|NVRM|nvidia)"
)
_KMSG = re.compile(r"^\d{1,3},\d{1,18},(?P<us>\d{1,18}),[-c][\w,=]{0,40};")  # /dev/kmsg
_TALOS = re.compile(
    r"^(?P<host>[\w.-]{1,64}): kern: {1,4}\w{3,10}: \[(?P<time>\d{4}-\d\d-\d\dT[\d:.]{8,20}Z?)\]: ?"
)
_START = re.compile(r"^t= *(?P<time>\d{1,18}(?:\.\d{1,18})?)s ")
_DEFAULT = re.compile(r"^\[default(\d{1,18})\]:\s?")
_RANK = re.compile(r"^\[rank:? ?(\d{1,18})\]:?\s?|^rank ?(\d{1,18})(?:: ?| +(?=\[))", re.IGNORECASE)
_LABEL = re.compile(r"^ *(\d{1,6}): (?=\S)")
_TASK = re.compile(r"^(?:(?P<host>[\w.-]{1,64}) )?task[ =](?P<task>\d{1,18})(?:: ?| )")
_HOST = re.compile(
    r"^(?!(?:[Ee]poch|[Tt]rain|[Tt]est|[Ee]val|[Vv]al|[Ii]ter|[Ss]tep)\w*[: ]"
    r"|[\w.]*(?:Error|Exception|Warning)[: ])"
    r"(?P<host>[A-Za-z][\w.-]{0,63})[: ] ?(?=\[[\d A-Z]|NVRM|nvidia-)"
)
_NCCL = re.compile(r"^(?P<host>[\w.-]{1,128}):(?P<pid>\d{1,18}):(?P<thread>\d{1,18}) (?=\[|\(|NCCL )")
_ACTOR_BEFORE = re.compile(r"\bpid=(?P<pid>\d{1,18})(?:, ip=(?P<ip>[\w.:-]{1,64}))?\)")
_DEFAULT_BEFORE = re.compile(r"\[default(\d{1,18})\]:")
_RANK_BEFORE = re.compile(r"\[rank ?(\d{1,18})\]:")
_BEFORE_CHARS_MAX = 200
_STEPS_MAX = 12  # prefixes in front of one message


@dataclass(frozen=True)
class _Read:
    """What has been taken off so far."""

    text: str
    speaker: Speaker
    time_s: float | None = None
    clock: Clock = Clock.NONE
    thread: int | None = None


def read_line(text: str, origin: Origin, hint: Speaker, year: int, attempt: int = 0) -> Line:
    """One line with its prefixes read; `hint` is what the file says of its writer.

    `year` completes dates of glog and syslog, which have none.
    """
    repeated = 1
    if text.startswith("{") and '"MESSAGE"' in text and (entry := _journal(text, hint)) is not None:
        return Line(origin, entry.text, entry.speaker, entry.time_s, entry.clock, attempt)
    found = _RAY_REPEATED.search(text)
    if found:
        repeated, text = int(found[1]), text[: found.start()].rstrip()
    state = _Read(text, hint)
    for _ in range(_STEPS_MAX):
        after = _take(state, year)
        if after is None:
            break
        state = after
    state = _glog(state, year)
    return Line(origin, state.text, state.speaker, state.time_s, state.clock, attempt, repeated, state.thread)


def _journal(text: str, hint: Speaker) -> _Read | None:
    """An entry of `journalctl -o json`."""
    try:
        entry = json.loads(text)
    except (ValueError, RecursionError):
        return None
    message = entry.get("MESSAGE") if isinstance(entry, dict) else None
    if not isinstance(message, str):
        return None
    host, stamp = entry.get("_HOSTNAME"), entry.get("__REALTIME_TIMESTAMP")
    known = isinstance(stamp, str) and stamp.isdecimal() and len(stamp) < 19
    speaker = replace(hint, host=host[:128]) if isinstance(host, str) and host else hint
    return _Read(message, speaker, int(stamp) / 1e6 if known else None, Clock.UNIX if known else Clock.NONE)


def _take(state: _Read, year: int) -> _Read | None:
    """One prefix less, None where none is left."""
    return _take_time(state, year) or _take_speaker(state)


def _take_time(state: _Read, year: int) -> _Read | None:
    text = state.text
    if found := _KUBELET.match(text):
        return _timed(state, found, iso_seconds(found[1]), Clock.UNIX)
    if found := _SERVED.match(text):
        timed = _timed(state, found, iso_seconds(f"{found['date']}T{found['time']}"), Clock.UNIX)
        rank = _rank_of_axes(found["axes"], replicas=True)
        return timed if rank is None else replace(timed, speaker=replace(timed.speaker, rank=rank))
    if found := _DATE.match(text):
        return _timed(state, found, iso_seconds(f"{found['date']}T{found['time']}"), Clock.UNIX)
    if found := _WEEKDAY.match(text):
        when = _calendar(int(found["year"]), _MONTHS.get(found["month"], 1), int(found["day"]), found["time"])
        return _timed(state, found, when, Clock.UNIX)
    if found := _SYSLOG.match(text):
        when = _calendar(year, _MONTHS.get(found["month"], 1), int(found["day"]), found["time"])
        timed = _timed(state, found, when, Clock.UNIX)
        return replace(timed, speaker=replace(timed.speaker, host=found["host"]))
    if found := _FACILITY.match(text) or _RELATIVE.match(text) or _SEARCHED.match(text):
        return replace(state, text=text[found.end() :])
    if found := _TALOS.match(text):
        timed = _timed(state, found, iso_seconds(found["time"]), Clock.UNIX)
        return replace(timed, speaker=replace(timed.speaker, host=found["host"]))
    if found := _KMSG.match(text):
        return _timed(state, found, int(found["us"]) / 1e6, Clock.START)
    if found := _CLOCK.match(text):
        return _timed(state, found, _of_day(found["time"]), Clock.DAY)
    if found := _BOOT.match(text) or _START.match(text):
        return _timed(state, found, float(found["time"]), Clock.START)
    return None


def _take_speaker(state: _Read) -> _Read | None:
    text, speaker = state.text, state.speaker
    if found := _RAY.match(text):
        rest = text[found.end() :]
        return replace(
            state,
            text=rest,
            speaker=replace(
                speaker,
                rank=_rank_of_actor(found[0], speaker.rank),
                pid=int(found["pid"]),
                host=found["ip"] or speaker.host,
            ),
        )
    if found := _MPI.match(text):
        spoken = replace(speaker, rank=int(found["rank"]), host=found["host"] or speaker.host)
        return replace(state, text=text[found.end() :], speaker=spoken)
    if found := _POD.match(text):
        return replace(state, text=text[found.end() :])
    if found := _DEFAULT.match(text):
        return replace(state, text=text[found.end() :], speaker=replace(speaker, local_rank=int(found[1])))
    if found := _ACTOR_RANK.match(text):
        return replace(state, text=text[found.end() :], speaker=replace(speaker, rank=int(found[1])))
    if found := _RANK.match(text):
        rank = int(found[1] or found[2])
        return replace(state, text=text[found.end() :], speaker=replace(speaker, rank=rank))
    if found := _TASK.match(text):
        spoken = replace(speaker, rank=int(found["task"]), host=found["host"] or speaker.host)
        return replace(state, text=text[found.end() :], speaker=spoken)
    if found := _NCCL.match(text):
        spoken = replace(speaker, host=found["host"], pid=int(found["pid"]))
        return replace(state, text=text[found.end() :], speaker=spoken, thread=int(found["thread"]))
    if state.clock is Clock.UNIX and (found := _JOURNAL.match(text)):
        return replace(state, text=text[found.end() :], speaker=replace(speaker, host=found["host"]))
    if found := _HOST.match(text):
        return replace(state, text=text[found.end() :], speaker=replace(speaker, host=found["host"]))
    if found := _LABEL.match(text):
        return replace(state, text=text[found.end() :], speaker=replace(speaker, rank=int(found[1])))
    return None


def _rank_of_actor(words: str, known: int | None) -> int | None:
    """`rank=3`, or the only axis of a server's workers (vLLM: `VllmWorker TP1`, `Worker_TP1`)."""
    if named := _ACTOR_NAMES.search(words):
        return int(named[1])
    rank = _rank_of_axes(words, replicas=False)
    return known if rank is None else rank


def _rank_of_axes(words: str, replicas: bool) -> int | None:
    """Where tensor parallelism is the only axis its number is the rank; `replicas` share the numbering."""
    if _STAGE.search(words) or (not replicas and _REPLICA.search(words)):
        return None
    found = _TENSOR_RANK.search(words)
    return int(found[1]) if found else None


def _glog(state: _Read, year: int) -> _Read:
    """Time of a glog header anywhere in the line, and the header off; words before it go as well."""
    found = _GLOG.search(state.text)
    if not found:
        return state
    state = replace(state, speaker=_spoken_before(state.text[: found.start()], state.speaker))
    text = state.text[found.end() :].lstrip(" ")
    if not found["time"]:
        return replace(state, text=text)
    if found["month"]:
        when, clock = _calendar(year, int(found["month"]), int(found["day"]), found["time"]), Clock.UNIX
    else:
        when, clock = _of_day(found["time"]), Clock.DAY
    return (
        replace(state, text=text, time_s=when, clock=clock) if when is not None else replace(state, text=text)
    )


def _spoken_before(words: str, speaker: Speaker) -> Speaker:
    """What launchers wrote between a progress bar and the header; the bar itself says nothing."""
    words = words[-_BEFORE_CHARS_MAX:]
    if found := _ACTOR_BEFORE.search(words):
        speaker = replace(speaker, pid=int(found["pid"]), host=found["ip"] or speaker.host)
    if found := _DEFAULT_BEFORE.search(words):
        speaker = replace(speaker, local_rank=int(found[1]))
    if found := _RANK_BEFORE.search(words):
        speaker = replace(speaker, rank=int(found[1]))
    return speaker


def _timed(state: _Read, found: re.Match[str], when: float | None, clock: Clock) -> _Read:
    rest = state.text[found.end() :]
    if when is None:
        return replace(state, text=rest)
    return replace(state, text=rest, time_s=when, clock=clock)


def iso_seconds(text: str) -> float | None:
    """`2025-08-18T14:00:31` in seconds since 1970, None where it is no time."""
    date, _, time = text.rstrip("Z").replace("/", "-").partition("T")
    try:
        year, month, day = (int(part) for part in date.split("-"))
    except ValueError:
        return None
    return _calendar(year, month, day, re.split(r"[+]|-(?=\d\d:?\d\d$)", time)[0])


def _calendar(year: int, month: int, day: int, time: str) -> float | None:
    if not (1 <= month <= 12 and 1 <= day <= 31 and 1970 <= year <= 9999):
        return None
    seconds = _of_day(time)
    return None if seconds is None else calendar.timegm((year, month, day, 0, 0, 0)) + seconds


def _of_day(text: str) -> float | None:
    try:
        hours, minutes, seconds = text.replace(",", ".").split(":")
        return int(hours) * 3600 + int(minutes) * 60 + float(seconds)
    except ValueError:
        return None
