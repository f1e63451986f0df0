"""One measurement of one side, in its own process, so that it does not affect the next one.

`python -m benchmarks.measure COMPARISON SIDE --scale X --into FILE` writes the figures as JSON.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from pathlib import Path

from benchmarks.comparisons import COMPARISONS

__all__ = ["main"]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.measure")
    parser.add_argument("comparison", choices=list(COMPARISONS))
    parser.add_argument("side")
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--into", type=Path, required=True)
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that worker and broker are stopped
    figures = COMPARISONS[given.comparison].run(given.side, given.scale)
    given.into.write_text(json.dumps({name: figure.to_row() for name, figure in figures.items()}))


if __name__ == "__main__":
    main()
