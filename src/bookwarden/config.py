"""Settings: from a YAML file, the environment and flags, validated once at the edge.

Later sources win: defaults, then the file, then ``BOOKWARDEN_<SECTION>__<NAME>`` in the environment, then flags.
Every setting with its default and unit stands in conf/bookwarden.yaml.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from difflib import get_close_matches
from math import ceil
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, get_args

import yaml
from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError, model_validator
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

from bookwarden.errors import ConfigError, FormatError
from bookwarden.ledgers.names import TopicName
from bookwarden.ledgers.trash import KeepRule

CONFIG_VARIABLE = "BOOKWARDEN_CONFIG"
_PREFIX = "BOOKWARDEN_"
# Read by the development cluster, which has no section of its own.
OTHER_VARIABLES = ("BOOKWARDEN_CACHE", "BOOKWARDEN_SERVERS")


class _Section(BaseModel):
    # "nan" and "inf" are numbers for YAML, and for no setting.
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class OAuth2Settings(_Section):
    """Client credentials for OAuth2; the private key is a path, a file:// URL or a data: URL of its JSON."""

    issuer_url: str = ""
    private_key: SecretStr = SecretStr("")
    audience: str = ""
    scope: str = ""


class PulsarSettings(_Section):
    """Addresses of the Pulsar cluster, and how we authenticate to it."""

    service_url: str = "pulsar://127.0.0.1:6650"
    admin_url: str = "http://127.0.0.1:8080"
    auth: Literal["none", "token", "tls", "oauth2"] = "none"
    token: SecretStr | None = None
    token_file: str | None = None
    tls_certificate_file: str | None = None
    tls_private_key_file: str | None = None
    tls_trust_certs_file: str | None = None
    tls_allow_insecure: bool = False
    tls_validate_hostname: bool = True
    trusted_hosts: tuple[str, ...] = ()
    oauth2: OAuth2Settings = OAuth2Settings()
    client: dict[str, int | bool | str] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _addresses_agree(self) -> PulsarSettings:
        if not self.service_url.startswith(("pulsar://", "pulsar+ssl://")):
            raise ValueError(f"service_url {self.service_url!r} must begin with pulsar:// or pulsar+ssl://")
        if not self.admin_url.startswith(("http://", "https://")):
            raise ValueError(f"admin_url {self.admin_url!r} must begin with http:// or https://")
        for host in self.trusted_hosts:
            # An IPv6 address has more than one colon.
            if not re.fullmatch(r"[A-Za-z0-9_.:*-]+", host) or host.count(":") == 1:
                raise ValueError(f"trusted_hosts {host!r} must be a host without a port, such as broker-*.pulsar.svc")
        if self.auth == "token" and not (self.token or self.token_file):
            raise ValueError("auth is 'token', but neither token nor token_file is set")
        return self


class MetadataStoreSettings(_Section):
    """The metadata stores: every Pulsar metadata root, and the one that BookKeeper's metadata is in."""

    urls: tuple[str, ...] = Field(default=("zk:127.0.0.1:2181",), min_length=1)
    bookkeeper_url: str | None = None
    ledgers_root: str | None = None
    separate_roots: tuple[str, ...] = ()
    allow_unseen_roots: bool = False
    digest_user: str | None = None
    digest_password: SecretStr | None = None
    oxia_token: SecretStr | None = None
    oxia_concurrent_writers: bool = False
    tls: bool = False
    oxia_tls: bool | None = None
    tls_trust_certs_file: str | None = None
    tls_certificate_file: str | None = None
    tls_private_key_file: str | None = None
    session_timeout_seconds: float = Field(default=30.0, gt=0)
    operation_timeout_seconds: float = Field(default=30.0, gt=0)
    batch_size: int | None = Field(default=None, ge=1, le=1000)
    batches_in_flight: int = Field(default=8, ge=1, le=64)
    jute_maxbuffer: int = Field(default=1_048_575, ge=4096)
    max_requests_per_second: float | None = Field(default=None, gt=0)
    max_store_latency_ms: float | None = Field(default=1000.0, gt=0)
    migration_write_wait_seconds: float = Field(default=60.0, ge=0)
    migration_drain_seconds: float = Field(default=20.0, gt=0)

    @model_validator(mode="after")
    def _digest_is_whole(self) -> MetadataStoreSettings:
        if bool(self.digest_user) != bool(self.digest_password):
            raise ValueError("digest_user and digest_password go together; only one of them is set")
        return self

    @model_validator(mode="after")
    def _ends_before_a_migration_goes_on(self) -> MetadataStoreSettings:
        for name, most in _BEFORE_A_MIGRATION_GOES_ON.items():
            if getattr(self, name) > most:
                raise ValueError(
                    f"{name} {getattr(self, name):g} is more than {most:g}: when Pulsar moves its metadata to another "
                    "store it waits 60 s for each process to end its writes, and copies then"
                )
        return self


