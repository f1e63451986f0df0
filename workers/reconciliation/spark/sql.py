"""Expressions for tables, as texts in SQL.

A text needs one to three calls into Java; the same expression made of `Column`s needs a call for each operator. A run of the books
makes some thousands of expressions, which is a good part of its time if there are few lives. So long expressions are texts; short
ones, or those that depend on what was found, may be either.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pyspark.sql import DataFrame


def named(texts: Mapping[str, str]) -> list[str]:
    """Each text with its name."""
    return [f"{text} AS `{name}`" for name, text in texts.items()]


def grouped(table: DataFrame, by: Iterable[str], aggregates: Mapping[str, str]) -> DataFrame:
    """A row for each group of rows that agree in these columns: those columns, and the aggregates by their names."""
    # One text for all, a struct, needs fewer calls; but Spark then makes that struct for each group.
    return table.groupBy(*by).agg(*(F.expr(text) for text in named(aggregates)))


def row_of(table: DataFrame, aggregates: Mapping[str, str]) -> dict[str, Any]:
    """The aggregates of all rows, by name, in one action."""
    return table.selectExpr(*named(aggregates)).collect()[0].asDict()


def one_of(column: str, values: Iterable[str | int]) -> str:
    """Whether a column holds one of these."""
    return f"{column} IN ({', '.join(str(each) if isinstance(each, int) else quoted(each) for each in values)})"


def quoted(word: str) -> str:
    """A text as SQL writes it."""
    escaped = word.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
