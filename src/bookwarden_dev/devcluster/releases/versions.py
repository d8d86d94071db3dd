"""Released servers that can be had, a row for each, and what differs between versions of Pulsar, a name for each."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

GoVersion = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Release:
    """A released distribution."""

    version: str  #: In the coordinates of the archive.
    sha512: str  #: Of the archive, in hex.
    size: int  #: Of the archive, in bytes.
    distribution: str = "pulsar-server-distribution"  #: Maven's artifact id.
    folder: str = "apache-pulsar"  #: The one folder inside the archive, without the version.
    only: tuple[str, ...] = ()  #: Parts of names: a file is unpacked if its name has one of them; empty for all files.
    title: str = "Pulsar"  #: For people.

    @property
    def artifact(self) -> str:
        """The Maven coordinates of the archive."""
        return f"org.apache.pulsar:{self.distribution}:{self.version}:tar.gz:bin"

    @property
    def archive_name(self) -> str:
        """The file name that Maven gives the archive."""
        return f"{self.distribution}-{self.version}-bin.tar.gz"

    @property
    def folder_name(self) -> str:
        """The one folder inside the archive."""
        return f"{self.folder}-{self.version}"

    def unpacks(self, name: str) -> bool:
        """Return whether a file of the archive is unpacked."""
        return not self.only or any(part in name for part in self.only)


@dataclass(frozen=True, slots=True)
class ResolvedRelease:
    """A release of which no distribution is published, by its jars, and the SHA-256 of the list of their SHA-256.

    The list is that of Linux with Java 11 or newer; ``size`` (bytes) is that of all jars.
    """

    version: str
    sha256: str
    size: int
    #: BOMs, as "group:artifact:version": without them some modules of one library come from one version, some from
    #: another.
    boms: tuple[str, ...]
    #: What is left out, as "group:artifact".
    without: tuple[str, ...] = ()

    @property
    def artifact(self) -> str:
        """The Maven coordinates of the artifact that needs all the jars."""
        return f"org.apache.pulsar:pulsar-broker:{self.version}"

    @property
    def folder_name(self) -> str:
        """The name of its folder in the cache."""
        return f"pulsar-broker-{self.version}"

    @property
    def project(self) -> str:
        """Maven's project file that names the jars."""
        boms = "".join(
            f"<dependency>{_coordinates(bom)}<type>pom</type><scope>import</scope></dependency>" for bom in self.boms
        )
        without = "".join(f"<exclusion>{_coordinates(each)}</exclusion>" for each in self.without)
        return (
            '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
            f"{_coordinates(f'bookwarden:pulsar-servers:{self.version}')}<packaging>pom</packaging>"
            f"<dependencyManagement><dependencies>{boms}</dependencies></dependencyManagement>"
            f"<dependencies><dependency>{_coordinates(self.artifact)}<exclusions>{without}</exclusions></dependency>"
            "</dependencies></project>\n"
        )


def _coordinates(text: str) -> str:
    names = ("groupId", "artifactId", "version")
    return "".join(f"<{name}>{value}</{name}>" for name, value in zip(names, text.split(":"), strict=False))


@dataclass(frozen=True, slots=True)
class GoRelease:
    """A server that Go builds: its version, its package, and the oldest Go that its module takes.

    ``modules`` and ``checksums`` are the go.mod and go.sum that pin all that it is built from.
    """

    name: str
    version: str
    package: str
    oldest_go: GoVersion

    @property
    def folder_name(self) -> str:
        """The name of its folder in the cache."""
        return f"{self.name}-{self.version}"

    @property
    def modules(self) -> Path:
        """The go.mod of its build."""
        return Path(__file__).with_name(f"{self.folder_name}.mod")

    @property
    def checksums(self) -> Path:
        """The go.sum of its build."""
        return Path(__file__).with_name(f"{self.folder_name}.sum")


# Pulsar brings ZooKeeper's classes in a jar of its own; of two copies Java would take either.
_ZOOKEEPER_TWICE: Final = ("org.apache.zookeeper:zookeeper",)