# In seconds; the flag of a migration may be 5 s old when a write is sent, and the target has to be connected.
_BEFORE_A_MIGRATION_GOES_ON = {"session_timeout_seconds": 40.0, "migration_drain_seconds": 45.0}


class BookKeeperSettings(_Section):
    """Connections to bookies for reading entries; their addresses come from the metadata store."""

    tls: bool = False
    tls_trust_certs_file: str | None = None
    tls_certificate_file: str | None = None
    tls_private_key_file: str | None = None
    tls_validate_hostname: bool = True
    connect_timeout_seconds: float = Field(default=5.0, gt=0)
    request_timeout_seconds: float = Field(default=10.0, gt=0)
    reads_in_flight: int = Field(default=500, ge=1, le=2000)
    bytes_in_flight: int = Field(default=32 * 1024 * 1024, ge=65_536)


def _persistent_topic(setting: str, name: str) -> TopicName:
    try:
        topic = TopicName.parse(name)
    except FormatError as error:
        raise ValueError(f"{setting}: {error}") from error
    if "://" not in name or topic.domain != "persistent" or not name.isprintable():
        raise ValueError(f"{setting}: {name!r} is not the full name of a persistent topic, persistent://...")
    return topic


class DeletionSettings(_Section):
    """Two-phase deletion; the names that begin with two_phase_deletion_ are PIP-186's."""

    topic_two_phase_deletion_enabled: bool = True
    topic: str = "persistent://pulsar/system/__ledger_deletion"
    retry_topic: str = "persistent://pulsar/system/__ledger_deletion-RETRY"
    dlq_topic: str = "persistent://pulsar/system/__ledger_deletion-DLQ"
    subscription: str = Field(default="ledger-deletion-worker", min_length=1)
    two_phase_deletion_ledger_deletion_parallelism: int = Field(default=4, ge=1, le=256)
    two_phase_deletion_reconsume_later_in_seconds: float = Field(default=600.0, gt=0)
    two_phase_deletion_max_retry_delete_count: int = Field(default=10, ge=0)
    still_referenced_grace_seconds: float | None = Field(default=None, ge=0)
    unlisted_grace_seconds: float = Field(default=600.0, ge=0)
    shadow_refresh_seconds: float = Field(default=600.0, ge=0)
    delete_delay_seconds: float = Field(default=0.0, ge=0)
    rollback_window_hours: float = Field(default=24.0, ge=0)
    bookie_cluster: str = ""

    @model_validator(mode="after")
    def _topics_are_three(self) -> DeletionSettings:
        names = ("topic", "retry_topic", "dlq_topic")
        topics = [_persistent_topic(name, getattr(self, name)) for name in names]
        if len(set(topics)) < len(names):
            raise ValueError(f"{', '.join(names)} must be three topics: what is sent on would come back at once")
        return self

    @property
    def still_referenced_grace(self) -> float:
        """Time for which a mark waits for its metadata update, in seconds; one retry delay unless set."""
        if self.still_referenced_grace_seconds is None:
            return self.two_phase_deletion_reconsume_later_in_seconds
        return self.still_referenced_grace_seconds


