"""A headless Chromium, driven over the pipe of its DevTools protocol; no package is needed.

with Browser() as browser:
    browser.navigate(path.as_uri())
    assert browser.evaluate("document.title") == "a page"
    assert browser.console == [] and browser.requests == []
"""

import base64
import contextlib
import fcntl
import json
import os
import select
import shutil
import signal
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

__all__ = ["MISSING", "Browser"]

_PROGRAM = next(
    (
        path
        for name in ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
        if (path := shutil.which(name))
    ),
    None,
)
MISSING = "" if _PROGRAM else "neither chromium nor google-chrome is installed"
"""Why there is no browser, for `pytest.mark.skipif(bool(MISSING), reason=MISSING)`."""
_FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--hide-scrollbars"),
    *("--disable-dev-shm-usage", "--remote-debugging-pipe"),
)
_SECONDS = 60.0
_KEYS = {
    "Tab": (9, ""),
    "Enter": (13, "\r"),
    "Escape": (27, ""),
    " ": (32, " "),
    "ArrowUp": (38, ""),
    "ArrowDown": (40, ""),
}
"""The keys that `press` knows, with their codes and the text they give."""


class Browser:
    """One window with one page; a context manager.

    Attributes:
        console: What the page wrote to the console, errors and violated policies included.
        requests: The addresses that were asked for, but for the page itself and `data:`.
    """

    def __init__(self) -> None:
        assert _PROGRAM is not None, MISSING
        self.console: list[str] = []
        self.requests: list[str] = []
        self._events: list[str] = []
        self._page = ""
        self._number = 0
        self._received = b""
        self._session: str | None = None
        self._profile = tempfile.mkdtemp(prefix="browser-")
        theirs_in, self._to = _pipe()
        self._from, theirs_out = _pipe()
        null = [(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_RDWR, 0) for fd in (0, 1, 2)]
        ends = [(os.POSIX_SPAWN_DUP2, theirs_in, 3), (os.POSIX_SPAWN_DUP2, theirs_out, 4)]
        self._process = os.posix_spawn(
            _PROGRAM,
            [_PROGRAM, *_FLAGS, f"--user-data-dir={self._profile}", "about:blank"],
            os.environ,
            file_actions=[*null, *ends],
            setsid=True,
        )
        os.close(theirs_in)
        os.close(theirs_out)

    def __enter__(self) -> "Browser":
        try:
            target = self._call("Target.createTarget", url="about:blank")["targetId"]
            attached = self._call("Target.attachToTarget", targetId=target, flatten=True)
            self._session = attached["sessionId"]
            for domain in ("Page", "Runtime", "Network", "Log"):
                self._call(f"{domain}.enable")
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._close()

    def navigate(self, url: str) -> None:
        """Open an address and wait until it has loaded; what was collected before is dropped."""
        self.console.clear()
        self.requests.clear()
        self._events.clear()
        self._page = url
        failed = self._call("Page.navigate", url=url).get("errorText")
        assert not failed, f"{url}: {failed}"
        deadline = time.monotonic() + _SECONDS
        while "Page.loadEventFired" not in self._events:
            self._note(self._read(deadline))

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression, as plain data; a promise is awaited."""
        answer = self._call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def press(self, key: str, shift: bool = False) -> None:
        """Press a key that has a name: Tab, Enter, Escape, " ", ArrowUp, ArrowDown."""
        code, text = _KEYS[key]
        common = {"key": key, "windowsVirtualKeyCode": code, "modifiers": 8 if shift else 0}
        self._call("Input.dispatchKeyEvent", type="keyDown", text=text, **common)
        self._call("Input.dispatchKeyEvent", type="keyUp", **common)

    def type(self, text: str) -> None:
        """Type into what has the focus."""
        for letter in text:
            self._call("Input.dispatchKeyEvent", type="char", text=letter)

    def resize(self, width: int, height: int) -> None:
        """Set the size of the window, in CSS pixels."""
        self._call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    def emulate(self, media: str = "", **features: str) -> None:
        """Pretend a medium ("print") and features (`prefers_color_scheme="dark"`)."""
        asked = [{"name": k.replace("_", "-"), "value": v} for k, v in features.items()]
        self._call("Emulation.setEmulatedMedia", media=media, features=asked)

    def screenshot(self, path: Path, whole: bool = False) -> None:
        """Write what the window shows, or the whole page, as PNG."""
        answer = self._call("Page.captureScreenshot", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(answer["data"]))

    def print(self, path: Path) -> None:
        """Write the page as it is printed, as PDF."""
        path.write_bytes(base64.b64decode(self._call("Page.printToPDF")["data"]))

    def _call(self, method: str, **params: Any) -> Any:
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + _SECONDS
        while True:
            answer = self._read(deadline)
            if answer.get("id") == self._number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]
            self._note(answer)

    def _read(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._received:
            ready, _, _ = select.select([self._from], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"the browser did not answer within {_SECONDS:g} s"
            piece = os.read(self._from, 2**20)
            assert piece, "the browser has ended"
            self._received += piece
        message, self._received = self._received.split(b"\0", 1)
        found: dict[str, Any] = json.loads(message)
        return found

    def _note(self, event: Mapping[str, Any]) -> None:
        method, params = event.get("method", ""), event.get("params", {})
        self._events.append(method)
        if method == "Runtime.consoleAPICalled":
            self.console.append(" ".join(str(a.get("value", a)) for a in params["args"]))
        elif method == "Runtime.exceptionThrown":
            self.console.append(json.dumps(params["exceptionDetails"]))
        elif method == "Log.entryAdded":
            self.console.append(params["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            url = params["request"]["url"]
            if url.split("#")[0] != self._page.split("#")[0] and not url.startswith("data:"):
                self.requests.append(url)

    def _close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process, signal.SIGKILL)
        os.waitpid(self._process, 0)
        os.close(self._to)
        os.close(self._from)
        shutil.rmtree(self._profile, ignore_errors=True)


def _pipe() -> tuple[int, int]:
    """Both ends of a pipe, with numbers above those that the browser expects."""
    ends = os.pipe()
    moved = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in ends]
    for end in ends:
        os.close(end)
    return moved[0], moved[1]
