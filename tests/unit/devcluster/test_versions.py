"""The table of released servers, and what differs between versions: pinned, in order, and each difference by name."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from collections.abc import Callable

import pytest

from bookwarden_dev.devcluster.releases.versions import (
    OFFLOADERS,
    OXIA_0_14_0,
    PULSAR,
    PULSAR_4_2_4,
    Release,
    can_batch_nothing,
    marks_by_broker,
    number_of,
    offloads,
    takes_the_jar,
)
from bookwarden_dev.devcluster.servers.settings import PULSAR_VERSIONS

_MAVEN = "{http://maven.apache.org/POM/4.0.0}"


def test_every_release_is_pinned_and_the_oldest_comes_first() -> None:
    assert list(PULSAR) == sorted(PULSAR, key=number_of)
    assert number_of("5.0.0-M1") == (5, 0, 0)
    assert set(PULSAR_VERSIONS) <= set(PULSAR)
    for release in (*PULSAR.values(), *OFFLOADERS.values()):
        digest = release.sha512 if isinstance(release, Release) else release.sha256
        assert len(bytes.fromhex(digest)) == (64 if isinstance(release, Release) else 32)
        assert release.size > 10**7
    assert OXIA_0_14_0.modules.is_file()
    assert OXIA_0_14_0.checksums.is_file()


def test_a_project_names_the_broker_its_boms_and_what_is_left_out() -> None:
    project = ElementTree.fromstring(PULSAR_4_2_4.project)
    named = [
        tuple(element.findtext(f"{_MAVEN}{name}") for name in ("artifactId", "version", "type", "scope"))
        for element in project.iter(f"{_MAVEN}dependency")
    ]
    assert named == [
        ("opentelemetry-bom", "1.62.0", "pom", "import"),
        ("log4j-bom", "2.25.4", "pom", "import"),
        ("pulsar-broker", "4.2.4", None, None),
    ]
    assert [element.findtext(f"{_MAVEN}artifactId") for element in project.iter(f"{_MAVEN}exclusion")] == ["zookeeper"]


@pytest.mark.parametrize(
    ("can", "versions"),
    [
        (offloads, ("4.0.8",)),
        (can_batch_nothing, ("4.2.4",)),
        (takes_the_jar, ("4.0.1", "4.0.6", "4.0.8", "4.2.4", "5.0.0-M1")),
        (marks_by_broker, ("4.0.6", "4.0.8", "4.2.4", "5.0.0-M1")),
    ],
)
def test_what_a_version_can_do(can: Callable[[str], bool], versions: tuple[str, ...]) -> None:
    assert tuple(version for version in PULSAR if can(version)) == versions
