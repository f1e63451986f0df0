"""What observability costs a worker: no-op tasks with Prometheus' counters or OpenTelemetry, compared with tasks without them.

Each feature is measured in rounds, off and on in turns, each run with its own process and broker. OpenTelemetry's SDK makes the
spans and serializes them in batches, as for a collector; they are then discarded. The same rounds measure
`opentelemetry-instrumentation-celery` with the same SDK and sampler: it makes spans of publications and runs, redelivery also of
receipts and moves. `sdk` is only the SDK, without any spans.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from benchmarks.figures import less, more
from benchmarks.producer import producer
from benchmarks.side import ROOT
from benchmarks.throughput import ordinary

if TYPE_CHECKING:
    from collections.abc import Mapping

    from benchmarks.figures import Figure

__all__ = ["features"]

ROUNDS = 3
SDK = {"BENCH_OTEL": "1", "OTEL_TRACES_SAMPLER": "parentbased_traceidratio"}
FEW, ALL = {**SDK, "OTEL_TRACES_SAMPLER_ARG": "0.01"}, {**SDK, "OTEL_TRACES_SAMPLER_ARG": "1"}
INSTRUMENTED = {"BENCH_INSTRUMENTED": "1"}
#: For each feature: redelivery's settings and the environment variables. The empty name means no feature.
FEATURES: Mapping[str, tuple[dict[str, Any], dict[str, str]]] = {
    "": ({}, {}),
    "metrics": ({"metrics_listen": "127.0.0.1:9549"}, {}),
    "sdk_1_in_100": ({}, FEW),
    "traces_1_in_100": ({"opentelemetry": True}, FEW),
    "traces_alone_1_in_100": ({"opentelemetry": True}, {**FEW, "BENCH_METERS": "none"}),
    "traces_all": ({"opentelemetry": True}, ALL),
    "instrumentation_1_in_100": ({}, {**FEW, **INSTRUMENTED}),
    "instrumentation_all": ({}, {**ALL, **INSTRUMENTED}),
}
PROCESSES = ("producer", "main", "children", "broker")
#: The compared processor times: of each kind of process, and of the whole path from `delay()` to the outcome.
PARTS = (*PROCESSES, "path")
#: Features that are measured in the same rounds as a run without features, and the peer in these rounds, if any.
TOGETHER: Mapping[str, str | None] = {
    "metrics": None,
    "sdk_1_in_100": None,
    "traces_alone_1_in_100": None,
    "traces_1_in_100": "instrumentation_1_in_100",
    "traces_all": "instrumentation_all",
}

_Told = dict[str, dict[str, float]]


def features(name: str, *, tasks: int) -> dict[str, Figure]:
    """The medians of each feature's ratios to a run without it: tasks a second, and processor times of `PARTS`."""
    found: dict[str, Figure] = {}
    for ours, theirs in TOGETHER.items():
        together, rounds = ["", ours, *([theirs] if theirs else [])], list[_Told]()
        for number in range(ROUNDS):
            at = number % len(together)
            rounds.append({each: _run(name, each, tasks) for each in (*together[at:], *together[:at])})
        for feature in together[1:]:
            found |= _compared(rounds, feature, "", feature, "of off")
        if theirs:
            found |= _compared(rounds, ours, theirs, f"{ours}_beside", "of the instrumentation's")
    return found


def _compared(rounds: list[_Told], one: str, other: str, name: str, unit: str) -> dict[str, Figure]:
    """The medians of the ratios of one feature's figures to another's."""

    def median(figure: str) -> float:
        return statistics.median(each[one][figure] / each[other][figure] for each in rounds)

    parts = {f"{name}_{part}": less(median(f"{part}_processor"), unit) for part in PARTS}
    return {f"{name}_rate": more(median("tasks_per_second"), unit), **parts}


def _run(name: str, feature: str, tasks: int) -> dict[str, float]:
    figures: dict[str, float] = {}
    for what in ("publish", "run"):  # in two processes: an app has only one broker
        environment = {**os.environ, **FEATURES[feature][1]}
        words = [sys.executable, "-m", "benchmarks.features", name, feature, str(tasks), what]
        done = subprocess.run(words, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode:
            msg = f"{feature or 'off'}: {done.stderr.strip()[-3000:]}"
            raise RuntimeError(msg)
        figures |= json.loads(done.stdout.splitlines()[-1])
    return {**figures, "path_processor": sum(figures[f"{each}_processor"] for each in PROCESSES)}


def main() -> None:
    """One run. Arguments: side, feature (or empty), number of tasks, and `publish` or `run`."""
    name, feature, tasks, what = sys.argv[1:]
    settings = FEATURES[feature][0]
    if what == "publish":
        figures = producer(name, calls=int(tasks), settings=settings)
    else:
        figures = ordinary(name, tasks=int(tasks), pool="prefork", settings=settings)
    print(json.dumps({figure: each.value for figure, each in figures.items()}))


if __name__ == "__main__":
    main()
