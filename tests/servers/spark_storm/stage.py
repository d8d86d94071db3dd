"""What the acts of the storm are played on: Spark's machines, a Pulsar, and a place of each act's own."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from bookwarden.clusters.pulsar.rest.admin import PulsarAdmin
from bookwarden.metastore.interface import MetadataStore
from bookwarden.metastore.urls import open_store
from bookwarden.processes import ProcessIdentity, descendants
from bookwarden_dev.devcluster import DevCluster, ServerProcess
from servers.deletion_site import DeletionSite
from servers.spark_cluster import SparkCluster, driver_of, share
from servers.spark_gates import Gates
from servers.spark_storm.marks import SETTINGS, Account, Marks
from servers.waiting import eventually

CHECKOUT = Path(__file__).parents[3]
TENANT = "spark"
#: A busy machine starts Spark in a minute.
START_S = 240.0
_SETTLED_S = 900.0
_BATCHES = 6
_DIGEST_PASSWORD = "BOOKWARDEN_METADATA_STORE__DIGEST_PASSWORD"


class Submission:
    """A script of ours under spark-submit."""

    def __init__(self, process: ServerProcess, script: str) -> None:
        self.process = process
        self._script = script

    def start(self) -> None:
        """Start it."""
        self.process.start(wait=False)

    def driver(self) -> ProcessIdentity | None:
        """Find the Python process of the script."""
        return driver_of(self.process, self._script)

    def kill(self) -> None:
        """Kill driver and JVM at once, as the end of their machine would."""
        if self.process.is_running():
            for pid in descendants(self.process.pid):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self.process.kill()

    def stop(self) -> None:
        """Stop it in order, as docs/deploy.md says; AssertionError if it does not end well."""
        driver = self.driver()
        assert driver is not None, self.process.log_since_start()[-3000:]
        driver.signal(signal.SIGTERM)
        code = self.ended(120)
        assert code == 0, f"exit code {code}: {self.process.log_since_start()[-3000:]}"

    def ended(self, seconds: float) -> int | None:
        """Wait for its end; return the exit code."""
        eventually(lambda: not self.process.is_running(), seconds, pause=0.1)
        return self.process.exit_code


@dataclass
class Stage:
    """The servers of the acts; ``say`` prints a line."""

    home: Path
    pulsar: DevCluster
    spark: SparkCluster
    marks: int
    seed: int
    say: Callable[[str], None]
    _acts: int = 0

    @contextmanager
    def store(self) -> Iterator[MetadataStore]:
        """Open the metadata store for the block."""
        options: dict[str, Any] = {}
        if self.pulsar.zookeeper_digest is not None:
            user, _, password = self.pulsar.zookeeper_digest.partition(":")
            options = {"digest": (user, password), "acl": "creator"}
        with closing(open_store(self.pulsar.store_url, **options)) as store:
            yield store

    def site(self, act: str, **settings: str) -> DeletionSite:
        """Make deletion topics and the folder of an act."""
        folder = self.home / act
        share(folder)
        for shared in ("journal", "secrets"):
            share(folder / shared)
        with closing(PulsarAdmin(self.pulsar.connection(), timeout_s=60)) as admin:
            if TENANT not in admin.get_json("/tenants"):
                admin.put(f"/tenants/{TENANT}", {"allowedClusters": ["dev"]})
            for namespace in (act, "life"):
                if f"{TENANT}/{namespace}" not in admin.get_json(f"/namespaces/{TENANT}"):
                    admin.put(f"/namespaces/{TENANT}/{namespace}")
        site = DeletionSite.of(self.pulsar, f"{TENANT}/{act}", folder)
        rows = max(100, self.marks // _BATCHES)
        site.overrides = {
            **SETTINGS,
            "sweep.max_rows_per_batch": str(rows),
            "sweep.max_entries_per_batch": str(rows),
            **self._credentials(folder / "secrets"),
            **settings,
        }
        site.create_topics()
        return site

    def _credentials(self, folder: Path) -> dict[str, str]:
        """Give the settings for a secured Pulsar, whose files lie where each machine's user may read them."""
        if self.pulsar.zookeeper_digest is None:
            return {}
        connection = self.pulsar.connection()
        copies = {"token": connection.token_file, "ca.pem": connection.tls_trust_certs_file}
        for name, file in copies.items():
            assert file
            (folder / name).write_bytes(Path(file).read_bytes())
            (folder / name).chmod(0o640)
        user, _, password = self.pulsar.zookeeper_digest.partition(":")
        return {
            "pulsar.auth": "token",
            "pulsar.token_file": str(folder / "token"),
            "pulsar.tls_trust_certs_file": str(folder / "ca.pem"),
            "metadata_store.digest_user": user,
            "metadata_store.digest_password": password,
        }

    def submission(
        self, site: DeletionSite, script: str, conf: Mapping[str, str], *, name: str = "submit"
    ) -> Submission:
        """Make a submission of a script."""
        file = site.folder / f"{name}.yaml"
        written = site.settings.model_dump(mode="json")
        # No file has it: it comes from the environment of the driver, and travels in the tasks.
        written["metadata_store"].pop("digest_password")
        file.write_text(yaml.safe_dump(written))
        process = self.spark.submission(
            *(CHECKOUT / "streaming" / script, ["--config", str(file)], conf),
            name=f"{site.folder.name}-{name}",
            **self._environment(site),
        )
        return Submission(process, script)

    def planted(self, act: str, store: MetadataStore, **settings: str) -> Marks:
        """Make and mark the ledgers of an act."""
        site = self.site(act, **settings)
        marks = Marks(site, store, site.folder / "journal")
        self._acts += 1
        marks.plant(self._acts, self.marks, self.seed + self._acts)
        return marks

    @contextmanager
    def sweeping(self, marks: Marks, conf: Mapping[str, str]) -> Iterator[Submission]:
        """Sweep without end for the block, and then until all is settled; it is stopped in order."""
        submission = self.submission(marks.site, "ledger_deletion.py", conf)
        submission.start()
        try:
            yield submission
            self.settle(marks, submission)
        finally:
            submission.kill()

    def spring(
        self, gates: Gates, point: str, action: str, submission: Submission, passages: int = 0
    ) -> dict[str, Any]:
        """Set a gate, and wait until a process acted; return which."""
        known = len(gates.taken())
        gates.set(point, action, passages)

        def has_acted() -> bool:
            assert submission.process.is_running(), submission.process.log_since_start()[-3000:]
            return len(gates.taken()) > known

        eventually(has_acted, START_S, pause=0.05)
        return gates.taken()[-1]

    def settle(self, marks: Marks, submission: Submission) -> None:
        """Wait until all is settled, and stop the sweep in order."""

        def settled() -> bool:
            assert submission.process.is_running(), submission.process.log_since_start()[-3000:]
            return marks.settled()

        begun = time.monotonic()
        eventually(settled, _SETTLED_S, pause=0.5)
        submission.stop()
        self.say(f"  settled after {time.monotonic() - begun:.0f} s, and stopped in order")

    def account(self, marks: Marks) -> Account:
        """Account for the marks of an act, and print it."""
        account = marks.account(marks.site.folder / "submit.yaml", self._environment(marks.site))
        self.say(f"  {account}")
        return account

    def _environment(self, site: DeletionSite) -> dict[str, str]:
        password = site.settings.metadata_store.digest_password
        return {} if password is None else {_DIGEST_PASSWORD: password.get_secret_value()}
