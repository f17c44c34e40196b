"""The live page in a real browser: at three sizes, in the dark, by keyboard, and for those who use a screen reader (axe-core)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.page.chromium import DESK, PHONE, TABLET, Browser, browser
from tests.page.opened import opened
from tests.report import long_job
from tests.report.simulated_jobs import simulate

pytestmark = pytest.mark.slow

SHOWN = "return document.querySelectorAll('#key li').length"


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("job")
    simulate(3).write(found)
    return found


def look(shown: Browser, link: str) -> None:
    """Open the link, and wait until everything is there."""
    shown.driver.get(link)
    shown.until(lambda: shown.ask(SHOWN), "the timeline")
    shown.until(lambda: shown.text("figures"), "the figures")


@pytest.mark.parametrize("is_dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("size", [PHONE, TABLET, DESK], ids=["phone", "tablet", "desk"])
def test_it_fits_and_everybody_can_read_it(
    path: Path, tmp_path: Path, size: tuple[int, int], is_dark: bool
) -> None:
    with opened(path) as link, browser(size, is_dark=is_dark) as shown:
        look(shown, link)
        shown.picture(tmp_path / "page.png")
        assert shown.ask("return document.documentElement.scrollWidth") <= size[0]
        assert shown.violations() == []
        assert shown.complaints() == []
        assert "goodput" in shown.text("figures")
        assert "recoveries" in shown.text("figures")
        # The drawing has more than one colour, so something is drawn.
        colours = (
            "const c = document.getElementById('canvas');"
            "const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;"
            "return new Set(new Uint32Array(d.buffer)).size"
        )
        assert shown.ask(colours) > 20


def test_the_timeline_is_told_by_keys(path: Path) -> None:
    keys = pytest.importorskip("selenium.webdriver.common.keys").Keys
    with opened(path) as link, browser() as shown:
        look(shown, link)
        drawing = shown.driver.find_element("id", "drawing")
        said: list[str] = []
        for key in (keys.HOME, keys.ARROW_RIGHT, keys.ARROW_DOWN, "+", keys.ARROW_RIGHT, "-", keys.END):
            drawing.send_keys(key)
            said.append(shown.text("pointed"))
        rows = [line.partition(" at ")[0] for line in said]
        assert rows[0] == rows[1] != rows[2]
        assert " at 0.0 s: " in said[0]
        # To zoom changes what is shown, and not what is pointed at.
        assert said[2] != said[4] != said[6]
        assert (said[3] == said[2], said[5] == said[4]) == (True, True), said
        assert shown.complaints() == []


def test_the_plan_is_asked_for_by_a_button(path: Path) -> None:
    with opened(path) as link, browser() as shown:
        look(shown, link)
        shown.driver.find_element("id", "ask-plan").click()
        shown.until(lambda: "restart now would" in shown.text("plan"), "the plan")


def test_a_page_whose_server_has_ended_says_so(path: Path) -> None:
    with browser() as shown:
        with opened(path) as link:
            look(shown, link)
        shown.until(lambda: "Nobody serves this page" in shown.text("trouble"), "that nobody serves it")
        assert "goodput" in shown.text("figures")


def test_a_thousand_ranks_and_all_that_befell_them_are_shown(tmp_path: Path) -> None:
    long_job.write(tmp_path, nodes=1_000, failures=32)
    with opened(tmp_path) as link, browser() as shown:
        look(shown, link)
        assert shown.complaints() == []
        assert "All 1000" in shown.text("all-ranks")
        shown.driver.find_element("id", "all-ranks").click()
        assert shown.ask("return document.querySelectorAll('#rank-rows tr').length") == 1_000
        assert shown.ask("return document.documentElement.scrollWidth") <= DESK[0]