class OffloadStoreSettings(_Section):
    """One store of offloaded copies, as the brokers recorded it, and its credentials."""

    driver: Literal["S3", "aws-s3", "google-cloud-storage", "azureblob", "filesystem"]
    endpoint: str = ""  #: A URL, or the base path of a file system.
    buckets: tuple[str, ...] = ()  #: Copies may be deleted in these.
    region: str = ""  #: "" allows every region.
    access_key: str | None = None  #: S3; None: AWS's own chain finds credentials.
    secret_key: SecretStr | None = None  #: S3, with ``access_key``.
    profile: str | None = None  #: S3: a profile in AWS's configuration files.
    path_style: bool | None = None  #: S3: buckets in the path; None: with an endpoint only.
    tls_trust_certs_file: str | None = None  #: S3: trusted authorities, PEM.
    service_account_file: str | None = None  #: Google's key file; None: Google's own chain finds credentials.
    account_url: str | None = None  #: Azure, which brokers do not record.
    account_name: str | None = None  #: Azure; only where ``account_url`` does not tell it.
    account_key: SecretStr | None = None  #: Azure; None: Azure's own chain finds credentials.
    mount: str | None = None  #: The file system's base path on this machine, if it is another one.

    @model_validator(mode="after")
    def _credentials_fit_the_driver(self) -> OffloadStoreSettings:
        given = self.model_fields_set - _OF_EVERY_DRIVER
        foreign = sorted(name for name in given - _OF_DRIVER[self.driver] if getattr(self, name) is not None)
        if foreign:
            raise ValueError(f"driver {self.driver!r} has no {foreign[0]}")
        if bool(self.access_key) != bool(self.secret_key):
            raise ValueError("access_key and secret_key go together; only one of them is set")
        if self.driver == "S3" and not self.endpoint:
            raise ValueError("driver 'S3' needs the endpoint, as the brokers' managedLedgerOffloadServiceEndpoint")
        if self.driver == "azureblob" and not self.account_url:
            raise ValueError("driver 'azureblob' needs account_url, since brokers do not record the account")
        if self.driver == "filesystem" and not self.endpoint:
            raise ValueError("driver 'filesystem' needs the endpoint: the brokers' fs.defaultFS")
        if self.driver != "filesystem" and not self.buckets:
            raise ValueError(f"driver {self.driver!r} needs buckets: nothing is deleted in others")
        return self


_OF_EVERY_DRIVER = {"driver", "endpoint", "buckets", "region"}
_OF_S3 = {"access_key", "secret_key", "profile", "path_style", "tls_trust_certs_file"}
_OF_DRIVER = {
    "S3": _OF_S3,
    "aws-s3": _OF_S3,
    "google-cloud-storage": {"service_account_file"},
    "azureblob": {"account_url", "account_name", "account_key"},
    "filesystem": {"mount"},
}


class OffloadSettings(_Section):
    """Offloaded copies: the stores where they may be deleted, and the limits of requests to them."""

    stores: tuple[OffloadStoreSettings, ...] = ()
    verify_owner: bool = True
    abort_uploads: bool = True
    attempts: int = Field(default=5, ge=1, le=100)
    parallel_requests: int = Field(default=16, ge=1, le=256)
    connect_timeout_seconds: float = Field(default=5.0, gt=0)
    read_timeout_seconds: float = Field(default=20.0, gt=0)


class SweepSettings(_Section):
    """Phase two: the places of its state, the size of a batch, and the limits of the supervisor."""

    checkpoint: str = "var/checkpoint"
    outcomes: str = "var/outcomes"
    outcomes_retention_days: int | None = Field(default=None, ge=1)
    journal: str = "var/journal"
    journal_retention_days: float | None = Field(default=None, ge=1)
    journal_per_machine: bool = False
    lock: str = "/bookwarden/sweeps"
    dry_run: bool = False
    max_entries_per_batch: int = Field(default=20_000, ge=1)
    max_rows_per_batch: int = Field(default=50_000, ge=1)
    ledgers_per_step: int = Field(default=1_000, ge=1, le=100_000)
    max_waiting_marks: int = Field(default=10_000, ge=0)
    trigger_seconds: float = Field(default=0.0, ge=0)
    min_poll_milliseconds: int = Field(default=50, ge=0)
    max_unreachable_seconds: float = Field(default=120.0, gt=0)
    lost_ledger_seconds: float = Field(default=3600.0, gt=0)
    stall_seconds: float = Field(default=300.0, gt=0)
    max_failures: int = Field(default=10, ge=1)
    failure_window_seconds: float = Field(default=3600.0, gt=0)
    backoff_seconds: float = Field(default=1.0, gt=0)
    max_backoff_seconds: float = Field(default=60.0, gt=0)
    stop_timeout_seconds: float = Field(default=60.0, gt=0)

    @model_validator(mode="after")
    def _journal_is_known(self) -> SweepSettings:
        if "://" in self.journal and not re.fullmatch(r"s3://[^/]+(/.*)?", self.journal):
            raise ValueError(f"journal {self.journal!r} is neither a folder nor s3://bucket/prefix")
        if "://" in self.journal and self.journal_retention_days is not None:
            raise ValueError("journal_retention_days is for a folder; in an object store give the bucket a lifecycle")
        return self


