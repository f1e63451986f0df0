#!/usr/bin/env python3
"""Run the shop once, from the first order to the last redrive, and check what became of each; see `README.md` beside this file."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import tempfile
from contextlib import closing
from pathlib import Path

from private import HERE, broker, until, worker

#: What each card must end as, before the foreign bank opens and after.
BEFORE = {"good": "paid", "tired": "paid", "stolen": "placed", "foreign": "placed"}
AFTER = {**BEFORE, "foreign": "paid"}


class Shop:
    """The project's commands, in processes of their own, as its people run them."""

    def __init__(self, folder: Path, url: str) -> None:
        self.database = folder / "shop.sqlite3"
        self.bank = folder / "bank-is-open"
        self.environment = {
            **os.environ,
            "SHOP_BROKER": url,
            "SHOP_DATABASE": str(self.database),
            "SHOP_BANK_OPEN": str(self.bank),
            "PYTHONPATH": str(HERE),
        }

    def manage(self, *words: str) -> str:
        """`manage.py …`; what it prints."""
        return self._run("manage.py", *words)

    def redelivery(self, *words: str) -> str:
        """`redelivery -A shop …`; what it prints."""
        return self._run("-m", "redelivery", "-A", "shop", *words)

    def _run(self, *words: str) -> str:
        done = subprocess.run([sys.executable, *words], cwd=HERE, env=self.environment, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"{' '.join(words)} ended with {done.returncode}:\n{done.stderr}")
        return done.stdout

    def letters(self) -> int:
        """How many dead letters there are."""
        queues = json.loads(self.redelivery("dlq", "list", "--json"))
        return sum(queue["letters"] for queue in (queues["queues"] if isinstance(queues, dict) else queues))

    def paid(self) -> int:
        """How many orders are paid; asked of the database itself, which is quicker than Django's start."""
        with closing(sqlite3.connect(self.database, timeout=20)) as connection:
            count: int = connection.execute("SELECT count(*) FROM orders_order WHERE status = 'paid'").fetchone()[0]
            return count

    def orders(self) -> list[list[object]]:
        """Card, status and attempts of each order."""
        found: list[list[object]] = json.loads(self.manage("list_orders"))
        return found


def check(shop: Shop, expected: dict[str, str]) -> None:
    """Every order is what its card makes of it, or the example has failed."""
    for number, (card, status, attempts) in enumerate(shop.orders(), 1):
        print(f"  order {number}  {card:8}  {status:7}  {attempts} attempts")
        if status != expected[str(card)]:
            sys.exit(f"order {number} is {status}, and should be {expected[str(card)]}")


def main(folder: Path) -> None:
    """Place, fail, look, repair, redrive."""
    with broker(folder) as url:
        shop = Shop(folder, url)
        print(shop.redelivery("adopt"))
        shop.manage("migrate", "--run-syncdb", "--verbosity", "0")
        with worker("shop", folder / "worker.log", shop.environment) as process:
            shop.manage("place_orders")
            until(lambda: shop.paid() == 5, "five paid orders", process)  # noqa: PLR2004 - three good and two tired
            until(lambda: shop.letters() == 3, "three dead letters", process)  # noqa: PLR2004 - one stolen and two foreign
            print("Three orders are not paid:")
            check(shop, BEFORE)
            print(shop.redelivery("dlq", "list"))
            shop.bank.touch()
            print("The foreign bank is open again: its letters go back, the stolen card's stays.")
            print(shop.redelivery("dlq", "redrive", "DLQ.celery", "--reason", "exhausted", "--yes"))
            until(lambda: shop.paid() == 7, "seven paid orders", process)  # noqa: PLR2004 - all but the stolen card's
            check(shop, AFTER)
    print("Every order is where it belongs.")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="shop-") as name:
        main(Path(name))
