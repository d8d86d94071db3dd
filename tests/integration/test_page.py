"""The page of `bookwarden serve` in a real Chromium: looked at, clicked through, and read again while it is shown."""

from __future__ import annotations

import base64
import json
import os
import shutil
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import uvicorn
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from bookwarden.orphans.summary import InsideList, MissingLedger
from bookwarden.pipelines.disk.summary import DiskSummary, write_summary
from bookwarden.pipelines.folders import Folder
from bookwarden.server.page.scan import render_report
from bookwarden.server.page.values import Plan, ScanReport
from bookwarden_dev.devcluster.ports import free_ports
from servers.axe import axe_script, has_npm
from servers.page_sample import GIB, NOW_MS, disk_summary, sample_app, scan_report
from servers.rest import serving
from servers.waiting import eventually

_CHROMIUM, _DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
pytestmark = [
    pytest.mark.servers,
    pytest.mark.skipif(
        not (_CHROMIUM and _DRIVER), reason="no Chromium on this machine: apt-get install chromium chromium-driver"
    ),
]
EVIL = "<script>alert(1)</script>"
PATHS = (
    "/",
    "/disk",
    "/disk?tenant=iot",
    "/disk?namespace=iot%2Ftelemetry",
    "/scan",
    "/topic",
    "/topic?name=billing%2Finvoices%2Forders",
    "/trash",
    "/moves",
    "/runbook/orphans#inside-the-list",
)


class Browser:
    """A Chromium, and all that it asked for and complained of."""

    def __init__(self, driver: webdriver.Chrome) -> None:
        self.driver = driver

    def open(self, address: str, width: int = 1400, scheme: str = "light") -> None:
        screen = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
        scheme_feature = {"name": "prefers-color-scheme", "value": scheme}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme_feature]})
        self.driver.get(address)

    def shoot(self, file: Path, width: int) -> int:
        """Write what is shown to a PNG, all of its length; return how wide it would have to be."""
        size = self.driver.execute_script(
            "return [document.documentElement.scrollWidth, document.documentElement.scrollHeight]"
        )
        clip = {"x": 0, "y": 0, "width": width, "height": size[1], "scale": 1}
        shot: Any = self.driver.execute_cdp_cmd("Page.captureScreenshot", {"clip": clip, "captureBeyondViewport": True})
        file.write_bytes(base64.b64decode(shot["data"]))
        return int(size[0])

    def faults(self) -> list[tuple[str, str]]:
        """Return what axe-core takes for serious, with an example of each."""
        # A policy as ours lets no page run this: the browser's own connection does.
        self.driver.execute_script(axe_script())
        found: Any = self.driver.execute_async_script(
            "const done = arguments[arguments.length - 1]; axe.run().then(found => done(found.violations))"
        )
        serious = [one for one in found if one["impact"] in ("serious", "critical")]
        return [(one["id"], one["nodes"][0]["html"]) for one in serious]

    @property
    def text(self) -> str:
        return str(self.driver.find_element(By.TAG_NAME, "body").text)

    def click(self, selector: str) -> None:
        self.driver.find_element(By.CSS_SELECTOR, selector).click()

    def complaints(self) -> list[str]:
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def requests(self) -> list[str]:
        """Return what pages asked for since the last call; what is within a page's own text is left out."""
        events = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        sent = [one["params"]["request"]["url"] for one in events if one["method"] == "Network.requestWillBeSent"]
        return [url for url in sent if not url.startswith(("data:", "chrome:"))]


@pytest.fixture
def browser(chromium: Browser) -> Browser:
    """Leave the page of the test before, which goes on asking for itself, and what it said."""
    chromium.driver.get("about:blank")
    chromium.complaints()
    chromium.requests()
    return chromium


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    options = webdriver.ChromeOptions()
    options.binary_location = _CHROMIUM or ""
    for argument in ("--headless=new", "--disable-background-networking", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    if os.geteuid() == 0:
        options.add_argument("--no-sandbox")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(_DRIVER))
    try:
        yield Browser(driver)
    finally:
        driver.quit()