class FollowSettings(_Section):
    """Following what brokers drop: the place of its state, its time of grace, and the size of a batch."""

    checkpoint: str = Field(default="var/follow", min_length=1)
    outcomes: str = "var/follow-outcomes"
    outcomes_retention_days: int | None = Field(default=None, ge=1)
    lock: str = "/bookwarden/follow"
    dry_run: bool = False
    grace_seconds: float = Field(default=600.0, gt=0)
    trigger_seconds: float = Field(default=1.0, ge=0)
    ledgers_per_batch: int = Field(default=10_000, ge=1)
    max_pending: int = Field(default=10_000_000, ge=0)
    compare_hours: float = Field(default=24.0, gt=0)


class TrashRuleSettings(_Section):
    """Times for which the trash keeps what the namespaces of a pattern drop."""

    namespaces: str = Field(pattern=r"^[^/\[\]\s]+/[^\[\]\s]+$")
    keep_deleted_hours: float = Field(default=0.0, ge=0)
    keep_trimmed_hours: float = Field(default=0.0, ge=0)


class TrashSettings(_Section):
    """The trash of brokers in mode two-phase: what is kept, and how much."""

    rules: tuple[TrashRuleSettings, ...] = ()
    max_bytes: int = Field(default=100 * 2**30, ge=0)
    min_free_disk_ratio: float = Field(default=0.15, ge=0, lt=1)
    max_overdue_hours: float = Field(default=1.0, gt=0)

    @property
    def keep_rules(self) -> tuple[KeepRule, ...]:
        """The rules in whole seconds, the first that matches first."""
        return tuple(
            KeepRule(rule.namespaces, ceil(rule.keep_deleted_hours * 3600), ceil(rule.keep_trimmed_hours * 3600))
            for rule in self.rules
        )


class OrphanSettings(_Section):
    """The orphan scan: the folder of scans and plans, the least age, and the limits of a plan."""

    folder: str = Field(default="var/orphans", min_length=1)
    min_age_days: float = Field(default=3.0, ge=0)
    longest_compaction_hours: float = Field(default=12.0, ge=0)
    max_share: float = Field(default=0.2, gt=0, le=1)
    max_emptied: int = Field(default=10, ge=0)
    max_plan_age_hours: float = Field(default=24.0, gt=0)
    seen_apart_hours: float = Field(default=24.0, ge=0)
    max_clock_skew_seconds: float = Field(default=300.0, ge=0)
    max_reads_per_second: float | None = Field(default=None, gt=0)
    ledgers_per_batch: int = Field(default=1_000, ge=1, le=100_000)
    inventories: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _no_compaction_is_too_old(self) -> OrphanSettings:
        if self.min_age_days * 24 < self.longest_compaction_hours:
            raise ValueError(
                f"min_age_days {self.min_age_days:g} is less than longest_compaction_hours "
                f"{self.longest_compaction_hours:g}: nothing names the ledger of a compaction under way"
            )
        return self


class DiskSettings(_Section):
    """The account of disk space: its folder, and how many open ledgers bookies are asked for."""

    folder: str = Field(default="var/disk", min_length=1)
    open_ledgers_asked: int = Field(default=10_000, ge=0)


