"""The pictures of the operator's page and of the report in the documents, drawn by Chromium in each size and colour.

They are in `docs/screens/web/` and `docs/screens/report/`, for `docs/web-screens.md` and `docs/report.md`. To draw them again:
`./dev python -m tests.support.page.web_screens`, with names of screens if you need only some.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PIL import Image

from redelivery.middleware.messages.envelope import Attempt, Envelope
from redelivery.middleware.messages.events import ENTRY, Event, Outcome
from redelivery.middleware.messages.steps import opened
from redelivery.workers.operations.letters.filter import Filter
from redelivery.workers.operations.runs import operation
from redelivery.workers.operations.runs.operation import Kind, Options, State
from tests.support.books.spark_session import Histories
from tests.support.desk import LETTERS, QUEUE, Desk, body_of, task_message
from tests.support.page.browser import Browser, program
from tests.support.page.report_books import a_week
from tests.support.page.web_page import TOKEN, WebPage
from tests.support.running import until
from tests.support.servers import Server, binaries

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

ROOT = Path(__file__).resolve().parents[3]
FOLDER = ROOT / "docs" / "screens" / "web"
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
WORKERS = ("w1@shop-1", "w2@shop-2")
#: The screens and their titles in the document.
SCREENS = {
    "overview": "Overview",
    "causes": "Causes",
    "letters": "Dead letters",
    "letters-of-several": "Dead letters of a cause in two queues",
    "letter": "A dead letter",
    "dry-run": "A dry run",
    "operations": "Operations and the audit",
    "operation": "An operation",
    "delayed": "Delayed",
    "cancel": "A dry run of a bulk cancel",
    "task": "Task",
    "queues": "Queues",
    "queue": "A queue",
    "workers": "Workers",
    "books": "Books",
    "login": "The login",
    "gone": "The broker does not answer",
}
#: Widths and heights of the window, and colour schemes.
SIZES, SCHEMES = {390: 844, 1280: 800, 1920: 1080}, ("light", "dark")
#: The number of colours in a picture.
COLOURS = 256


def arrange(desk: Desk) -> None:
    """Add events of an hour, dead letters of three causes, waiting messages, and two workers that hold some."""
    drawn = random.Random(7)  # noqa: S311 - numbers of a picture
    _an_hour(desk, drawn)
    for number, name in enumerate(WORKERS):
        desk.transport.leases.register(
            f"w{number}", {"worker": name, "pid": 4211 + number, "since": desk.transport.now_ms() - 7_300_000}
        )
    ages_ms = sorted((int(drawn.expovariate(1 / 5e6)) for _ in range(180)), reverse=True)
    for number, ago_ms in enumerate(ages_ms):
        task, exception, said, fingerprint = drawn.choices(CAUSES, weights=(5, 2, 9))[0]
        message = task_message(task=task, body=body_of(number, f"customer-{number % 40}"))
        message["headers"]["redelivery"] = _tried(
            desk.transport.now_ms() - ago_ms, f"{exception}: {said.format(number=1000 + number)}"
        )
        desk.die(message, exception=exception, said=said.format(number=1000 + number), fingerprint=fingerprint, ago_ms=ago_ms)
    for _ in range(40):
        desk.delay(task_message(task="shop.mail.remind"), delay_ms=drawn.randrange(60_000, 8_000_000))
    for _ in range(30):
        desk.publish(task_message(task="shop.payments.charge_card"))
    for number in range(7):
        desk.hold(f"w{number % 2}")
    desk.transport.leases.unregister("w")
    desk.client.set(desk.keys.dispatcher, "w0")


@contextlib.contextmanager
def working(desk: Desk) -> Iterator[None]:
    """Let the two workers renew their leases and answer remote control, as real workers do."""
    ended = threading.Event()

    def renew() -> None:
        while not ended.wait(1):
            for number in range(2):
                desk.transport.leases.renew(f"w{number}")

    threads = [threading.Thread(target=renew)]
    threads += [threading.Thread(target=_answer, args=(desk, f"w{number}", WORKERS[number], ended)) for number in range(2)]
    for each in threads:
        each.start()
    try:
        yield
    finally:
        ended.set()
        for each in threads:
            each.join()


def _answer(desk: Desk, token: str, worker: str, ended: threading.Event) -> None:
    """Answer remote control as this worker, which runs two of its messages."""
    held = sorted(desk.transport.leases.held_by(token), key=lambda each: each.tag)[:2]
    headers = [opened(each.raw)["headers"] for each in held]
    running = [
        {"id": each["id"], "task": each["task"], "queue": QUEUE, "ms": ms} for each, ms in zip(headers, (4_210, 730), strict=True)
    ]
    said = {"owner": token, "runs": len(running), "running": running}
    with desk.app.connection_for_read() as connection:
        node = desk.app.control.mailbox.Node(worker, channel=connection.channel(), handlers={"redelivery": lambda _: said})
        with node.listen():
            while not ended.is_set():
                with contextlib.suppress(TimeoutError):
                    connection.drain_events(timeout=0.5)


def _tried(died_ms: int, exception: str) -> dict[str, Any]:
    """The header of a message after two failed attempts."""
    waits = ((9_400, 2_100), (4_300, 4_200))
    attempts = [Attempt(at_ms=died_ms - ago, worker="w1@shop-1", exception=exception, delay_ms=delay) for ago, delay in waits]
    tried = Envelope(attempt=2, delivery=2, first_seen_ms=died_ms - 9_500, attempts=tuple(each.to_header() for each in attempts))
    return tried.to_header()


def _an_hour(desk: Desk, drawn: random.Random) -> None:
    """Add events of the last hour: successes, a few retries, and deaths, whose number rises at the end."""
    now_ms = desk.transport.now_ms()
    kinds = ((Outcome.SUCCEEDED, 40), (Outcome.REDELIVERY_SCHEDULED, 6), (Outcome.DEAD_LETTERED, 1))
    for minute in range(60):
        moments = sorted(drawn.randrange(60_000) for _ in range(sum(count for _, count in kinds) + (minute > 45) * 4))
        for at, moment in enumerate(moments):
            outcome = drawn.choices([kind for kind, _ in kinds], weights=[count + (minute > 45) * 5 for _, count in kinds])[0]
            event = Event(
                task_id=f"task-{minute}-{at}", outcome=outcome, task="shop.payments.charge_card", queue=QUEUE, worker="w1@shop-1"
            )
            entry: Any = dict(zip(ENTRY, event.to_entry(), strict=True))
            stamp = f"{now_ms - 3_600_000 + minute * 60_000 + moment}-{at}"
            desk.client.xadd(desk.keys.outcomes, entry, id=stamp)


def operate(desk: Desk) -> Mapping[str, str]:
    """Begin a redrive that ends, and one that is paused. Returns the id of the first, and the id of a redriven task."""
    began = operation.begin(
        desk.install,
        Kind.REDRIVE,
        LETTERS,
        Filter(fingerprints=("b07d44c1",)),
        Options(rate=50.0),
        actor="ada",
        why="the mail server is back",
    )
    until(lambda: operation.found(desk.install, began.id).state is State.DONE, 60, "the redrive")
    desk.client.set(desk.keys.operator, "another")  # so that no worker runs the next operation
    paused = operation.begin(
        desk.install,
        Kind.REDRIVE,
        LETTERS,
        Filter(tasks=("shop.parcels.*",)),
        Options(canary=10, rate=5.0),
        actor="ben",
        why="labels are printed again",
    )
    operation.turn(desk.install, paused.id, "pause", "ben", "the printer is out of paper")
    gone = next(event.task_id for event in desk.events if event.outcome == Outcome.REDRIVEN)
    return {"operation": began.id, "task": gone}


def keep_books(folder: Path) -> Path:
    """Keep books with a lost life and a life that ended twice. Returns their folder."""
    histories, began_ms = Histories(), int(time.time() * 1000) - 7_200_000
    for number in range(40):
        ended = ("succeeded", {"delivery": 1, "attempt": 1, "worker": "w1@shop-1"})
        histories.add(f"3f2a9c{number:02}", "published", ended, start_ms=began_ms)
    histories.add("8c1e77d04b", "published", ("received", {"delivery": 1, "worker": "w1@shop-1"}), start_ms=began_ms)
    ends = [("succeeded", {"delivery": each, "attempt": each, "worker": f"w{each}@shop-{each}"}) for each in (1, 2)]
    histories.add("b60f15aa92", "published", *ends, start_ms=began_ms)
    histories.hold("71d0c3aa", "queue", seen_ms=began_ms + 7_000_000)
    histories.write(folder)
    places = [f"--{name}={folder / name}" for name in ("outcomes", "inventory")]
    command = [sys.executable, "-m", "redelivery", "reconcile", *places, f"--output={folder / 'books'}", "--quiet"]
    subprocess.run(command, check=False, stdout=subprocess.DEVNULL)
    return folder / "books"


def paths_of(page: WebPage, known: Mapping[str, str]) -> dict[str, str]:
    """The addresses of screens that need the broker."""
    operator = page.operator()
    letters = f"/letters?queue={LETTERS}&fingerprint=91e2"
    return {
        "overview": "/",
        "causes": "/causes",
        "letters": letters,
        "letter": operator.get(letters).links("/letter?")[0],
        "dry-run": f"/operations/preview?kind=redrive&queue={LETTERS}&fingerprint=91e2&canary=10&rate=50/s",
        "operations": "/operations",
        "operation": f"/operation?id={known['operation']}",
        "delayed": "/delayed",
        "cancel": "/operations/preview?kind=cancel&task=shop.mail.*",
        "task": f"/task?id={known['task']}",
        "queues": "/queues",
        "queue": f"/queue?name={QUEUE}",
        "workers": "/workers",
        "books": "/books",
    }


def in_two_queues(desk: Desk) -> str:
    """Add three dead letters of one cause in another queue. Returns the address of both queues."""
    task, exception, said, fingerprint = CAUSES[2]
    for number in range(3):
        words = {"exception": exception, "said": said.format(number=1200 + number), "fingerprint": fingerprint}
        desk.die(task_message(task=task), into="DLQ.parcels", ago_ms=(4 - number) * 900_000, **words)
    return f"/letters?queue={LETTERS}&queue=DLQ.parcels&fingerprint={fingerprint}"


def drawn(browser: Browser, name: str, address: str | Path, folder: Path = FOLDER) -> None:
    """Draw one screen in each size and colour scheme."""
    folder.mkdir(parents=True, exist_ok=True)
    for width, height in SIZES.items():
        for scheme in SCHEMES:
            browser.open(address, width=width, height=height, scheme=scheme)
            browser.await_("!document.scripts.length || !document.getElementById('live').hidden")
            path = folder / f"{name}-{width}-{scheme}.png"
            browser.picture(path, is_whole=False)
            with Image.open(path) as picture:
                whole = picture.convert("RGB")
            # MAXCOVERAGE keeps colours of only a few pixels.
            whole.quantize(COLOURS, Image.Quantize.MAXCOVERAGE, kmeans=1, dither=Image.Dither.NONE).save(path, optimize=True)


def document() -> str:
    parts = [
        "# The screens of the page\n",
        "Every screen of [the operator's page](web.md), at 1280 pixels in light colours, with links to other sizes and colours.",
        "The numbers are made up; the screens are real.\n",
    ]
    for name, title in SCREENS.items():
        others = [
            f"[{width} px, {scheme}](screens/web/{name}-{width}-{scheme}.png)"
            for width in SIZES
            for scheme in SCHEMES
            if (width, scheme) != (1280, "light")
        ]
        parts += [f"## {title}\n", f"![{title}](screens/web/{name}-1280-light.png)\n", " · ".join(others) + "\n"]
    return "\n".join(parts)


def main(words: list[str]) -> None:
    found = program()
    if found is None:
        sys.exit("there is no Chromium on this machine")
    chosen = words or [*SCREENS, "report"]
    with tempfile.TemporaryDirectory(prefix="rd-") as name:
        folder = Path(name)
        books = keep_books(folder) if {"books", "overview"} & {*chosen} else folder
        server = Server(folder, binaries()["valkey"]).start()
        try:
            desk = Desk(server)
            arrange(desk)
            env = {**os.environ, "WEB_SHOP_BROKER": server.url}
            given = ("--allow", "all", "--as", "ada", "--books", str(books))
            with WebPage("tests.support.page.web_shop", folder, *given, env=env) as page, Browser(found) as browser:
                with working(desk):
                    known = operate(desk)
                    if "login" in chosen:
                        drawn(browser, "login", page.address)
                    browser.open(f"{page.address}/login?token={TOKEN}")
                    for each, path in paths_of(page, known).items():
                        if each in chosen:
                            drawn(browser, each, page.address + path)
                    if "letters-of-several" in chosen:
                        drawn(browser, "letters-of-several", page.address + in_two_queues(desk))
                server.kill()
                if "gone" in chosen:
                    drawn(browser, "gone", f"{page.address}/causes")
                if "report" in chosen:
                    drawn(browser, "report", a_week(folder / "week") / "report.html", FOLDER.parent / "report")
        finally:
            server.stop(9)
    (ROOT / "docs" / "web-screens.md").write_text(re.sub(r"\n{3,}", "\n\n", document()).rstrip() + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