@pytest.fixture(scope="module")
def invented() -> Iterator[str]:
    """Serve invented readings; return the address."""
    (port,) = free_ports(1)
    server = uvicorn.Server(uvicorn.Config(sample_app(), port=port, log_level="warning"))
    thread = Thread(target=server.run, daemon=True)
    thread.start()
    eventually(lambda: server.started)
    yield f"http://127.0.0.1:{port}"
    server.should_exit = True
    thread.join(30)


@contextmanager
def silent_server() -> Iterator[int]:
    """Listen on a port, and answer nothing."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listening:
        yield listening.getsockname()[1]


@contextmanager
def page_of_a_cluster(tmp_path: Path, token: str | None = None) -> Iterator[tuple[str, Path]]:
    """Run `bookwarden serve` before brokers and a store that do not answer; yield its address and the folder disk."""
    folder = tmp_path / "disk"
    write_summary(Folder(str(folder)), _with_evil_names(disk_summary()))
    with silent_server() as port:
        overrides = {
            "pulsar.admin_url": f"http://127.0.0.1:{port}",
            "metadata_store.urls": json.dumps([f"zk:127.0.0.1:{port}"]),
            "disk.folder": str(folder),
            "orphans.folder": str(tmp_path / "orphans"),
            "sweep.outcomes": str(tmp_path / "outcomes"),
            "follow.outcomes": str(tmp_path / "follow-outcomes"),
        }
        with serving(overrides, token=token) as server:
            yield server.address, folder


def _with_evil_names(summary: DiskSummary) -> DiskSummary:
    def renamed(name: str) -> str:
        return name.replace("iot", EVIL)

    return replace(
        summary,
        **{
            part: tuple(use._replace(name=renamed(use.name)) for use in getattr(summary, part))
            for part in ("tenants", "namespaces", "topics", "bookies")
        },
    )


def test_it_is_clicked_through_while_stores_hang(browser: Browser, tmp_path: Path) -> None:
    with page_of_a_cluster(tmp_path) as (address, folder):

        def says_silent() -> bool:
            browser.open(address)
            return "The brokers: no answer since" in browser.text and "The metadata store: no answer" in browser.text

        eventually(says_silent, timeout=60)
        # What does answer is shown all the same.
        assert "28.1 TiB" in browser.text
        assert "No Prometheus" in browser.text
        browser.click("header nav a[href='/disk']")
        assert "Who uses the disks" in browser.text
        assert EVIL in browser.text, "as text"
        tile = browser.driver.find_element(By.CSS_SELECTOR, ".map a[href*='namespace=web']")
        tile.find_element(By.CSS_SELECTOR, "rect.tile").click()
        browser.driver.find_element(By.LINK_TEXT, "persistent://web/clicks/clicks-partition-0").click()
        # Its script reads the page again.
        eventually(lambda: "The topic: no answer since" in browser.text, timeout=90)
        asked_for = browser.driver.find_element(By.ID, "name")
        assert asked_for.get_attribute("value") == "persistent://web/clicks/clicks-partition-0"
        asked_for.clear()
        asked_for.send_keys(f"a/b/{EVIL}", Keys.ENTER)
        eventually(lambda: "Nothing to show" in browser.text)
        assert EVIL in browser.text, "as text"
        for name, part in (("trash", "The trash"), ("moves", "metadata and bookie clusters")):
            browser.click(f"header nav a[href='/{name}']")
            eventually(lambda part=part: f"{part}: no answer since" in browser.text, timeout=90)
        browser.click("header nav a[href='/disk']")
        browser.driver.find_element(By.LINK_TEXT, "web").click()
        browser.click(".crumbs a[href='/disk']")
        browser.driver.find_element(By.LINK_TEXT, EVIL).click()
        assert f"{EVIL}/telemetry" in browser.text
        browser.click("h2 a[href^='/runbook/']")
        assert browser.driver.current_url == f"{address}/runbook/disk#what-is-counted"
        browser.driver.back()
        # The page is read again by its script, where it stands.
        browser.click("header nav a[href='/disk']")
        browser.driver.execute_script("window.stays = true; document.activeElement.blur()")
        write_summary(Folder(str(folder)), replace(disk_summary(), bookies=()))
        eventually(lambda: "There is no bookie." in browser.text, timeout=60)
        assert browser.driver.execute_script("return window.stays")
        assert browser.complaints() == []
        asked = browser.requests()
        assert f"{address}/page/page.css" in asked
        assert [url for url in asked if not url.startswith(f"{address}/")] == []


def test_with_a_token_a_browser_sends_it_as_a_password(browser: Browser, tmp_path: Path) -> None:
    with page_of_a_cluster(tmp_path, "geheim") as (address, _):
        browser.open(address)
        assert "In flight" not in browser.text
        browser.open(address.replace("//", "//any:geheim@"))
        assert "In flight" in browser.text
        browser.click("header nav a[href='/disk']")
        assert "Who uses the disks" in browser.text
        assert browser.driver.get_cookies() == []
        # The first request, which was refused, is in the console as well.
        assert [one for one in browser.complaints() if " 401 " not in one] == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1400, 1800])
def test_nothing_is_wider_than_the_window(
    browser: Browser, invented: str, tmp_path: Path, width: int, scheme: str
) -> None:
    for number, path in enumerate(PATHS):
        browser.open(invented + path, width, scheme)
        # To be looked at, where the test fails.
        assert browser.shoot(tmp_path / f"{number}-{width}-{scheme}.png", width) <= width, path
    assert browser.complaints() == []


def test_the_keyboard_reaches_all(browser: Browser, invented: str) -> None:
    browser.open(f"{invented}/disk")
    shown = "[...document.querySelectorAll('a')].filter(one => one.getClientRects().length > 0)"
    links = set(browser.driver.execute_script(f"return {shown}.map(one => one.outerHTML)"))
    body = browser.driver.find_element(By.TAG_NAME, "body")
    body.send_keys(Keys.TAB)
    assert browser.driver.switch_to.active_element.text == "To the content"
    reached = set[str]()
    for _ in range(2 * len(links) + 20):
        reached.add(browser.driver.execute_script("return document.activeElement.outerHTML"))
        browser.driver.switch_to.active_element.send_keys(Keys.TAB)
    assert links <= reached


@pytest.mark.skipif(not has_npm(), reason="no npm on this machine, from which axe-core comes")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_keeps_people_from_using_it(browser: Browser, invented: str, scheme: str) -> None:
    for path in PATHS:
        browser.open(invented + path, 1400, scheme)
        assert browser.faults() == [], path


def _report_of_losses() -> ScanReport:
    """Return the report of a scan that found ledgers to be lost, with names that are markup."""
    report = scan_report(Plan("20261128T031012-5f2c", NOW_MS, 10_204_118, 412, 190 * GIB, 1_204, 0, 0, False), NOW_MS)
    places = tuple(f"{EVIL}/n/persistent/orders-partition-{number}" for number in range(5))
    lost = replace(
        report.summary,
        missing=tuple(MissingLedger(number, places) for number in (4711, 5_120_045)),
        missing_total=1_204,
        outdated=(MissingLedger(815, places[:1]),),
        outdated_total=1,
        inside_lists=(InsideList(4713, 3 * GIB, places[0], "its topic lists older ledgers, from 12 on"),),
        fuzzy="/var/backups/snapshot.1f00: no logs are next to it",
    )
    return replace(report, summary=lost)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1400])
def test_a_report_in_a_file_needs_nothing_else(browser: Browser, tmp_path: Path, width: int, scheme: str) -> None:
    file = tmp_path / "report.html"
    file.write_text(render_report(_report_of_losses(), NOW_MS), encoding="utf-8")
    browser.open(file.as_uri(), width, scheme)
    assert browser.shoot(tmp_path / f"report-{width}-{scheme}.png", width) <= width
    assert f"{EVIL}/n/persistent/orders-partition-0" in browser.text, "as text"
    assert "1,204" in browser.text
    color = "return getComputedStyle(document.body).backgroundColor"
    assert browser.driver.execute_script(color) == ("rgb(247, 248, 250)" if scheme == "light" else "rgb(18, 22, 27)")
    assert browser.complaints() == []
    assert browser.requests() == [file.as_uri()]
    if has_npm():
        assert browser.faults() == []
