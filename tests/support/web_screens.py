"""The pictures of the operator's page in its document: real screens of a real broker, drawn by Chromium.

`docs/screens/web/` holds them. To draw them anew: `./dev python -m tests.support.web_screens`.
"""

from __future__ import annotations

import os
import random
import sys
import tempfile
from pathlib import Path

from tests.support.browser import Browser, program
from tests.support.desk import LETTERS, Desk, body_of, task_message
from tests.support.servers import Server, binaries
from tests.support.web_page import TOKEN, WebPage

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "screens" / "web"
CAUSES = (
    (
        "shop.payments.charge_card",
        "requests.exceptions.ReadTimeout",
        "HTTPSConnectionPool(host='pay.example'): read timed out",
        "3c1f9a2e",
    ),
    ("shop.mail.send_receipt", "smtplib.SMTPServerDisconnected", "Connection unexpectedly closed", "b07d44c1"),
    ("shop.parcels.print_label", "shop.parcels.NoSuchParcel", "there is no parcel {number}", "91e2a7d0"),
)
#: Each picture: its name, its address, and how wide and in which colours.
PICTURES = (
    ("overview", "/", 1280, "light"),
    ("overview", "/", 390, "dark"),
    ("causes", "/causes", 1280, "dark"),
    ("letter", "{letter}", 1280, "light"),
    ("causes", "/causes", 390, "light"),
    ("dry-run", f"/operations/preview?kind=redrive&queue={LETTERS}&fingerprint=91e2&canary=10&rate=50/s", 1280, "light"),
    ("queue", "/queue?name=orders", 1920, "dark"),
)


def arrange(desk: Desk) -> None:
    """Dead letters of three causes, messages that wait, and a worker with some of them."""
    drawn = random.Random(7)  # noqa: S311 - numbers of a picture
    ages_ms = sorted((int(drawn.expovariate(1 / 5e6)) for _ in range(180)), reverse=True)
    for number, ago_ms in enumerate(ages_ms):
        task, exception, said, fingerprint = drawn.choices(CAUSES, weights=(5, 2, 9))[0]
        message = task_message(task=task, body=body_of(number, f"customer-{number % 40}"))
        desk.die(message, exception=exception, said=said.format(number=1000 + number), fingerprint=fingerprint, ago_ms=ago_ms)
    for _ in range(40):
        desk.delay(task_message(task="shop.mail.remind"), delay_ms=drawn.randrange(60_000, 8_000_000))
    for _ in range(30):
        desk.publish(task_message(task="shop.payments.charge_card"))
    for _ in range(5):
        desk.hold()


def main() -> None:
    """Draw all of them."""
    found = program()
    if found is None:
        sys.exit("there is no Chromium on this machine")
    FOLDER.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="rd-") as name:
        folder = Path(name)
        server = Server(folder, binaries()["valkey"]).start()
        try:
            desk = Desk(server)
            arrange(desk)
            env = {**os.environ, "WEB_SHOP_BROKER": server.url}
            with (
                WebPage("tests.support.web_shop", folder, "--allow", "all", "--as", "ada", env=env) as page,
                Browser(found) as browser,
            ):
                letter = page.operator().get(f"/letters?queue={LETTERS}&fingerprint=91e2").links("/letter?")[0]
                browser.open(f"{page.address}/login?token={TOKEN}")
                for each, path, width, scheme in PICTURES:
                    browser.open(page.address + path.format(letter=letter), width=width, height=760, scheme=scheme)
                    browser.picture(FOLDER / f"{each}-{width}-{scheme}.png", is_whole=False)
        finally:
            server.stop(9)


if __name__ == "__main__":
    main()
