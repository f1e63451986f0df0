"""Hashes that tell tasks apart, in SQL, where their ids themselves would be too long: see `plain.py` for what that leaves open."""

from __future__ import annotations

from typing import Final

from .schema import or_default

#: The bits of `WHOSE` that tell tasks apart whose ids have one hash; the others are the name's.
OF_THE_ID: Final = (1 << 16) - 1

#: A hash of the task's id; a hash of queue and task, without the bits that `WHOSE` takes; and that one with bits of a hash of the
#: id that is made in another way, for else ids with one `ID` may agree here too.
ID: Final = "xxhash64(task_id)"
NAME: Final = f"(xxhash64({or_default('queue')}, {or_default('task')}) & {~OF_THE_ID}L)"
WHOSE: Final = f"({NAME} | (CAST(hash(task_id) AS BIGINT) & {OF_THE_ID}L))"
