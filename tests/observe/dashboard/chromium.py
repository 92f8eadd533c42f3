"""A real, headless Chromium, driven by the DevTools protocol over a pipe: no port, no other library."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

PATIENCE = 60.0


def path() -> str | None:
    """The browser; None: there is none here."""
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Tab:
    """A page of the browser."""

    def __init__(self, to: int, answers: int) -> None:
        self._to, self._from = to, answers
        self._heard = b""
        self._count = 0
        self._session = ""
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> Any:
        """Call a method of the protocol → its result."""
        self._count += 1
        message: dict[str, Any] = {"id": self._count, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        until = time.monotonic() + PATIENCE
        while True:
            answer = self._next(until)
            if answer.get("id") == self._count:
                assert "error" not in answer, answer["error"]
                return answer["result"]
            self.events.append(answer)

    def _next(self, until: float) -> dict[str, Any]:
        while b"\0" not in self._heard:
            ready, _, _ = select.select([self._from], [], [], max(0.0, until - time.monotonic()))
            assert ready, "the browser does not answer"
            data = os.read(self._from, 1 << 16)
            assert data, "the browser has ended"
            self._heard += data
        line, _, self._heard = self._heard.partition(b"\0")
        found: dict[str, Any] = json.loads(line)
        return found

    def show(self, width: int, height: int, *, dark: bool = False) -> None:
        """Give the window a size, and the system a scheme."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", features=features)

    def open(self, url: str) -> None:
        """Go to a page."""
        self.call("Page.navigate", url=url)

    def run(self, script: str) -> Any:
        """The value of an expression of the page's script, as JSON."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def until(self, script: str, fits: Callable[[Any], Any] = bool) -> Any:
        """Wait until an expression has a value that fits → the value."""
        until = time.monotonic() + PATIENCE
        while True:
            value = self.run(script)
            if fits(value):
                return value
            assert time.monotonic() < until, f"{script} is {value!r}"
            time.sleep(0.05)

    def click(self, element: str) -> None:
        """Click an element, by its id."""
        self.run(f"document.getElementById({element!r}).click()")

    def picture(self, file: Path, *, whole: bool = False) -> None:
        """Write what is seen into a PNG."""
        data = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)["data"]
        file.write_bytes(base64.b64decode(data))

    def complaints(self) -> list[str]:
        """What the page's script, or the browser on its behalf, has complained of."""
        self.run("0")
        found = [
            event["params"]["exceptionDetails"].get("exception", {}).get("description", "")
            for event in self.events
            if event.get("method") == "Runtime.exceptionThrown"
        ]
        return found + [
            event["params"]["entry"]["text"] + " " + event["params"]["entry"].get("url", "")
            for event in self.events
            if event.get("method") == "Log.entryAdded" and event["params"]["entry"]["level"] == "error"
        ]


@contextlib.contextmanager
def browser(*options: str) -> Iterator[Tab]:
    """A browser with a fresh profile, and a page in it."""
    found = path()
    assert found is not None
    theirs_in, to = os.pipe()
    answers, theirs_out = os.pipe()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        command: Sequence[str] = (
            *("bash", "-c", f'exec "$@" 3<&{theirs_in} 4>&{theirs_out}', "bash", found, "--headless=new"),
            *("--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"),
            *("--disable-background-networking", "--disable-component-update", "--no-first-run"),
            *(f"--user-data-dir={profile}", "--remote-debugging-pipe", *options),
        )
        process = subprocess.Popen(
            command,
            pass_fds=(theirs_in, theirs_out),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        try:
            tab = Tab(to, answers)
            yield tab
            with contextlib.suppress(AssertionError, OSError):
                tab.call("Target.getTargets")
        finally:
            os.close(to)  # it ends with its pipe
            os.close(answers)
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