PULSAR_3_0_7: Final = ResolvedRelease(
    "3.0.7",
    "e491f80942145d96d4d3c77d3c6a2be461e023a453c402bf52a0d1dba59f9805",
    207_955_105,
    ("org.apache.pulsar:pulsar:3.0.7",),
)
PULSAR_3_3_6: Final = Release(
    "3.3.6",
    "c8a91ebea6fdf8528ec1c00b073bfe40ac54531302536feeb3027796364f0ee9"
    "6ff71ddbdbfdb30b036fad8953a1e792b2ec1e348b00f7d4f6b75f1f75e519c0",
    217_376_903,
)
PULSAR_4_0_1: Final = ResolvedRelease(
    "4.0.1",
    "ca160f33598cdc3e83c9c6ee94285b47b653a9f2fbe1f9c8160991d4de2b749f",
    238_411_895,
    ("org.apache.pulsar:pulsar:4.0.1",),
)
PULSAR_4_0_6: Final = Release(
    "4.0.6",
    "ac174f604e94473215e07024d05853dbf24bf1520ec222c8bb0d87707a5f1267"
    "49df7d5733e06a2423456421489ed371e122f4f5a7793a5146a5a1b47f437e90",
    244_273_144,
)
PULSAR_4_0_8: Final = Release(
    "4.0.8",
    "65b769b10696cdfebf7fc5bcdc95dd663702e27051e616c1a13cb100e91279525"
    "be35352171befe7b0011176330aab29bd0a6c8a0f2f0646641af46d2e33cbd6",
    245_494_718,
)
PULSAR_4_2_4: Final = ResolvedRelease(
    "4.2.4",
    "8e7c6b95ed226d33c4bcc5dd173e1a930b7f7e62c821dcc023e180f9685cd57f",
    252_965_642,
    ("io.opentelemetry:opentelemetry-bom:1.62.0", "org.apache.logging.log4j:log4j-bom:2.25.4"),
    _ZOOKEEPER_TWICE,
)
PULSAR_5_0_0_M1: Final = ResolvedRelease(
    "5.0.0-M1",
    "4ef9850744c935ca15e9a623d8e6eb185174bfe25c188a93aebebbfb2fce5d10",
    228_831_717,
    (
        "com.fasterxml.jackson:jackson-bom:2.21.3",
        "io.netty:netty-bom:4.2.15.Final",
        "io.opentelemetry:opentelemetry-bom:1.62.0",
    ),
)
# Of its two offloaders the one for object stores: the other, for file systems, is four times as large.
OFFLOADERS_4_0_8: Final = Release(
    "4.0.8",
    "f0e98550b99271c02863eb91cb250b580524e198669ff14ec8341f2eadad886a"
    "bb54a0f593449350b2a60672e626bead6bd813179788bc7e938ff56a2b28e0a7",
    62_028_727,
    "pulsar-offloader-distribution",
    "apache-pulsar-offloaders",
    ("/tiered-storage-jcloud-",),
    "Pulsar's offloaders",
)
#: Of later versions the Go proxy has the client alone: the server is in modules of their own, which are not released.
OXIA_0_14_0: Final = GoRelease("oxia", "0.14.0", "github.com/oxia-db/oxia/cmd", (1, 24, 2))
#: Pulsar's servers, by version, the oldest first.
PULSAR: Final[dict[str, Release | ResolvedRelease]] = {
    each.version: each
    for each in (PULSAR_3_0_7, PULSAR_3_3_6, PULSAR_4_0_1, PULSAR_4_0_6, PULSAR_4_0_8, PULSAR_4_2_4, PULSAR_5_0_0_M1)
}
#: Pulsar's offloaders, by version.
OFFLOADERS: Final = {each.version: each for each in (OFFLOADERS_4_0_8,)}


def number_of(version: str) -> tuple[int, ...]:
    """Return a version of Pulsar as it is compared: "4.0.8" is (4, 0, 8), "5.0.0-M1" is (5, 0, 0)."""
    return tuple(map(int, re.findall(r"\d+", version.partition("-")[0])))


def offloads(version: str) -> bool:
    """Return whether its broker can be given an offloader here."""
    return version in OFFLOADERS


def can_batch_nothing(version: str) -> bool:
    """Return whether Pulsar's driver of BookKeeper's metadata has a setting by which it does not batch."""
    # 5.0.0-M1 came before that, and takes what is asked for as a part of the port.
    return (4, 2) <= number_of(version) < (5,)


def takes_the_jar(version: str) -> bool:
    """Return whether bookwarden's jar lets its brokers see several bookie clusters."""
    return number_of(version) >= (4, 0)


def marks_by_broker(version: str) -> bool:
    """Return whether its brokers mark, with bookwarden's jar, what leaves their metadata."""
    return number_of(version) >= (4, 0, 4)
