"""A headless Chromium, driven over a pipe by its DevTools protocol, without a library.

`open` shows a page in a window of a given size and colour scheme, and returns what the page logged and requested.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["Browser", "Page", "browser"]

_FLAGS = (
    "--headless=new",
    "--no-sandbox",  # root in a container cannot have a sandbox
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--no-first-run",
    "--no-default-browser-check",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-extensions",
    "--remote-debugging-pipe",
)


def program() -> str | None:
    return next((found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """The browser. Without Chromium the test is skipped, and fails in CI."""
    found = program()
    if found is None:
        message = "there is no Chromium on this machine: ./dev test installs it where it may"
        (pytest.fail if os.environ.get("CI") else pytest.skip)(message)
    with Browser(found) as started:
        yield started


@dataclass
class Page:
    """What a page did while it was opened: its console lines, and the addresses that it requested."""

    session: str
    logged: list[str] = field(default_factory=list)
    requested: list[str] = field(default_factory=list)


class Browser:
    """One process of Chromium."""

    def __init__(self, program: str) -> None:
        self._profile = tempfile.TemporaryDirectory(prefix="rd-chromium-", ignore_cleanup_errors=True)
        there, self._commands = os.pipe()
        self._answers, here = os.pipe()
        # Chromium reads commands from descriptor 3, and answers on descriptor 4. A shell sets them up.
        script = f'exec "$@" 3<&{there} 4>&{here}'
        command = ["bash", "-c", script, "chromium", program, *_FLAGS, f"--user-data-dir={self._profile.name}", "about:blank"]
        home = {"HOME": self._profile.name, "XDG_CONFIG_HOME": self._profile.name, "XDG_CACHE_HOME": self._profile.name}
        self._process = subprocess.Popen(
            command,
            pass_fds=(there, here),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=os.environ | home,
        )
        os.close(there)
        os.close(here)
        self._read = b""
        self._sent = 0
        self._page = Page("")
        self._target = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(20)
        os.close(self._commands)
        os.close(self._answers)
        self._profile.cleanup()

    def open(
        self,
        path: Path | str,
        *,
        width: int = 1200,
        height: int = 900,
        scheme: str = "light",
        has_scripts: bool = True,
        first: str = "",
    ) -> Page:
        """Show a file or an address, and wait until it is loaded. The script `first` runs before the scripts of the page."""
        target = self._ask("Target.createTarget", url="about:blank")["targetId"]
        self._page = Page(self._ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"])
        if self._target:
            self._ask("Target.closeTarget", targetId=self._target)  # to close its connections
        self._target = target
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._tell(f"{domain}.enable")
        self._tell("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600)
        self._tell("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self._tell("Emulation.setScriptExecutionDisabled", value=not has_scripts)
        self._tell("Page.addScriptToEvaluateOnNewDocument", source=first)
        self._tell("Page.navigate", url=path if isinstance(path, str) else path.resolve().as_uri())
        self.await_("document.readyState === 'complete' && location.protocol !== 'about:'")
        return self._page

    def await_(self, condition: str) -> None:
        """Wait until a condition holds in the page, even if the document changes."""
        deadline = time.monotonic() + 60
        while not self._holds(condition):
            if time.monotonic() > deadline:
                message = f"{condition} did not become true"
                raise AssertionError(message)
            time.sleep(0.02)

    def _holds(self, condition: str) -> bool:
        try:
            return bool(self.ask(condition))
        except AssertionError:
            return False  # the next document is just replacing this one

    def ask(self, expression: str) -> Any:
        """The value of an expression in the page, or of its promise."""
        answer = self._tell("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise AssertionError(answer["exceptionDetails"])
        return answer["result"].get("value")

    def press(self, key: str) -> None:
        """Press and release Tab or Enter."""
        code, text = {"Tab": (9, ""), "Enter": (13, "\r")}[key]
        given = {"key": key, "code": key, "windowsVirtualKeyCode": code}
        self._tell("Input.dispatchKeyEvent", type="keyDown", text=text, **given)
        self._tell("Input.dispatchKeyEvent", type="keyUp", **given)

    def picture(self, path: Path, *, is_whole: bool = True) -> None:
        """Save the whole page, or the part in the window, as a PNG."""
        answer = self._tell("Page.captureScreenshot", captureBeyondViewport=is_whole)
        path.write_bytes(base64.b64decode(answer["data"]))

    def _tell(self, method: str, **parameters: Any) -> Any:
        return self._ask(method, self._page.session, **parameters)

    def _ask(self, method: str, session: str = "", **parameters: Any) -> Any:
        """Send a command, and read up to its answer."""
        self._sent += 1
        command = {"id": self._sent, "method": method, "params": parameters} | ({"sessionId": session} if session else {})
        os.write(self._commands, json.dumps(command).encode() + b"\0")
        while True:
            said = self._next()
            if said.get("id") == self._sent:
                if "error" in said:
                    raise AssertionError(said["error"])
                return said["result"]
            self._note(said)

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._read:
            more = os.read(self._answers, 65_536)
            if not more:
                message = "Chromium has ended"
                raise AssertionError(message)
            self._read += more
        first, _, self._read = self._read.partition(b"\0")
        said: dict[str, Any] = json.loads(first)
        return said

    def _note(self, said: dict[str, Any]) -> None:
        """Keep the events of the page that tests use."""
        method, parameters = said.get("method"), said.get("params", {})
        if said.get("sessionId") != self._page.session:
            return
        if method == "Runtime.consoleAPICalled":
            self._page.logged.append(json.dumps(parameters["args"]))
        elif method == "Log.entryAdded":
            self._page.logged.append(parameters["entry"]["text"])
        elif method == "Runtime.exceptionThrown":
            self._page.logged.append(json.dumps(parameters["exceptionDetails"]))
        elif method == "Network.requestWillBeSent":
            self._page.requested.append(parameters["request"]["url"])
