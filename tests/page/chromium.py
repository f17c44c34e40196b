"""A real browser without a screen, for the live page."""

from __future__ import annotations

import base64
import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tests.needs import needs_package, needs_tool

PHONE, TABLET, DESK = (390, 844), (820, 1180), (1280, 900)
WAIT_S = 120
# Without these it asks hosts of its maker for this and that at every start.
_QUIET = ("background-networking", "component-update", "sync", "quic", "gpu")


class Browser(NamedTuple):
    """One window."""

    driver: Any

    def text(self, name: str) -> str:
        """What stands in the element of this id."""
        found: str = self.ask(f"return document.getElementById('{name}').textContent")
        return found

    def ask(self, script: str) -> Any:
        """What a script returns."""
        return self.driver.execute_script(script)

    def until(self, is_so: Callable[[], object], what: str) -> None:
        """Wait for what the page is to show."""
        deadline = time.monotonic() + WAIT_S
        while not is_so():
            assert time.monotonic() < deadline, f"{what}: {self.text('state')}, {self.complaints()}"
            time.sleep(0.05)

    def complaints(self) -> list[str]:
        """Errors of the page's scripts, and what its policy has kept out."""
        return [f"{line['level']} {line['message']}" for line in self.driver.get_log("browser")]

    def picture(self, place: Path) -> None:
        """Of the whole page, however long it is."""
        params = {"captureBeyondViewport": True}
        shot = self.driver.execute_cdp_cmd("Page.captureScreenshot", params)
        place.write_bytes(base64.b64decode(shot["data"]))

    def violations(self) -> list[str]:
        """What axe-core (accessibility) finds."""
        axe = needs_package("axe_core_python.selenium")
        found = axe.Axe().run(self.driver)["violations"]
        return [f"{one['id']}: {one['help']}: {[node['html'] for node in one['nodes']]}" for one in found]


@contextlib.contextmanager
def browser(size: tuple[int, int] = DESK, *, is_dark: bool = False) -> Iterator[Browser]:
    """Open one, and close it."""
    webdriver = needs_package("selenium.webdriver")
    service = needs_package("selenium.webdriver.chrome.service")
    options = webdriver.ChromeOptions()
    options.binary_location = needs_tool("chromium")
    width, height = size
    for flag in ("headless=new", "no-sandbox", "no-first-run", f"window-size={width},{height}"):
        options.add_argument(f"--{flag}")
    for flag in _QUIET:
        options.add_argument(f"--disable-{flag}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(
        options=options, service=service.Service(needs_tool("chromedriver", "chromium-driver"))
    )
    try:
        screen = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": size == PHONE}
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
        colours = {"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [colours]})
        yield Browser(driver)
    finally:
        driver.quit()
