"""Checks that compare the workers: plain workers on the same queues, several versions, and clocks that differ."""

from __future__ import annotations

from typing import TYPE_CHECKING

from redelivery.display import safe, word

from ...ports import NotKnown
from .finding import Finding, named
from .fleet import VISIBILITY_TIMEOUT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .finding import Name
    from .seen import Seen

NTP = "timedatectl set-ntp true"
#: The version of a worker that is too old to report it.
UNKNOWN_VERSION = "unknown version"


def check_mixture(seen: Seen) -> Iterator[Finding]:
    """Find queues that both plain workers and workers with redelivery consume."""
    if seen.fleet is None:
        return
    ours = {queue for worker in seen.fleet.ours for queue in worker.queues}
    for queue in sorted(ours & {queue for worker in seen.fleet.plain for queue in worker.queues}):
        plain = [safe(worker.name) for worker in seen.fleet.plain if queue in worker.queues]
        what = f"{safe(queue)} is consumed by workers with redelivery and by plain ones: {named(plain)}"
        why = "messages that a plain worker takes have no policy, no dead letter and no outcome: add Redelivery(app) to its app"
        fix = f"celery -A {seen.app} control cancel_consumer {word(queue)} -d {word(plain[0])}"
        yield Finding("queue.mixed", "warning", what, why, fix)


def check_visibility(seen: Seen) -> Iterator[Finding | NotKnown]:
    """Find a short `visibility_timeout` where it has an effect: for plain workers, and with `fast_receive = false`."""
    if seen.kind != "redis" or seen.fleet is None:
        return
    consumed = {*seen.runtime.app.amqp.queues, *(queue for worker in seen.fleet.ours for queue in worker.queues)}
    for worker in (each for each in seen.fleet.plain if consumed & {*each.queues}):
        if worker.visibility_timeout is None:
            yield NotKnown(
                f"the visibility_timeout of {safe(worker.name)}", "it does not report its settings", "look at its settings"
            )
        else:
            yield from _short(seen, f"the plain worker {safe(worker.name)}", worker.visibility_timeout)
    if not seen.runtime.settings.fast_receive:
        options = seen.runtime.app.conf.broker_transport_options or {}
        yield from _short(seen, "fast_receive = false", float(options.get("visibility_timeout") or VISIBILITY_TIMEOUT))


def _short(seen: Seen, who: str, timeout: float) -> Iterator[Finding]:
    """Find a timeout that is shorter than a task's time limit, or than kombu's default."""
    limits = [float(task.time_limit) for task in seen.runtime.app.tasks.values() if task.time_limit]
    limits += [float(seen.runtime.app.conf.task_time_limit)] if seen.runtime.app.conf.task_time_limit else []
    needed = max([*limits, VISIBILITY_TIMEOUT])
    if timeout < needed:
        longest = (
            f"the longest time limit of a task is {max(limits):g} s"
            if limits and max(limits) > timeout
            else "kombu's own is 3600 s"
        )
        what = f"{who} has visibility_timeout = {timeout:g} s, and {longest}"
        why = "a task, or an ETA, that takes longer is delivered a second time while the first still runs"
        fix = f'broker_transport_options = {{"visibility_timeout": {round(2 * needed)}}}'
        yield Finding("visibility_timeout.short", "danger", what, why, fix)


def check_versions(seen: Seen) -> Iterator[Finding]:
    """Find several versions of redelivery: an upgrade is running, or was not completed."""
    by_version: dict[str, list[str]] = {}
    for worker in [] if seen.fleet is None else seen.fleet.ours:
        by_version.setdefault(worker.version or UNKNOWN_VERSION, []).append(safe(worker.name))
    known = sorted(by_version.keys() - {UNKNOWN_VERSION})
    if len(by_version) > 1:
        what = "; ".join(f"{version}: {named(names)}" for version, names in sorted(by_version.items()))
        why = "each reads what the others write, but a fix works only in workers of the newer version"
        most = max(known, key=lambda each: len(by_version[each]))
        fix = f"pip install redelivery=={most}, and restart the others"
        yield Finding("versions.mixed", "warning", f"workers of several versions: {what}", why, fix)


def check_clocks(seen: Seen) -> Iterator[Finding]:
    """Find wrong clocks of workers and producers."""
    than = "the broker's" if seen.kind == "redis" else "this machine's"
    for worker in [] if seen.fleet is None else seen.fleet.ours:
        if worker.ahead_ms:
            yield _clock(f"worker {safe(worker.name)}", worker.ahead_ms, than, "clock.worker", _why(seen))
    for host, ahead_ms in sorted((seen.wrong_clocks or {}).items()):
        why = "the times that it computes (eta, expires) are wrong, too: tasks run early or late, or expire before they run"
        yield _clock(f"producers on {safe(host)}", ahead_ms, than, "clock.producer", why)


def _clock(who: str, ahead_ms: int, than: str, name: Name, why: str) -> Finding:
    word = "ahead of" if ahead_ms > 0 else "behind"
    return Finding(name, "danger", f"the clock of {who} is {abs(ahead_ms) / 1000:.1f} s {word} {than}", f"{why}; set it there", NTP)


def _why(seen: Seen) -> str:
    if seen.kind == "redis":
        return "the times that its tasks compute (eta, expires) are wrong, too; Celery's own times in its log are, too"
    return "delays, expires and the times of the books follow the workers' clocks on this broker"
