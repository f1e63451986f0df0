"""Expressions for tables, as SQL texts.

A text needs one to three calls into Java; an expression of `Column`s needs a call for each operator. A run makes some thousands of
expressions, which takes a large part of its time if there are few lives. So long expressions are texts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pyspark.sql import DataFrame


def named(texts: Mapping[str, str]) -> list[str]:
    """The expressions with their names, for `selectExpr`."""
    return [f"{text} AS `{name}`" for name, text in texts.items()]


def grouped(table: DataFrame, by: Iterable[str], aggregates: Mapping[str, str]) -> DataFrame:
    """Group the table by these columns. The result has the columns, and the aggregates by name."""
    # One struct of all aggregates would need fewer calls, but Spark would then make the struct for each group.
    return table.groupBy(*by).agg(*(F.expr(text) for text in named(aggregates)))


def row_of(table: DataFrame, aggregates: Mapping[str, str]) -> dict[str, Any]:
    """Aggregate all rows in one action. Returns the aggregates by name."""
    return table.selectExpr(*named(aggregates)).collect()[0].asDict()


def one_of(column: str, values: Iterable[str | int]) -> str:
    """Whether a column has one of these values, in SQL."""
    return f"{column} IN ({', '.join(str(each) if isinstance(each, int) else quoted(each) for each in values)})"


def quoted(word: str) -> str:
    """The text as an SQL literal."""
    escaped = word.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
