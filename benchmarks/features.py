"""What a worker pays for telling: no-op tasks with Prometheus' counters, and with OpenTelemetry, against the same without.

Each feature is measured in pairs, off and on turn about, each run in a process and on a broker of its own. The spans are made by
OpenTelemetry's SDK and serialized as for a collector, in batches, and then thrown away.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from benchmarks.figures import less, more
from benchmarks.sides import ROOT
from benchmarks.throughput import ordinary

if TYPE_CHECKING:
    from collections.abc import Mapping

    from benchmarks.figures import Figure

__all__ = ["features"]

PAIRS = 3
SAMPLED = {"BENCH_OTEL": "1", "OTEL_TRACES_SAMPLER": "parentbased_traceidratio"}
#: Each feature: redelivery's settings, and what its processes find in their environment.
FEATURES: Mapping[str, tuple[dict[str, Any], dict[str, str]]] = {
    "metrics": ({"metrics_listen": "127.0.0.1:9549"}, {}),
    "traces_1_in_100": ({"opentelemetry": True}, {**SAMPLED, "OTEL_TRACES_SAMPLER_ARG": "0.01"}),
    "traces_all": ({"opentelemetry": True}, {**SAMPLED, "OTEL_TRACES_SAMPLER_ARG": "1"}),
}


def features(name: str, *, tasks: int) -> dict[str, Figure]:
    """The median of each feature's pairs: tasks a second on, of those off; and processor of the main process on, of that off."""
    found = {}
    for feature in FEATURES:
        pairs = []
        for number in range(PAIRS):
            order = ("", feature) if number % 2 == 0 else (feature, "")
            told = {each: _run(name, each, tasks) for each in order}
            pairs.append((told[""], told[feature]))
        found[f"{feature}_rate"] = more(_median(pairs, "tasks_per_second"), "of off")
        for part in ("main", "children"):
            found[f"{feature}_{part}"] = less(_median(pairs, f"{part}_processor"), "of off")
    return found


def _median(pairs: list[tuple[dict[str, float], dict[str, float]]], figure: str) -> float:
    return statistics.median(on[figure] / off[figure] for off, on in pairs)


def _run(name: str, feature: str, tasks: int) -> dict[str, float]:
    environment = {**os.environ, **(FEATURES[feature][1] if feature else {})}
    words = [sys.executable, "-m", "benchmarks.features", name, feature, str(tasks)]
    done = subprocess.run(words, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        msg = f"{feature or 'off'}: {done.stderr.strip()[-3000:]}"
        raise RuntimeError(msg)
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def main() -> None:
    """One run: the side, the feature (or nothing), and how many tasks."""
    name, feature, tasks = sys.argv[1:]
    settings = FEATURES[feature][0] if feature else {}
    figures = ordinary(name, tasks=int(tasks), pool="prefork", settings=settings)
    print(json.dumps({figure: each.value for figure, each in figures.items()}))


if __name__ == "__main__":
    main()
