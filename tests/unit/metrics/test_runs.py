"""What commands that end publish: files for node_exporter, and what a push gateway gets."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import click
import pytest
from prometheus_client.parser import text_string_to_metric_families

from bookwarden.config import MetricsSettings, load_settings
from bookwarden.errors import ConfigError, RefusedError
from bookwarden.metrics.names import METRICS, Program, Sample
from bookwarden.metrics.runs import Run, published_run

FOUND = Sample("bookwarden_scan_missing_ledgers", 3)
EXIT_CODE, MISSING = "bookwarden_run_exit_code", "bookwarden_scan_missing_ledgers"


class Request:
    """A request as a push gateway gets it."""

    def __init__(self, method: str, path: str, body: str) -> None:
        self.method, self.path, self.values = method, path, values(body)


def values(text: str) -> dict[str, float]:
    """Read all values by their names and labels, all in one text."""
    return {
        " ".join([sample.name, *(f"{name}={value}" for name, value in sample.labels.items())]): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@pytest.fixture
def gateway() -> Iterator[tuple[str, list[Request]]]:
    """A server that takes what is pushed: its address, and the requests."""
    requests: list[Request] = []

    class Handler(BaseHTTPRequestHandler):
        def take(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            requests.append(Request(self.command, self.path, body))
            self.send_response(200)
            self.end_headers()

        do_PUT = do_POST = take

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", requests
        server.shutdown()
        thread.join()


def scan(settings: MetricsSettings, error: BaseException | None = None) -> None:
    """Run what finds three missing ledgers, or fails before it finds any."""
    with published_run(settings, Program.SCAN) as run:
        if error is not None:
            raise error
        run.show([FOUND], 21)


def read(folder: Path, name: str) -> dict[str, float]:
    return values((folder / f"bookwarden_{name}.prom").read_text(encoding="utf-8"))


def test_a_run_leaves_its_times_its_exit_code_and_what_it_found(tmp_path: Path) -> None:
    scan(MetricsSettings(textfile_folder=str(tmp_path)))
    # A part of a file would be seen by node_exporter.
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "bookwarden_orphans_scan.prom",
        "bookwarden_run_orphans_scan.prom",
    ]
    own = read(tmp_path, "run_orphans_scan")
    assert own[f"{EXIT_CODE} command=orphans-scan"] == 21
    begun, ended = (
        own[f"bookwarden_run_{name}_timestamp_seconds command=orphans-scan"] for name in ("started", "ended")
    )
    assert 1_700_000_000 < begun <= ended
    assert read(tmp_path, "orphans_scan") == {MISSING: 3}
    text = (tmp_path / "bookwarden_orphans_scan.prom").read_text(encoding="utf-8")
    assert f"# HELP {MISSING} {METRICS[MISSING].help}\n# TYPE {MISSING} gauge\n" in text


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (RefusedError("no"), 5),
        (KeyboardInterrupt(), 130),
        (click.exceptions.Exit(22), 22),
        (ZeroDivisionError(), 1),
    ],
)
def test_a_run_that_fails_says_so_and_leaves_what_was_found_before(
    tmp_path: Path, error: BaseException, code: int
) -> None:
    settings = MetricsSettings(textfile_folder=str(tmp_path))
    scan(settings)
    with suppress(type(error)):
        scan(settings, error)
    assert read(tmp_path, "run_orphans_scan")[f"{EXIT_CODE} command=orphans-scan"] == code
    assert read(tmp_path, "orphans_scan") == {MISSING: 3}


def test_two_clusters_have_files_and_a_label_of_their_own(tmp_path: Path) -> None:
    for name in ("east", "west"):
        scan(MetricsSettings(textfile_folder=str(tmp_path), cluster=name))
    assert len(list(tmp_path.iterdir())) == 4
    assert read(tmp_path, "orphans_scan_west") == {f"{MISSING} cluster=west": 3}
    assert read(tmp_path, "run_orphans_scan_east")[f"{EXIT_CODE} cluster=east command=orphans-scan"] == 21


def test_a_gateway_gets_one_group_which_a_failed_run_only_adds_to(gateway: tuple[str, list[Request]]) -> None:
    address, requests = gateway
    settings = MetricsSettings(push_gateway=address, cluster="east")
    scan(settings)
    with suppress(RefusedError):
        scan(settings, RefusedError("no"))
    whole, added = requests
    # PUT replaces the whole group, so that a value that is gone goes there too; POST leaves what it does not name.
    assert (whole.method, added.method) == ("PUT", "POST")
    assert whole.path == added.path == "/metrics/job/bookwarden/cluster/east/command/orphans-scan"
    assert whole.values[MISSING] == 3
    assert whole.values[f"{EXIT_CODE} command=orphans-scan"] == 21
    assert added.values[f"{EXIT_CODE} command=orphans-scan"] == 5
    assert MISSING not in added.values


def test_what_cannot_be_published_at_the_end_is_logged_and_costs_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "textfiles"
    folder.mkdir()
    # Port 1 is nobody's.
    settings = MetricsSettings(textfile_folder=str(folder), push_gateway="http://127.0.0.1:1")
    with published_run(settings, Program.UNDO) as run:
        folder.rmdir()
        run.show([])
    assert [record.levelname for record in caplog.records] == ["ERROR", "ERROR"]
    assert "bookwarden_run_undo.prom: No such file or directory" in caplog.text
    assert "cannot be pushed to http://127.0.0.1:1" in caplog.text


def test_a_folder_that_is_not_there_is_said_before_the_work_begins(tmp_path: Path) -> None:
    with (
        pytest.raises(ConfigError, match=r"metrics\.textfile_folder .*away is no folder that can be written"),
        published_run(MetricsSettings(textfile_folder=str(tmp_path / "away")), Program.SCAN),
    ):
        pytest.fail("the work began")


def test_a_dry_run_and_settings_without_a_place_publish_nothing(tmp_path: Path) -> None:
    with published_run(MetricsSettings(), Program.SCAN) as run:
        run.show([FOUND])
    with published_run(MetricsSettings(textfile_folder=str(tmp_path)), Program.APPLY, publishes=False) as run:
        assert isinstance(run, Run)
        run.show([FOUND])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("setting", ["push_gateway=gateway:9091", "push_gateway=http://u:p@gateway", "cluster=a/b"])
def test_addresses_and_names_that_are_none_are_refused(setting: str) -> None:
    name, _, value = setting.partition("=")
    with pytest.raises(ConfigError, match=f"metrics.{name}"):
        load_settings(overrides={f"metrics.{name}": f'"{value}"'})
