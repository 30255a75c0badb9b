"""A real browser for the tests of the page: Debian's chromium, driven by Playwright."""

from __future__ import annotations

import os
import shutil
import subprocess
import tarfile
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from playwright.sync_api import sync_playwright

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Dialog, Locator, Page

LIMIT_S = 60.0
"""For what takes a second on an idle machine."""


def chromium() -> str:
    """The path of chromium, which is installed if that may be; without it the test is skipped."""
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if found is None and os.geteuid() == 0 and shutil.which("apt-get"):
        subprocess.run(["apt-get", "install", "--yes", "--no-install-recommends", "chromium"], capture_output=True)
        found = shutil.which("chromium")
    if found is None:
        pytest.skip("the page is not tested in a browser: there is no chromium, and apt-get could not install it")
    return found


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
        width: In pixels.
        theme: "light" or "dark", as the system has it.
    """

    def __init__(self, browser: Browser, url: str, *, width: int = 1280, theme: str = "light") -> None:
        scheme: Any = theme
        self.context: BrowserContext = browser.new_context(
            viewport={"width": width, "height": 800}, color_scheme=scheme, reduced_motion="reduce"
        )
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
        """Go to `cron?name=often`, by the address; returns the main part."""
        self.page.evaluate("to => { location.hash = to }", address)
        name = address.partition("?")[0]
        self.page.wait_for_selector(f"#main > .page.{name}")
        self.wait_until(lambda: not self.page.locator("#main .loading").count(), f"{address} is read")
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

    def confirm(self, *, by_keyboard: bool = False) -> str:
        """Confirm the act that the dialog asks about; returns what it said will happen."""
        sure = self.page.locator("dialog [data-sure]:enabled")
        sure.wait_for()
        said = self.page.locator("dialog .will").inner_text()
        if by_keyboard:
            sure.focus()
            self.page.keyboard.press("Enter")
        else:
            sure.click()
        self.wait_until(lambda: not self.page.locator("dialog[open]").count(), f"the dialog closes after {said}")
        return said

    def close(self) -> None:
        """Close it; nothing may have gone wrong in it."""
        self.context.close()
        assert not self.problems, self.problems


def axe(folder: Path) -> str:
    """The script of axe-core, which npm loads; without npm the test is skipped."""
    if shutil.which("npm") is None:
        pytest.skip("the page is not judged by axe-core: there is no npm")
    loaded = subprocess.run(
        ["npm", "pack", "--silent", "axe-core"], cwd=folder, capture_output=True, text=True, timeout=60
    )
    if loaded.returncode:
        pytest.skip("the page is not judged by axe-core: npm could not load it")
    with tarfile.open(folder / loaded.stdout.split()[-1]) as packed:
        script = packed.extractfile("package/axe.min.js")
        assert script is not None
        return script.read().decode()