class MetricsSettings(_Section):
    """The Prometheus endpoint of a stream's driver, and where commands that end leave their metrics."""

    host: str = "127.0.0.1"
    port: int = Field(default=0, ge=0, le=65535)
    textfile_folder: str = ""
    push_gateway: str = Field(default="", pattern=r"^(https?://[^/?#@]+(/[^?#]*)?)?$")
    cluster: str = Field(default="", pattern=r"^[A-Za-z0-9_.-]*$")


class ServeSettings(_Section):
    """REST and the web page by `bookwarden serve`; without a token only this machine may call it."""

    host: str = "127.0.0.1"
    port: int = Field(default=8089, ge=1, le=65535)
    token: SecretStr | None = None
    token_file: str | None = None
    tls_certificate_file: str | None = None
    tls_private_key_file: str | None = None
    prometheus_url: str = Field(default="", pattern=r"^(https?://[^/?#@]+(/[^?#]*)?)?$")


class ClientUrlSettings(_Section):
    """Addresses of a cluster as its clients reach it; they are what clients of the other are redirected to."""

    web_service_url: str = ""
    web_service_url_tls: str = ""
    broker_service_url: str = ""
    broker_service_url_tls: str = ""

    @model_validator(mode="after")
    def _schemes_fit(self) -> ClientUrlSettings:
        for name, scheme in _SCHEMES_OF_URLS.items():
            url = getattr(self, name)
            if url and not url.startswith(scheme):
                raise ValueError(f"{name} {url!r} must begin with {scheme}")
        return self


_SCHEMES_OF_URLS = {
    "web_service_url": "http://",
    "web_service_url_tls": "https://",
    "broker_service_url": "pulsar://",
    "broker_service_url_tls": "pulsar+ssl://",
}


class ClusterSideSettings(_Section):
    """One of the clusters of a migration; for blue, the sections pulsar and metadata_store hold where it has none."""

    cluster: str = ""  #: Its name; "": its broker reports it.
    pulsar: PulsarSettings | None = None
    metadata_store: MetadataStoreSettings | None = None


class GreenSideSettings(ClusterSideSettings):
    """The cluster that clients go to."""

    clients: ClientUrlSettings = ClientUrlSettings()


class ClusterMigrationSettings(_Section):
    """The clusters of a migration of clients (PIP-188): blue, which they leave, and green."""

    blue: ClusterSideSettings = ClusterSideSettings()
    green: GreenSideSettings = GreenSideSettings()
    journal: str = Field(default="var/cluster-migration", min_length=1)


class LogSettings(_Section):
    """The log file of commands that run for long."""

    file: str | None = None


class SparkSettings(_Section):
    """Spark as the sweep starts it when not started by spark-submit."""

    master: str = "local[*]"
    conf: dict[str, str] = Field(default_factory=dict)
    class_archives: bool = True


