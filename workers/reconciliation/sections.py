"""The sections of the report, each from the figures that it shows; what there is nothing of has no section.

Enters: a summary, its figures, the lines of the trend. Leaves: HTML. Names, ids and messages are strangers': all pass `shown`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from .flow import NAMES, drawn
from .markup import broken, cell, code, faint, row, section, table
from .plots import bars, columns, over_time
from .verdicts import DISCREPANCIES, RULES, VERDICTS
from .wording import NONE, count, duration, moment, share, shown

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .figures import Figures, Row
    from .summary import Summary
    from .trend import Line

__all__ = ["attempts", "causes", "deaths", "faults", "flow", "named", "queues", "runs", "verdicts", "work"]

#: Attempts that have a bar of their own; the rest share one.
_MAX_BARS: Final = 9
_MAX_RUNS: Final = 10


def faults(summary: Summary, figures: Figures) -> str:
    """Where it does not balance, and why: a row for each verdict, the most frequent first, and for each gap."""
    found = [name for name in DISCREPANCIES if summary.verdicts[name]]
    if not found and not summary.gaps:
        return ""
    rows = [_fault(name, summary, figures) for name in sorted(found, key=lambda name: -summary.verdicts[name])]
    rows += [_gap(each) for each in summary.gaps[:_MAX_RUNS]]
    note = "Every life that is wrong stands in <code>verdicts/</code>, with its events in order."
    heading = "Where it does not balance, and why"
    return section("faults", heading, note, table(["verdict", "#lives", "where", "why"], rows, kind="stack"))


def _fault(verdict: str, summary: Summary, figures: Figures) -> str:
    """One verdict: the queues and tasks that have the most of it, its rule, and the first life of them as an example."""
    many, rule = summary.verdicts[verdict], RULES[verdict]
    places = [each for each in figures.faults if each["verdict"] == verdict]
    where = [f"{broken(each['queue'])} <span class=faint>{broken(each['task'])}</span> {count(each['lives'])}" for each in places]
    left = many - sum(int(each["lives"]) for each in places)
    where += [f'<span class="faint">elsewhere</span> {count(left)}'] if places and left else []
    why = f"{rule[:1].upper()}{rule[1:]}."
    if places:
        first = min((each["first"] for each in places), key=lambda each: (each.get("first_ms") or 0, each["task_id"]))
        why += faint(f'For example <span class="id">{shown(first["task_id"])}</span>: {shown(first.get("cause") or "")}.')
        why += f"<br>To do: {code(first['advice'])}." if first.get("advice") else ""
    return row(
        cell(named(verdict), "strong bad"),
        cell(count(many), "n strong"),
        cell("<br>".join(where), "wide names"),
        cell(why, "wide full"),
        fault=verdict,
    )


def _gap(gap: Row) -> str:
    told = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in gap.items() if name != "count")
    return row(
        cell("gap", "strong bad"),
        cell(shown(gap.get("count", "?")), "n strong"),
        cell("outcome log", "names"),
        cell(f"Events left the log before they were exported.{faint(shown(told))}", "wide full"),
        fault="gap",
    )


def flow(figures: Figures) -> str:
    """The picture, once for a wide window and once for a narrow one."""
    if not figures.flow:
        return ""
    keys = (("ok", "succeeded"), ("dead", "dead letter"), ("open", "in flight"), ("gone", "dropped on purpose"), ("bad", "wrong"))
    legend = "".join(f'<span class="nowrap"><i class="key {kind}"></i>{name}</span> ' for kind, name in keys)
    wide, narrow = drawn(figures.flow, width=928), drawn(figures.flow, width=343, height=260)
    pictures = f'<div class="wide-only">{wide}</div><div class="narrow">{narrow}</div>'
    return section("flow", "From published to each outcome", legend, pictures)


def attempts(figures: Figures) -> str:
    """How many attempts successes and deaths took."""
    by_name: dict[str, tuple[int, int]] = {}
    for each in sorted((each for each in figures.attempts if each.get("number")), key=lambda each: int(each["number"])):
        name = str(each["number"]) if each["number"] <= _MAX_BARS else f"{_MAX_BARS + 1} or more"
        good, dead = by_name.get(name, (0, 0))
        by_name[name] = good + int(each["succeeded"]), dead + int(each["dead_lettered"])
    if not by_name:
        return ""
    most = max(good + dead for good, dead in by_name.values())
    rows = [
        row(cell(name), cell(count(good), "n"), cell(count(dead), "n"), bars((("ok", good), ("dead", dead)), most), attempts=name)
        for name, (good, dead) in by_name.items()
    ]
    note = '<i class="key ok"></i>Successes and <i class="key dead"></i>dead letters, by the attempts that they took.'
    return section("attempts", "Attempts", note, table(["attempts", "#successes", "#dead letters", "-"], rows, kind="tight"))


def deaths(summary: Summary, figures: Figures) -> str:
    """Dead letters over time, and how many there were of each reason."""
    if not figures.hours:
        return section("deaths", "Dead letters over time", "No message died.", "")
    times = over_time(figures.hours, until_ms=summary.as_of_ms)
    highest = max(each.count for each in times)
    first, last = times[0].from_ms, times[-1].to_ms
    reasons: dict[str, int] = {}
    for each in figures.hours:
        reasons[each["reason"]] = reasons.get(each["reason"], 0) + int(each["letters"])
    told = ", ".join(
        f"{count(many)} {shown(name or 'unknown')}" for name, many in sorted(reasons.items(), key=lambda each: -each[1])
    )
    axis = f'<div class="axis"><span>{moment(first, "%d %b %H:%M")}</span><span>{moment(last, "%d %b %H:%M")} UTC</span></div>'
    note = f"By reason: {told}. Each column is {duration(times[0].to_ms - first)}; the highest is {count(highest)}."
    return section("deaths", "Dead letters over time", note, columns(times, highest) + axis)


def causes(figures: Figures) -> str:
    """The most frequent causes of death, with an example of each."""
    if not figures.causes:
        return ""
    most = int(figures.causes[0]["letters"])
    rows = [
        row(
            cell(count(each["letters"]), "n strong"),
            bars((("dead", int(each["letters"])),), most),
            cell(broken(each["exception"] or "unknown") + faint(broken(each["reason"])), "wide names"),
            cell(broken(each["queue"]), "wide wide-only"),
            cell(count(each["redriven"]), "n wide-only"),
            cell(shown(each["fingerprint"] or NONE), "id wide-only"),
            cell(shown(each["example"]), "id full"),
            cause=each["fingerprint"],
        )
        for each in figures.causes
    ]
    left = sum(int(each["letters"]) for each in figures.hours) - sum(int(each["letters"]) for each in figures.causes)
    note = (
        f"The most frequent, by fingerprint and queue; {count(left)} more letters have others."
        if left
        else "By fingerprint and queue."
    )
    headings = ["#letters", "-", "exception and reason", "~queue", "#~redriven", "~fingerprint", "for example"]
    return section("causes", "What they died of", note, table(headings, rows, kind="stack"))


def queues(figures: Figures) -> str:
    """The queues whose tasks took the longest to succeed."""
    measured = [(each, each["time_to_success_ms"]) for each in figures.queues if each.get("time_to_success_ms")]
    if not measured:
        return ""
    longest = max(times[1] for _, times in measured)
    rows = [
        row(
            cell(broken(each["queue"]), "wide queue"),
            cell(duration(half), "n"),
            cell(duration(most), "n strong"),
            cell(duration(nearly), "n wide-only"),
            bars((("ok", most),), longest),
            queue=each["queue"],
        )
        for each, (half, most, nearly) in measured
    ]
    note = (
        "Time from publication to success, waiting and all attempts included: half, 95 % and 99 % of the tasks were done by then."
    )
    return section("queues", "Slowest queues", note, table(["queue", "#half", "#95 %", "#~99 %", "-"], rows))


def work(figures: Figures) -> str:
    """Delays asked for and waited, redrives, and what was done for nothing or twice."""
    total = {name: value or 0 for name, value in figures.total.items()}
    lives, redriven = total.get("delayed_lives", 0), total.get("redriven", 0)
    facts = []
    if lives:
        facts += [
            ("Redelivered lives that ended", count(lives)),
            ("Delay asked for, on average", duration(total["delay_asked_ms"] / lives)),
            ("From first redelivery to the end", duration(total["delay_waited_ms"] / lives)),
            ("Most beyond the delays of one life", duration(total.get("delay_late_max_ms"))),
        ]
    if redriven:
        succeeded = total["redriven_succeeded"]
        facts.append(("Redriven, and succeeded then", f"{count(succeeded)} of {count(redriven)} ({share(succeeded, redriven)})"))
    facts += [
        ("Attempts without success", f"{count(total.get('attempts_wasted', 0))} of {count(total.get('attempts_made', 0))}"),
        ("Tasks that may have run twice", count(total.get("possible_repeats", 0))),
    ]
    body = "".join(f"<dt>{name}</dt><dd>{value}</dd>" for name, value in facts)
    note = "The time to the end holds the run times of the later attempts: no event says when an attempt began."
    return section("work", "Delays, redrives, repeated work", note, f'<dl class="facts">{body}</dl>')


def verdicts(summary: Summary) -> str:
    """All nine verdicts with their rules, and how many lives have each."""
    rows = []
    for name in VERDICTS:
        many = summary.verdicts[name]
        kind = f"{'strong' if many else 'faint'}{' bad' if many and name in DISCREPANCIES else ''}"
        about = f'{named(name)}<br><span class="note">{RULES[name]}</span>'
        rows.append(row(cell(about, kind), cell(count(many), f"n {kind}"), verdict=name))
    return section("verdicts", "All verdicts", "The first rule that holds, from top to bottom.", table(["verdict", "#lives"], rows))


def runs(trend: Sequence[Line]) -> str:
    """This run below those before it."""
    rows = [
        row(
            cell(moment(line["as_of_ms"], "%d %b %H:%M"), "nowrap"),
            cell(count(line.get("lives")), "n"),
            cell(count(line.get("discrepancies")), "n" if line.get("balanced") else "n bad"),
            cell(count(line.get("dead_lettered")), "n"),
            cell(duration(line.get("time_to_success_p95_ms")), "n"),
        )
        for line in reversed(trend[-_MAX_RUNS:])
    ]
    note = "The latest first." if len(trend) > 1 else "The first run: those to come are compared with it."
    headings = ["as of (UTC)", "#lives", "#wrong", "#dead letters", "#95 % within"]
    return section("runs", "This run and those before", note, f'<div class="scroll">{table(headings, rows)}</div>')


def named(verdict: str) -> str:
    """A verdict as people write it."""
    return shown(NAMES.get(verdict, verdict.replace("_", " ")))
