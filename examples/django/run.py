#!/usr/bin/env python3
"""Run the shop once, from the first order to the last redrive, and check the end of each order; see `README.md`."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import tempfile
from contextlib import closing
from pathlib import Path

from browser import Visitor
from private import HERE, broker, until, web, worker

#: The status of an order by its card, before the foreign bank opens and after.
BEFORE = {"good": "paid", "tired": "paid", "stolen": "placed", "foreign": "placed"}
AFTER = {**BEFORE, "foreign": "paid"}


class Shop:
    """The project's commands, in other processes, as users run them."""

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
        """Run `manage.py …`; returns its output."""
        return self._run("manage.py", *words)

    def redelivery(self, *words: str) -> str:
        """Run `redelivery -A shop …`; returns its output."""
        return self._run("-m", "redelivery", "-A", "shop", *words)

    def _run(self, *words: str) -> str:
        done = subprocess.run([sys.executable, *words], cwd=HERE, env=self.environment, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"{' '.join(words)} ended with {done.returncode}:\n{done.stderr}")
        return done.stdout

    def letters(self) -> int:
        """The number of dead letters."""
        return sum(queue["letters"] for queue in json.loads(self.redelivery("dlq", "list", "--json")))

    def audit(self) -> list[dict[str, str]]:
        """The audit, the oldest record first."""
        found: list[dict[str, str]] = json.loads(self.redelivery("audit", "--json"))
        return found[::-1]

    def paid(self) -> int:
        """The number of paid orders, from the database: faster than `manage.py`."""
        with closing(sqlite3.connect(self.database, timeout=20)) as connection:
            count: int = connection.execute("SELECT count(*) FROM orders_order WHERE status = 'paid'").fetchone()[0]
            return count

    def orders(self) -> list[list[object]]:
        """Card, status and attempts of each order."""
        found: list[list[object]] = json.loads(self.manage("list_orders"))
        return found


def check(shop: Shop, expected: dict[str, str]) -> None:
    """Print each order, and end with an error if its status is wrong."""
    for number, (card, status, attempts) in enumerate(shop.orders(), 1):
        print(f"  order {number}  {card:8}  {status:7}  {attempts} {'attempt' if attempts == 1 else 'attempts'}")
        if status != expected[str(card)]:
            sys.exit(f"order {number} is {status}, and should be {expected[str(card)]}")


def work_on_the_page(socket: str) -> None:
    """Three users try the page: each may do what Django's groups allow."""
    preview = "/operations/preview?kind=redrive&queue=DLQ.celery&reason=exhausted"
    bea, carl, olga = (Visitor(socket, name) for name in ("bea", "carl", "olga"))
    print("  bea is in no group:       ", *statuses(bea, "/causes", preview))
    print("  carl is of the support:   ", *statuses(carl, "/causes", preview))
    print("  olga is of the operators: ", *statuses(olga, "/causes", preview))
    said = olga.begin(preview, "the bank is open again")
    print("  olga's dry run:           ", said[said.index("2 dead") : said.index("Nothing was changed.")].strip())
    for each in (bea, carl, olga):
        each.close()


def statuses(visitor: Visitor, *paths: str) -> list[int]:
    """The status codes that a user gets."""
    return [visitor.open(path)[0] for path in paths]


def main(folder: Path) -> None:
    """Place, fail, look, repair, redrive."""
    with broker(folder) as url:
        shop = Shop(folder, url)
        print(shop.redelivery("adopt"))
        shop.manage("migrate", "--run-syncdb", "--verbosity", "0")
        with worker("shop", folder / "worker.log", shop.environment) as process:
            shop.manage("make_users")
            shop.manage("place_orders")
            until(lambda: shop.paid() == 5, "five paid orders", process)  # noqa: PLR2004 - three good and two tired
            until(lambda: shop.letters() == 3, "three dead letters", process)  # noqa: PLR2004 - one stolen and two foreign
            print("Three orders are not paid:")
            check(shop, BEFORE)
            print(shop.redelivery("dlq", "list"))
            shop.bank.touch()
            print("The foreign bank is open again. An operator sends its dead letters back on the page.")
            with web("shop.asgi:application", folder, shop.environment) as socket:
                work_on_the_page(socket)
                until(lambda: shop.paid() == 7, "seven paid orders", process)  # noqa: PLR2004 - all but the stolen card's
            until(lambda: len(shop.audit()) == 2, "the end of the operation", process)  # noqa: PLR2004 - begun and done
            for each in shop.audit():
                print(f"  audit: {each['actor']}, {each['act']} {each['acted']} {each['why']}".rstrip())
            print()
            check(shop, AFTER)
    print("Every order has ended as it should.")


if __name__ == "__main__":
    try:
        with tempfile.TemporaryDirectory(prefix="shop-") as name:
            main(Path(name))
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)