class Settings(BaseSettings):
    """All settings of bookwarden."""

    model_config = SettingsConfigDict(env_prefix=_PREFIX, env_nested_delimiter="__", frozen=True, extra="forbid")

    pulsar: PulsarSettings = PulsarSettings()
    metadata_store: MetadataStoreSettings = MetadataStoreSettings()
    bookkeeper: BookKeeperSettings = BookKeeperSettings()
    deletion: DeletionSettings = DeletionSettings()
    offload: OffloadSettings = OffloadSettings()
    sweep: SweepSettings = SweepSettings()
    follow: FollowSettings = FollowSettings()
    trash: TrashSettings = TrashSettings()
    orphans: OrphanSettings = OrphanSettings()
    disk: DiskSettings = DiskSettings()
    metrics: MetricsSettings = MetricsSettings()
    serve: ServeSettings = ServeSettings()
    cluster_migration: ClusterMigrationSettings = ClusterMigrationSettings()
    log: LogSettings = LogSettings()
    spark: SparkSettings = SparkSettings()

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Order the sources: flags (the init arguments), the environment, the file."""
        return init_settings, env_settings, InitSettingsSource(settings_cls, _file_values.get())


_file_values: ContextVar[dict[str, Any]] = ContextVar("file_values")


def load_settings(file: str | Path | None = None, overrides: Mapping[str, str] | None = None) -> Settings:
    """Read the settings; `file` defaults to what BOOKWARDEN_CONFIG names, and to none.

    `overrides` are flags: dotted names such as ``sweep.dry_run`` to YAML scalars. Raises ConfigError that names
    the setting, where it was set and what it should be; a secret's text is never part of it.
    """
    path = file or os.environ.get(CONFIG_VARIABLE)
    _refuse_unknown_variables()
    flags = _nest(overrides or {})
    reset = _file_values.set(_read_file(Path(path)) if path else {})
    try:
        return Settings(**flags)
    except (ValidationError, SettingsError) as error:
        raise ConfigError(_describe(error, path)) from None
    finally:
        _file_values.reset(reset)


class SettingValue(NamedTuple):
    """The value of one setting; secrets in it are masked."""

    name: str
    value: Any  #: Of JSON's types.
    origin: str  #: ``default``, ``file PATH``, ``environment VARIABLE`` or ``--set``.


def values_with_origins(
    settings: Settings, file: str | Path | None = None, overrides: Mapping[str, str] | None = None
) -> list[SettingValue]:
    """List the values of ``settings``, which was loaded from the same file and flags, and say where each is from."""
    path = file or os.environ.get(CONFIG_VARIABLE)
    environment = EnvSettingsSource(Settings)()
    sources = (
        (lambda _: "--set", _nest(overrides or {})),
        (_variable_of, environment),
        (lambda _: f"file {path}", _read_file(Path(path)) if path else {}),
    )

    def origin(name: tuple[str, ...]) -> str:
        return next((tell(name) for tell, values in sources if _has(values, name)), "default")

    leaves = _leaves(settings.model_dump(mode="json"), ())
    return [SettingValue(".".join(name), _masked(name, value), origin(name)) for name, value in leaves]


def _leaves(values: Mapping[str, Any], above: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, value in values.items():
        if isinstance(value, dict) and value:
            yield from _leaves(value, (*above, name))
        else:
            yield (*above, name), value


def _has(values: Any, name: tuple[str, ...]) -> bool:
    for part in name:
        if not isinstance(values, dict) or part not in values:
            return False
        values = values[part]
    return True


def _variable_of(name: tuple[str, ...]) -> str:
    """Return what names the variable of a setting, or of what it is in."""
    variables = {variable.upper(): variable for variable in os.environ}
    for end in range(len(name), 1, -1):
        variable = f"{_PREFIX}{'__'.join(name[:end])}".upper()
        if variable in variables:
            return f"environment {variables[variable]}"
    return "environment"


# Names in free sections (spark.conf, pulsar.client) whose values are secrets, as Spark's own redaction finds them.
_SECRET_NAME: Final = re.compile(
    r"secret|password|passwd|token|credential|access[._-]?key|private[._-]?key", re.IGNORECASE
)
_FREE_SECTIONS: Final = (("spark", "conf"), ("pulsar", "client"))
_MASK: Final = "**********"


def _masked(name: tuple[str, ...], value: Any) -> Any:
    if name[:2] in _FREE_SECTIONS and value and _SECRET_NAME.search(f"{'.'.join(name[2:])} {value}"):
        return _MASK
    if isinstance(value, str):
        # A user and password in a URL.
        return re.sub(r"(?<=://)[^/@\s]*:[^/@\s]*(?=@)", _MASK, value)
    if isinstance(value, dict):
        return {key: _masked(name, one) for key, one in value.items()}
    return [_masked(name, one) for one in value] if isinstance(value, list) else value


def exposed_files(settings: Settings) -> list[tuple[str, str]]:
    """List the files with a token that other users of this machine may read or change: the setting, and what is wrong.

    One that does not exist, or may not be looked at, is not in the list: the code that reads it reports that.
    """
    found = []
    for name, path in _token_files(settings):
        try:
            mode = stat.S_IMODE(os.stat(path).st_mode)
        except OSError:
            continue
        others = mode & (stat.S_IRWXO | stat.S_IWGRP)
        if others:
            may = "change" if others & (stat.S_IWOTH | stat.S_IWGRP) else "read"
            found.append((name, f"{path} has mode {mode:o}: other users may {may} the token in it"))
    return found


def _token_files(settings: Settings) -> Iterator[tuple[str, str]]:
    migration = settings.cluster_migration
    for name, section in (
        ("pulsar", settings.pulsar),
        ("serve", settings.serve),
        ("cluster_migration.blue.pulsar", migration.blue.pulsar),
        ("cluster_migration.green.pulsar", migration.green.pulsar),
    ):
        if section is not None and section.token_file:
            yield f"{name}.token_file", section.token_file


def settings_schema() -> str:
    """Render the JSON schema of a settings file, for editors and for checks before a deployment."""
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **Settings.model_json_schema()}
    return json.dumps(schema, indent=2) + "\n"


def _read_file(path: Path) -> dict[str, Any]:
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"settings file {path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"settings file {path} is not text in UTF-8: byte {error.start} is not") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" in line {mark.line + 1}" if mark else ""
        raise ConfigError(f"settings file {path} is not valid YAML{where}") from None
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise ConfigError(f"settings file {path} must hold sections such as 'pulsar:', not a {type(values).__name__}")
    return {name: value for name, value in values.items() if value is not None}


def _refuse_unknown_variables() -> None:
    known = {CONFIG_VARIABLE, *OTHER_VARIABLES}
    for variable in os.environ:
        if not variable.upper().startswith(_PREFIX) or variable.upper() in known:
            continue
        section, *rest = name = variable[len(_PREFIX) :].lower().split("__")
        if not rest or not _exists(section, rest[0]):
            raise ConfigError(f"{_no_such_setting('.'.join(name))} (environment variable {variable})")


def _exists(section: str, setting: str) -> bool:
    field = Settings.model_fields.get(section)
    return field is not None and isinstance(field.default, BaseModel) and setting in type(field.default).model_fields


def _describe_problem(name: str, kind: str, text: str) -> str:
    if kind == "extra_forbidden":
        return _no_such_setting(name)
    if kind == "tuple_type":
        return f'{name} must be a list, such as ["one", "another"]'
    if kind == "too_short":
        return f"{name} must not be empty"
    return f"{name}: {text}"


def _no_such_setting(name: str) -> str:
    # Of a list the location has the number of the item.
    plain = re.sub(r"\.\d+(?=\.|$)", "", name)
    known = list(_names(Settings, ""))
    if plain in known:
        return f"there is no setting {name!r}: it is a section; name one of its settings"
    near = get_close_matches(plain, known, 1)
    return f"there is no setting {name!r}; " + (
        f"did you mean {near[0]}?" if near else "`bookwarden docs conf/bookwarden.yaml` has them all"
    )


def _names(model: type[BaseModel], above: str) -> Iterator[str]:
    """Yield the names of all settings and sections, those of items of lists without a number."""
    for name, field in model.model_fields.items():
        yield above + name
        # Of an optional section, or of a list of them, too.
        for kind in (field.annotation, *get_args(field.annotation)):
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                yield from _names(kind, f"{above}{name}.")


def _nest(overrides: Mapping[str, str]) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    for name, text in overrides.items():
        section, *rest = name.split(".")
        if not rest or not _exists(section, rest[0]):
            raise ConfigError(_no_such_setting(name))
        target = nested.setdefault(section, {})
        for part in rest[:-1]:
            target = target.setdefault(part, {})
        try:
            target[rest[-1]] = yaml.safe_load(text)
        except yaml.YAMLError:
            raise ConfigError(f"the value given for {name} is not a YAML scalar") from None
    return nested


def _describe(error: ValidationError | SettingsError, path: str | Path | None) -> str:
    where = f" (from {path}, the environment or flags)" if path else " (from the environment or flags)"
    if isinstance(error, SettingsError):
        return f"a setting{where} is not usable: {error}"
    parts = []
    for problem in error.errors(include_url=False, include_input=False, include_context=False):
        location = ".".join(str(part) for part in problem["loc"])
        parts.append(_describe_problem(location, problem["type"], problem["msg"].removeprefix("Value error, ")))
    return f"settings{where} are not usable: {'; '.join(parts)}"
