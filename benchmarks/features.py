"""What observability costs a worker: no-op tasks with Prometheus' counters, and with OpenTelemetry, against the same without.

Each feature is measured in rounds, off and on in turns, each run in a process and on a broker of its own. The spans are made by
OpenTelemetry's SDK and serialized as for a collector, in batches, and then thrown away. The cost of
`opentelemetry-instrumentation-celery` with the same SDK and the same sampler is measured in the same rounds: it makes spans of a
publication and a run; ours also of a receipt and a move. `sdk` is the SDK that an application has set up, without any spans.
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
#: Each feature: redelivery's settings, and its processes' variables of the environment. The empty name means no feature.
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
#: The processor times that are compared: each kind of process, and all of them together, from `delay()` to the outcome.
PARTS = (*PROCESSES, "path")
#: Features that are measured in the same rounds as a run without any; ours also against another one of these rounds, if any.
TOGETHER: Mapping[str, str | None] = {
    "metrics": None,
    "sdk_1_in_100": None,
    "traces_alone_1_in_100": None,
    "traces_1_in_100": "instrumentation_1_in_100",
    "traces_all": "instrumentation_all",
}

_Told = dict[str, dict[str, float]]


def features(name: str, *, tasks: int) -> dict[str, Figure]:
    """The medians of the rounds, with each feature against without: tasks a second, and processor of each process, and of all."""
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
    """The medians of the ratios of one feature's figures to those of the other."""

    def median(figure: str) -> float:
        return statistics.median(told[one][figure] / told[other][figure] for told in rounds)

    parts = {f"{name}_{part}": less(median(f"{part}_processor"), unit) for part in PARTS}
    return {f"{name}_rate": more(median("tasks_per_second"), unit), **parts}


def _run(name: str, feature: str, tasks: int) -> dict[str, float]:
    figures: dict[str, float] = {}
    for what in ("publish", "run"):  # an app knows one broker
        environment = {**os.environ, **FEATURES[feature][1]}
        words = [sys.executable, "-m", "benchmarks.features", name, feature, str(tasks), what]
        done = subprocess.run(words, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode:
            msg = f"{feature or 'off'}: {done.stderr.strip()[-3000:]}"
            raise RuntimeError(msg)
        figures |= json.loads(done.stdout.splitlines()[-1])
    return {**figures, "path_processor": sum(figures[f"{each}_processor"] for each in PROCESSES)}


def main() -> None:
    """One run: the side, the feature (or nothing), how many tasks, and whether they are published alone, or run."""
    name, feature, tasks, what = sys.argv[1:]
    settings = FEATURES[feature][0]
    if what == "publish":
        figures = producer(name, calls=int(tasks), settings=settings)
    else:
        figures = ordinary(name, tasks=int(tasks), pool="prefork", settings=settings)
    print(json.dumps({figure: each.value for figure, each in figures.items()}))


if __name__ == "__main__":
    main()
