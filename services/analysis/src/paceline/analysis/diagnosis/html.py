"""One self-contained page: no script, no network, light and dark. Everything from the input is escaped."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from html import escape

from paceline.analysis.diagnosis.answer import Diagnosis, Ground
from paceline.analysis.diagnosis.charts import legend, progress_chart, rank_map, roles_of, time_chart
from paceline.analysis.diagnosis.picture import Mark, Picture
from paceline.analysis.diagnosis.words import (
    CLASS_WORDS,
    action_text,
    blame_text,
    coverage_text,
    exports,
    ranges_text,
    sentence,
    victims_text,
)
from paceline.contracts.verdicts import VerdictClass

LIST_MAX = 200
ORIGINS_MAX = 32
EVENTS_SHOWN = 60
_TONES = {VerdictClass.NONE: "calm", VerdictClass.INCONCLUSIVE: "open"}

_STYLE = """
:root{--paper:#fff;--ink:#1b1f24;--dim:#5b6470;--line:#d9dee4;--panel:#f5f7f9;--bad:#b42318;--wait:#e3b341;
--seen:#9fb8d1;--none:#e6e9ed;--ok:#1a7f4b;--open:#9a6700}
@media (prefers-color-scheme:dark){:root{--paper:#14171b;--ink:#e6e9ed;--dim:#9aa4b0;--line:#313842;
--panel:#1c2127;--bad:#ff8a7a;--wait:#b58a1f;--seen:#41607f;--none:#2a3038;--ok:#56c78a;--open:#e3b341}}
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);font:16px/1.5 system-ui,sans-serif;
overflow-wrap:anywhere}
main{max-width:960px;margin:0 auto;padding:24px 16px 64px}
h1{font-size:1.45rem;line-height:1.3;margin:.2em 0}
h2{font-size:1rem;margin:2.2em 0 .5em;padding-bottom:.25em;border-bottom:1px solid var(--line)}
.badge{display:inline-block;padding:.05em .6em;border-radius:4px;font-weight:700;color:var(--paper);
background:var(--bad)}
.badge.calm{background:var(--ok)}.badge.open{background:var(--open)}
.dim,.more,figcaption{color:var(--dim)}.more{font-size:.875rem;margin:.25em 0}
.facts{display:grid;grid-template-columns:9rem 1fr;gap:.5em 1em;margin:1.2em 0 0}
.facts dt{color:var(--dim)}.facts dd{margin:0}
@media (max-width:600px){.facts{grid-template-columns:1fr;gap:0}.facts dd{margin-bottom:.7em}}
ul,ol{padding-left:1.3em;margin:.3em 0}li{margin:.35em 0}
code,pre{font:.875em/1.5 ui-monospace,monospace}
pre{background:var(--panel);border:1px solid var(--line);border-radius:6px;padding:.7em 1em;overflow-x:auto}
.origins{display:block;color:var(--dim);font:.8125em/1.5 ui-monospace,monospace}
.against{color:var(--dim)}
figure{margin:.8em 0 1.4em}figcaption{font-size:.875rem}
.scroll{overflow-x:auto}svg{display:block;width:100%;height:auto}
svg text{font:11px ui-monospace,monospace;fill:var(--ink)}
svg text.axis{fill:var(--dim)}svg text.end{text-anchor:end}svg text.strong{fill:var(--bad);font-weight:700}
.grid{stroke:var(--paper);stroke-width:2;fill:none}
.blame{fill:var(--bad)}.waits{fill:var(--wait)}.seen{fill:var(--seen)}.silent{fill:var(--none)}
.done{fill:var(--seen)}.open{fill:var(--wait)}.unsure{fill:var(--wait);opacity:.5}
.legend{list-style:none;display:flex;flex-wrap:wrap;gap:.2em 1.4em;padding:0;font-size:.875rem}
.key{display:inline-block;width:.8em;height:.8em;margin-right:.45em;border-radius:2px}
.key.blame{background:var(--bad)}.key.waits,.key.entered{background:var(--wait)}
.key.seen{background:var(--seen)}.key.silent{background:var(--none)}
table{border-collapse:collapse;width:100%;font-size:.875rem}
td,th{text-align:left;vertical-align:top;padding:.3em .8em .3em 0;border-bottom:1px solid var(--line)}
@media (max-width:600px){thead{display:none}
tr{display:block;border-bottom:1px solid var(--line);padding:.4em 0}
td{display:block;border:0;padding:0}}
footer{margin-top:3em;font-size:.8125rem;color:var(--dim)}
"""


def make_page(diagnosis: Diagnosis, picture: Picture) -> str:
    """The whole document."""
    roles = roles_of(diagnosis, picture)
    tone = _TONES.get(diagnosis.verdict_class, "")
    value = diagnosis.verdict_class.value
    body = [
        f'<p><span class="badge {tone}">{value}</span> <span class="dim">'
        f"{escape(CLASS_WORDS[diagnosis.verdict_class])}; {escape(coverage_text(diagnosis))}</span></p>",
        f"<h1>{escape(sentence(diagnosis.summary))}</h1>",
        _facts(diagnosis),
        _section("Why", _grounds(diagnosis.grounds)),
        _section("What would decide", _list(map(escape, diagnosis.would_decide))),
        _section("For the next run", _exports(diagnosis)),
        _section("Ranks", rank_map(picture, roles) + legend(picture, roles) if picture.world_size else ""),
        _section("How far each rank came", _progress(progress_chart(picture, roles, diagnosis.communicator))),
        _section("Works in time", _times(time_chart(picture, roles))),
        _section("Events", _events(picture)),
        _section("What was read", _coverage(diagnosis)),
    ]
    return _document(f"{value}: {diagnosis.summary}", "\n".join(part for part in body if part))


def _document(title: str, body: str) -> str:
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width,initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{escape(title[:120])}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<main>\n{body}\n"
        "<footer>Written by paceline diagnose. Positions count lines from 1.</footer>\n"
        "</main>\n</body>\n</html>\n"
    )


def _section(title: str, content: str) -> str:
    return f"<section><h2>{title}</h2>{content}</section>" if content else ""


def _facts(diagnosis: Diagnosis) -> str:
    rows = [("To blame", _blames(diagnosis))]
    if diagnosis.victims:
        rows.append(("Only waited", escape(victims_text(diagnosis))))
    where = _where(diagnosis)
    if where:
        rows.append(("Stands in", escape(where)))
    rows.append(("What to do", escape(action_text(diagnosis))))
    return f'<dl class="facts">{"".join(f"<dt>{name}</dt><dd>{words}</dd>" for name, words in rows)}</dl>'


def _blames(diagnosis: Diagnosis) -> str:
    if not diagnosis.roots:
        return "not known"
    found = diagnosis.verdict_class
    items = [
        f"<b>{escape(blame_text(root, found))}</b>{escape(f': {root.why}' if root.why else '')}"
        for root in diagnosis.roots
    ]
    return items[0] if len(items) == 1 else _list(items)


def _where(diagnosis: Diagnosis) -> str:
    operation = diagnosis.operation
    if operation is None:
        return diagnosis.phase
    number = f" {operation.round}" if operation.round else ""
    name = operation.communicator_name or diagnosis.communicator
    words = [f"{operation.function or 'collective'}{number}", f"of {name}" if name else "", operation.detail]
    return ", ".join(word for word in (" ".join(word for word in words[:2] if word), words[2]) if word)


def _grounds(grounds: Iterable[Ground]) -> str:
    items = []
    for ground in grounds:
        origins = " ".join(escape(str(origin)) for origin in ground.origins[:ORIGINS_MAX])
        more = len(ground.origins) - ORIGINS_MAX
        places = (
            f'<span class="origins">{origins}{f" and {more} more" if more > 0 else ""}</span>'
            if origins
            else ""
        )
        words = escape(ground.statement)
        items.append(
            words + places if ground.supports else f'<span class="against">Against it: {words}</span>{places}'
        )
    return _list(items)


def _exports(diagnosis: Diagnosis) -> str:
    lines = exports(diagnosis)
    return f"<pre>{escape(chr(10).join(lines))}</pre>" if lines else ""


def _progress(charts: str) -> str:
    if not charts:
        return ""
    keys = (
        '<ul class="legend"><li><span class="key seen"></span>completed</li>'
        '<li><span class="key entered"></span>entered, not completed</li></ul>'
    )
    note = "Sequence numbers in each communicator; ranks that came equally far share a row."
    return f'<p class="dim">{note}</p>{charts}{keys}'


def _times(charts: str) -> str:
    note = "Last works of some ranks. Times of two hosts are as their clocks say."
    return f'<p class="dim">{note}</p>{charts}' if charts else ""


def _events(picture: Picture) -> str:
    """Equal words of many ranks are one row; what a device or a process said comes before timeouts."""
    folded: dict[tuple[str, str], list[Mark]] = defaultdict(list)
    for mark in picture.marks:
        folded[mark.kind, mark.text].append(mark)
    if not folded:
        return ""
    ordered = sorted(folded, key=lambda key: key[0] == "timeout")
    rows = "".join(
        f"<tr><td>{escape(_who(folded[kind, text]))}</td><td>{escape(kind)}</td>"
        f'<td>{escape(text)}<span class="origins">{escape(_where_from(folded[kind, text]))}</span></td></tr>'
        for kind, text in ordered[:EVENTS_SHOWN]
    )
    more = len(ordered) - EVENTS_SHOWN + picture.marks_dropped
    foot = f'<p class="more">{more} more kinds of events are not shown.</p>' if more > 0 else ""
    head = "<thead><tr><th>who</th><th>what</th><th>said</th></tr></thead>"
    return f"<table>{head}<tbody>{rows}</tbody></table>{foot}"


def _who(marks: Sequence[Mark]) -> str:
    ranks = {mark.rank for mark in marks if mark.rank is not None}
    hosts = sorted({mark.host for mark in marks if mark.host})
    words = [f"{'rank' if len(ranks) == 1 else 'ranks'} {ranges_text(ranks)}" if ranks else ""]
    words.append(hosts[0] if len(hosts) == 1 else f"{len(hosts)} hosts" if hosts else "")
    return ", ".join(word for word in words if word) or "-"


def _where_from(marks: Sequence[Mark]) -> str:
    shown = " ".join(str(mark.origin) for mark in marks[:3])
    return f"{shown} and {len(marks) - 3} more" if len(marks) > 3 else shown


def _coverage(diagnosis: Diagnosis) -> str:
    seen = diagnosis.seen
    sources = ", ".join(seen.sources) or "nothing recognised"
    skipped = f", {seen.files_skipped} not read" if seen.files_skipped else ""
    return f"<p>{seen.files_read} files{skipped}: {escape(sources)}.</p>{_list(map(escape, seen.notes))}"


def _list(items: Iterable[str]) -> str:
    known = list(items)
    if not known:
        return ""
    more = [f'<span class="more">and {len(known) - LIST_MAX} more</span>'] if len(known) > LIST_MAX else []
    return f"<ul>{''.join(f'<li>{item}</li>' for item in [*known[:LIST_MAX], *more])}</ul>"
