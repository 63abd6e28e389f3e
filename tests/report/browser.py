"""A headless Chromium driven over its debugging pipe, with nothing but the standard library.

In: the path of a page. Out: what the page says when it is asked, keys and clicks done as a user would. Invariant: no
port is opened, nothing outside the page's file is loaded, and the process ends with the test.
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Self

CHROMIUM = next(
    (p for p in map(shutil.which, ("chromium", "chromium-browser", "google-chrome")) if p), None
)
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-extensions", "--remote-debugging-pipe", "--hide-scrollbars",
)  # fmt: skip
KEYS = {"Enter": 13, "ArrowRight": 39, "ArrowDown": 40, "ArrowLeft": 37, "Escape": 27, "Tab": 9}
PATIENCE = 60.0
# the browser reads at 3 and writes at 4; what lies there now is moved away first
AT_3_AND_4 = """
import os, sys
ends = [os.dup(os.dup(os.dup(int(n)))) for n in sys.argv[1:3]]
for number, end in zip((3, 4), ends):
    os.dup2(end, number)
os.execv(sys.argv[3], sys.argv[3:])
"""


class Browser:
    """One page at a time. `requests`: addresses the page asked for."""

    def __init__(self) -> None:
        assert CHROMIUM is not None
        self._profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        there, self._write = os.pipe()
        self._read, back = os.pipe()
        numbers = [str(there), str(back)]
        self._process = subprocess.Popen(
            [sys.executable, "-c", AT_3_AND_4, *numbers, CHROMIUM, *FLAGS,
             f"--user-data-dir={self._profile.name}"],
            pass_fds=(there, back), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(there)
        os.close(back)
        self._pending = b""
        self._number = 0
        self._session = ""
        self.requests: list[str] = []
        self.errors: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """A command of the debugging protocol, and its result."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                result: dict[str, Any] = answer["result"]
                return result

    def _next(self) -> dict[str, Any]:
        end = time.monotonic() + PATIENCE
        while b"\0" not in self._pending:
            ready, _, _ = select.select([self._read], [], [], max(0.0, end - time.monotonic()))
            assert ready, "the browser does not answer"
            piece = os.read(self._read, 1 << 16)
            assert piece, "the browser has ended"
            self._pending += piece
        line, _, self._pending = self._pending.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        self._note(message)
        return message

    def _note(self, message: dict[str, Any]) -> None:
        method, params = message.get("method"), message.get("params", {})
        if method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            text = details.get("exception", {}).get("description", details["text"])
            self.errors.append(text)
        elif method == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.errors.append(params["entry"]["text"])

    def open(self, path: Path, width: int = 1280, height: int = 900, *, dark: bool = False) -> None:
        """Load a page at a size; returns when it has been drawn."""
        self.requests.clear()
        self.errors.clear()
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", features=features)
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        self.call("Page.navigate", url=path.resolve().as_uri())
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            if self.ask("document.readyState === 'complete' && location.protocol === 'file:'"):
                break
            time.sleep(0.05)
        # two frames: the graph is drawn in the first
        self.ask("new Promise(r => requestAnimationFrame(() => requestAnimationFrame(() => r(1))))")

    def ask(self, expression: str) -> Any:
        """The value of a JavaScript expression; a promise is waited for."""
        found = self.call(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def press(self, key: str) -> None:
        """A key, down and up."""
        common = {"key": key, "windowsVirtualKeyCode": KEYS.get(key, ord(key[0].upper()))}
        text = {"text": "\r"} if key == "Enter" else {"text": key} if len(key) == 1 else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", **common, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", **common)

    def picture(self) -> bytes:
        """A screenshot of what is in view, as PNG."""
        return base64.b64decode(self.call("Page.captureScreenshot")["data"])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        os.close(self._write)
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._read)
        self._profile.cleanup()
