"""Settings: their sources, their order, what is refused, and what is never shown."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from pydantic import BaseModel, ValidationError

from bookwarden.config import Settings, TrashSettings, load_settings
from bookwarden.errors import ConfigError
from bookwarden.ledgers.trash import KeepRule
from bookwarden.wiring.pulsar import connection_of

REFERENCE = Path(__file__).parents[2] / "conf" / "bookwarden.yaml"


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BOOKWARDEN_CONFIG", raising=False)


def names(section: type[BaseModel]) -> set[str]:
    return set(section.model_fields)


def test_the_reference_file_holds_every_setting_with_its_default() -> None:
    written = yaml.safe_load(REFERENCE.read_text())
    assert load_settings(REFERENCE) == load_settings()
    assert set(written) == names(Settings)
    for name, field in Settings.model_fields.items():
        assert set(written[name]) == names(type(field.default)), name


def test_flags_win_over_the_environment_and_that_over_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("sweep: {max_failures: 1, stall_seconds: 1, backoff_seconds: 1}")
    monkeypatch.setenv("BOOKWARDEN_SWEEP__STALL_SECONDS", "2")
    monkeypatch.setenv("BOOKWARDEN_SWEEP__BACKOFF_SECONDS", "2")
    sweep = load_settings(file, {"sweep.backoff_seconds": "3"}).sweep
    assert (sweep.max_failures, sweep.stall_seconds, sweep.backoff_seconds) == (1, 2, 3)


def test_the_file_is_found_through_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("metrics: {port: 9999}")
    monkeypatch.setenv("BOOKWARDEN_CONFIG", str(file))
    assert load_settings().metrics.port == 9999


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        ({"metrics.prt": "1"}, "there is no setting 'metrics.prt'"),
        ({"metrics": "1"}, "there is no setting 'metrics'"),
        ({"metrics.port": "70000"}, "metrics.port"),
        ({"metrics.port": "[1"}, "not a YAML scalar"),
        ({"pulsar.auth": "kerberos"}, "pulsar.auth"),
        ({"pulsar.auth": "token"}, "neither token nor token_file"),
        ({"pulsar.service_url": "http://x"}, "must begin with pulsar://"),
        ({"pulsar.admin_url": "pulsar://x"}, "must begin with http://"),
        ({"metadata_store.digest_user": "me"}, "go together"),
        ({"metadata_store.urls": "[]"}, "metadata_store.urls"),
        ({"deletion.subscription": "''"}, "deletion.subscription"),
        (
            {"deletion.topic": "__ledger_deletion"},
            "topic: '__ledger_deletion' is not the full name",
        ),
        ({"deletion.topic": "non-persistent://a/b/c"}, "not the full name of a persistent topic"),
        ({"deletion.dlq_topic": "persistent://a/b"}, "dlq_topic: topic name 'persistent://a/b' has too few parts"),
        ({"deletion.dlq_topic": '"persistent://a/b/c\\n"'}, "not the full name of a persistent topic"),
        ({"deletion.retry_topic": "persistent://pulsar/system/__ledger_deletion"}, "must be three topics"),
        ({"deletion.delete_delay_seconds": ".inf"}, "deletion.delete_delay_seconds"),
        ({"orphans.min_age_days": "0.4"}, "min_age_days 0.4 is less than longest_compaction_hours 12"),
        ({"orphans.longest_compaction_hours": "73"}, "less than longest_compaction_hours 73"),
        ({"orphans.max_share": "0"}, "orphans.max_share"),
        ({"orphans.max_share": "1.01"}, "orphans.max_share"),
        ({"orphans.max_share": ".nan"}, "orphans.max_share"),
        ({"orphans.max_plan_age_hours": "0"}, "orphans.max_plan_age_hours"),
        ({"orphans.seen_apart_hours": "-1"}, "orphans.seen_apart_hours"),
        ({"orphans.max_reads_per_second": "0"}, "orphans.max_reads_per_second"),
        ({"orphans.ledgers_per_batch": "0"}, "orphans.ledgers_per_batch"),
        ({"orphans.folder": "''"}, "orphans.folder"),
        ({"sweep.journal": "gs://bucket/x"}, "s3://bucket/prefix"),
        ({"sweep.journal": "s3:///x"}, "s3://bucket/prefix"),
        ({"sweep.journal": "s3://b", "sweep.journal_retention_days": "3"}, "lifecycle"),
    ],
)
def test_what_cannot_work_is_refused_by_name(overrides: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_settings(overrides=overrides)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_misspelt_variable_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BOOKWARDEN_SWEEP__DRYRUN", "true")
    with pytest.raises(
        ConfigError, match=r"did you mean sweep.dry_run\? \(environment variable BOOKWARDEN_SWEEP__DRYRUN\)"
    ):
        load_settings()


@pytest.mark.parametrize("text", ["[1, 2]", "a: [", "pulsar: {nothing: 1}", "unknown: {}"])
def test_a_malformed_file_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match="settings"):
        load_settings(file)


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_bytes(b"pulsar:\n  \xe5\xff")
    with pytest.raises(ConfigError, match="not text in UTF-8: byte 10"):
        load_settings(file)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        load_settings(tmp_path / "none.yaml")


def test_secrets_are_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BOOKWARDEN_PULSAR__TOKEN", "sesame-1")
    monkeypatch.setenv("BOOKWARDEN_METADATA_STORE__DIGEST_PASSWORD", "sesame-2")
    monkeypatch.setenv("BOOKWARDEN_METADATA_STORE__DIGEST_USER", "me")
    monkeypatch.setenv("BOOKWARDEN_PULSAR__OAUTH2__PRIVATE_KEY", "data:,sesame-3")
    settings = load_settings(overrides={"pulsar.auth": "token"})
    assert settings.pulsar.oauth2.private_key.get_secret_value() == "data:,sesame-3"
    assert connection_of(settings.pulsar).oauth2 == {"private_key": "data:,sesame-3"}
    assert settings.pulsar.token is not None
    assert settings.pulsar.token.get_secret_value() == "sesame-1"
    assert "sesame" not in f"{settings!r} {settings} {settings.model_dump_json()} {settings.pulsar.oauth2!r}"


@pytest.mark.parametrize("host", ["http://b", "b:8080", "b/", "", "a b"])
def test_a_trusted_host_that_is_none_is_refused(host: str) -> None:
    with pytest.raises(ConfigError, match="trusted_hosts"):
        load_settings(overrides={"pulsar.trusted_hosts": f"['{host}']"})


def test_trusted_hosts_reach_the_connection() -> None:
    settings = load_settings(overrides={"pulsar.trusted_hosts": "['broker-*.svc', '::1']"})
    assert connection_of(settings.pulsar).trusted_hosts == ("broker-*.svc", "::1")


def test_a_refusal_shows_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BOOKWARDEN_METADATA_STORE__DIGEST_PASSWORD", "sesame")
    with pytest.raises(ConfigError) as caught:
        load_settings()
    assert "sesame" not in str(caught.value)


def test_the_grace_of_a_mark_is_one_retry_delay_unless_set() -> None:
    assert load_settings().deletion.still_referenced_grace == 600
    assert (
        load_settings(overrides={"deletion.still_referenced_grace_seconds": "0"}).deletion.still_referenced_grace == 0
    )


def test_the_trash_keeps_nothing_unless_a_rule_says_so() -> None:
    assert load_settings().trash.keep_rules() == ()
    rules = [{"namespaces": "x/y*", "keep_deleted_hours": 0.0001}, {"namespaces": "*/*", "keep_trimmed_hours": 1.5}]
    trash = TrashSettings.model_validate({"rules": rules})
    assert trash.keep_rules() == (KeepRule("x/y*", 1, 0), KeepRule("*/*", 0, 5400))


@pytest.mark.parametrize("pattern", ["public", "/x", "x/", "x/[ab]", "x/a b"])
def test_a_pattern_of_namespaces_that_matches_none_is_refused(pattern: str) -> None:
    with pytest.raises(ValidationError, match=r"rules\.0\.namespaces"):
        TrashSettings.model_validate({"rules": [{"namespaces": pattern}]})
