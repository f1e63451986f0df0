"""The result of one comparison, as in `results/<name>.json`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from benchmarks.figures import Figure
from benchmarks.summary import summarised

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from benchmarks.summary import Row

__all__ = ["Result", "read_all"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The result of one comparison. `pairs` has, for each round, side → figure → number.

    `load` has the load averages before and after, and whether the machine was as calm as `--calm` asks.
    """

    name: str
    title: str
    sides: tuple[str, ...]
    rounds: int
    scale: float
    amounts: Mapping[str, int]
    day: str
    machine: Mapping[str, Any]
    versions: Mapping[str, str]
    load: Mapping[str, Any]
    pairs: tuple[Mapping[str, Mapping[str, Figure]], ...]

    @property
    def rows(self) -> list[Row]:
        return summarised(self.pairs)

    def to_json(self) -> dict[str, Any]:
        pairs = [
            {side: {name: figure.to_row() for name, figure in figures.items()} for side, figures in pair.items()}
            for pair in self.pairs
        ]
        kept = {name: getattr(self, name) for name in self.__slots__ if name != "pairs"}
        return {**kept, "sides": list(self.sides), "pairs": pairs}

    @classmethod
    def of(cls, kept: Mapping[str, Any]) -> Self:
        pairs = tuple(
            {side: {name: Figure.of(row) for name, row in figures.items()} for side, figures in pair.items()}
            for pair in kept["pairs"]
        )
        return cls(**{**kept, "sides": tuple(kept["sides"]), "pairs": pairs})

    def write(self, folder: Path) -> None:
        """Write the result to this folder, in place of an older one."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{self.name}.json").write_text(json.dumps(self.to_json(), indent=1) + "\n")


def read_all(folder: Path) -> dict[str, Result]:
    found = (Result.of(json.loads(path.read_text())) for path in sorted(folder.glob("*.json")))
    return {each.name: each for each in found}
