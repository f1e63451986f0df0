"""Columns written as SQL: of such a text Java is told in a call or three, and of the same made of `Column`s in one for each sign.

A run of the books makes some thousands of expressions, which over few lives is a good part of its time. So what is long is text;
what is short, or depends on what was found, may be either.

Enters: texts in Spark's SQL, by name. Leaves: columns for an aggregation, or texts for `selectExpr`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 - Spark's own custom

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pyspark.sql import Column

__all__ = ["columns", "named", "one_of", "quoted"]


def named(texts: Mapping[str, str]) -> list[str]:
    """Each text with its name."""
    return [f"{text} AS `{name}`" for name, text in texts.items()]


def columns(texts: Mapping[str, str]) -> list[Column]:
    """The same as columns."""
    return [F.expr(text) for text in named(texts)]


def one_of(column: str, values: Iterable[str | int]) -> str:
    """Whether a column holds one of these."""
    return f"{column} IN ({', '.join(str(each) if isinstance(each, int) else quoted(each) for each in values)})"


def quoted(word: str) -> str:
    """A text as SQL writes it."""
    escaped = word.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
