"""The HTTP server of a bookie is found in its registration, asked for what it knows, and told to collect."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from bookwarden.clusters.bookkeeper.bookies.http_server import BookieServer, read_registered, read_reports
from bookwarden.clusters.bookkeeper.bookies.requests import BookieOptions
from bookwarden.errors import BookieError, BookieUnavailableError
from bookwarden.ledgers.bookie_report import BookieReport, Compactions, RegisteredBookie
from bookwarden.metastore.memory import MemoryStore
from bookwarden_dev.devcluster.ports import free_ports
from servers.http_bookie import HttpBookie, register

OPTIONS = BookieOptions(connect_timeout_s=2.0, request_timeout_s=2.0)
ASKED = Compactions(major=False, minor=True)


@pytest.fixture
def bookie() -> Iterator[HttpBookie]:
    with closing(HttpBookie()) as made:
        yield made


@pytest.fixture
def server(bookie: HttpBookie) -> Iterator[BookieServer]:
    with closing(BookieServer(RegisteredBookie("b1", False, bookie.url), OPTIONS)) as made:
        yield made


def test_bookies_are_found_with_state_and_http_server() -> None:
    store = MemoryStore()
    register(store, "everywhere", http=("0.0.0.0", 8000), rpc="10.0.0.7")
    register(store, "full", read_only=True, http=("b2.example", 8001))
    register(store, "off")
    register(store, "six", http=("::", 8000), rpc="fd00::1")
    store.create("/ledgers/available/old", b"")
    store.create("/ledgers/available/damaged", b"\xff")
    assert read_registered(lambda: [(store, "/ledgers")]) == [
        RegisteredBookie("damaged", False),
        RegisteredBookie("everywhere", False, "http://10.0.0.7:8000"),
        RegisteredBookie("full", True, "http://b2.example:8001"),
        RegisteredBookie("off", False),
        RegisteredBookie("old", False),
        RegisteredBookie("six", False, "http://[fd00::1]:8000"),
    ]


def test_a_bookie_that_turns_read_only_right_now_comes_once() -> None:
    store = MemoryStore()
    register(store, "b1")
    register(store, "b1", read_only=True)
    assert read_registered(lambda: [(store, "/ledgers")]) == [RegisteredBookie("b1", True)]


def test_a_report_adds_up_the_directories_of_the_bookie(bookie: HttpBookie, server: BookieServer) -> None:
    assert server.report() == BookieReport(
        bookie.url,
        is_read_only=False,
        takes_urgent_writes=True,
        is_collecting=False,
        is_major_suspended=True,
        is_minor_suspended=False,
        compacted_ms=200,
        minor_compactions=10,
        major_compactions=2,
        entry_logs=5,
        live_bytes=2_500,
        log_size_limit=1_000,
        total=100,
        free=40,
    )


def test_what_a_bookie_does_not_tell_is_unknown(bookie: HttpBookie, server: BookieServer) -> None:
    bookie.answers = {"/api/v1/config/server_config": {}}
    assert server.report() == BookieReport(bookie.url, is_collecting=False, log_size_limit=2**31)


def test_metrics_before_the_first_collection_tell_nothing_of_entry_logs(
    bookie: HttpBookie, server: BookieServer
) -> None:
    bookie.answers["/metrics"] = bookie.answers["/metrics"].replace("} 7\n", "} 0\n")
    assert (server.report().entry_logs, server.report().live_bytes) == (None, None)


@pytest.mark.parametrize("answer", [[{}], [3], {"x": 1}])
def test_an_answer_of_another_form_is_an_error_that_names_the_server(
    bookie: HttpBookie, server: BookieServer, answer: object
) -> None:
    bookie.answers["/api/v1/bookie/gc_details"] = answer
    with pytest.raises(BookieError, match=bookie.url):
        server.report()


def test_reports_name_what_is_off_and_what_does_not_answer(bookie: HttpBookie) -> None:
    (port,) = free_ports(1)
    bookies = [
        RegisteredBookie("b1", False, bookie.url),
        RegisteredBookie("b2", False),
        RegisteredBookie("b3", True, f"http://127.0.0.1:{port}"),
    ]
    found = read_reports(bookies, options=OPTIONS)
    assert list(found) == ["b1", "b2", "b3"]
    assert found["b1"].free == 40
    assert found["b2"] == BookieReport(
        "",
        error="its HTTP server is off: set httpServerEnabled=true and httpServerPort in its bookkeeper.conf, and "
        "restart it",
    )
    assert found["b3"].error.startswith(f"http://127.0.0.1:{port} does not answer (")


def test_a_collection_is_waited_for_to_its_end(bookie: HttpBookie, server: BookieServer) -> None:
    bookie.takes = 4
    pauses: list[float] = []
    assert server.collect(ASKED, pauses.append) == "Triggered GC on BookieServer: b1"
    assert bookie.asked == [{"forceMajor": False, "forceMinor": True}]
    assert (bookie.under_way, pauses) == (0, [0.1, 0.2, 0.4])


def test_one_that_is_under_way_ends_first_since_the_bookie_takes_no_other(
    bookie: HttpBookie, server: BookieServer
) -> None:
    bookie.under_way = 3
    server.collect(Compactions(major=True, minor=True), lambda _: None)
    assert bookie.asked == [{"forceMajor": True, "forceMinor": True}]


def test_a_bookie_may_be_silent_for_a_while_when_it_collects(bookie: HttpBookie, server: BookieServer) -> None:
    bookie.takes = 2

    def fall_silent() -> None:
        bookie.failures = 5

    bookie.put = fall_silent
    assert server.collect(ASKED, lambda _: None)
    assert bookie.failures == 0


def test_a_bookie_that_stays_silent_is_given_up(bookie: HttpBookie, server: BookieServer) -> None:
    bookie.failures = 1_000
    with pytest.raises(BookieUnavailableError, match="does not answer"):
        server.collect(ASKED, lambda _: None)
    assert not bookie.asked


def test_one_that_falls_silent_may_have_collected(bookie: HttpBookie, server: BookieServer) -> None:
    def fall_silent() -> None:
        bookie.failures = 1_000

    bookie.put = fall_silent
    with pytest.raises(BookieUnavailableError, match="it was asked to collect, and is silent since: http"):
        server.collect(ASKED, lambda _: None)


def test_a_bookie_that_refuses_is_told_of(bookie: HttpBookie, server: BookieServer) -> None:
    bookie.status = 400
    with pytest.raises(BookieError, match=r"answered 400 when asked to collect: .*Triggered"):
        server.collect(ASKED, lambda _: None)
