"""A real browser for the tests of the page: Debian's chromium, driven by Playwright."""

from __future__ import annotations

import shutil
import subprocess
import tarfile
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from playwright.sync_api import sync_playwright

from tests.cluster.debian import install

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Dialog, Locator, Page

LIMIT_S = 60.0
"""For what takes a second on an idle machine."""
DRAWN = """() => document.getElementById("main").dataset.address === location.hash.slice(1)
    && !document.querySelector("#main .loading")"""
"""The address has changed before the page is drawn: what stands there may be of the address before."""
TABS_MOST = 300


def chromium() -> str:
    """The path of chromium, which is installed where that may be; without it the test is skipped."""
    found, problem = _installed(), ""
    if found is None:
        problem = install("chromium")
        found = _installed()
    if found is None:
        pytest.skip(f"the page is not tested in a browser: there is no chromium, and {problem or 'it has no command'}")
    return found


def _installed() -> str | None:
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@contextmanager
def opened() -> Iterator[Browser]:
    """A browser, closed when the block is left."""
    path = chromium()
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        try:
            yield browser
        finally:
            browser.close()


class Window:
    """A window of the browser, and everything that went wrong in it.

    Args:
        browser: The browser.
        url: The address of the page.
        more: Of the context: how large it is, what its user prefers.
    """

    def __init__(self, browser: Browser, url: str, **more: Any) -> None:
        given: dict[str, Any] = {"viewport": {"width": 1280, "height": 800}, "reduced_motion": "reduce", **more}
        self.context: BrowserContext = browser.new_context(**given)
        self.page: Page = self.context.new_page()
        self.page.set_default_timeout(LIMIT_S * 1000)
        self.problems: list[str] = []
        self.page.on("console", self._on_console)
        self.page.on("pageerror", lambda error: self.problems.append(f"{error.message}\n{error.stack}"))
        self.page.on("dialog", self._on_dialog)
        self.page.goto(url)

    def _on_console(self, said: ConsoleMessage) -> None:
        if said.type == "error":
            self.problems.append(f"{said.text} {said.location.get('url')}")

    def _on_dialog(self, dialog: Dialog) -> None:
        self.problems.append(f"alert {dialog.message}")
        dialog.dismiss()

    def open(self, address: str) -> Locator:
        """Go to `cron?name=often`, by the address, and wait until it is drawn; returns the main part."""
        self.page.evaluate("to => { location.hash = to }", address)
        self.wait_until(lambda: self.page.evaluate(DRAWN), f"{address} is drawn")
        return self.page.locator("#main")

    def wait_until(self, condition: Callable[[], object], what: str) -> float:
        """Wait for a condition; returns the seconds that it took."""
        began = time.monotonic()
        while not condition():
            if time.monotonic() - began > LIMIT_S:
                pytest.fail(f"not within {LIMIT_S:g}s: {what}\n{self.page.locator('body').inner_text()[:3000]}")
            self.page.wait_for_timeout(20)
        return time.monotonic() - began

    def wait_for(self, text: str, where: str = "#main") -> float:
        """Wait until an element has a text; returns the seconds that it took."""
        return self.wait_until(lambda: text in self.page.locator(where).first.inner_text(), f"{text!r} in {where}")

    def use(self, button: Locator, *, by_keyboard: bool) -> None:
        """Click a button; or go to it with Tab from where the focus is, and press Enter."""
        if not by_keyboard:
            button.click()
            return
        button.wait_for()
        for _ in range(TABS_MOST):
            if button.evaluate("(button) => button === document.activeElement"):
                break
            self.page.keyboard.press("Tab")
        else:
            pytest.fail(f"{TABS_MOST} times Tab does not lead to {button}")
        self.page.keyboard.press("Enter")

    def confirm(self, *, by_keyboard: bool = False) -> str:
        """Confirm the act that the dialog asks about; returns what it said will happen."""
        sure = self.page.locator("dialog [data-sure]:enabled")
        sure.wait_for()
        said = self.page.locator("dialog .will").inner_text()
        self.use(sure, by_keyboard=by_keyboard)
        self.wait_until(lambda: not self.page.locator("dialog[open]").count(), f"the dialog closes after {said}")
        return said

    def term(self, name: str) -> Locator:
        """A value of the thing that is shown in detail."""
        return (
            self.page.locator("#main .detail dl > div")
            .filter(has=self.page.get_by_text(name, exact=True))
            .locator("dd")
        )

    def recorded(self, act: str, what: str) -> str:
        """Wait until the record of acts has one, and return its result."""
        self.open("activity")
        rows = self.page.locator("#main table[aria-label=acts] tbody tr")
        row = rows.filter(has=self.page.get_by_role("cell", name=act, exact=True)).filter(has_text=what).first
        row.wait_for()
        return row.locator("[data-label=Result]").inner_text()

    def close(self) -> None:
        """Close it; nothing may have gone wrong in it."""
        self.context.close()
        assert not self.problems, self.problems


def axe(folder: Path) -> str:
    """The script of axe-core, which npm loads; without npm the test is skipped."""
    if shutil.which("npm") is None:
        pytest.skip("the page is not judged by axe-core: there is no npm")
    try:
        line = ["npm", "pack", "--silent", "axe-core"]
        loaded = subprocess.run(line, cwd=folder, capture_output=True, text=True, timeout=LIMIT_S, check=True)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired):
        pytest.skip("the page is not judged by axe-core: npm could not load it")
    with tarfile.open(folder / loaded.stdout.split()[-1]) as packed:
        script = packed.extractfile("package/axe.min.js")
        assert script is not None
        return script.read().decode()
