"""An archive of classes makes starts quicker, and never lets one fail: whatever is there, whatever goes wrong."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from bookwarden.java import find_java
from bookwarden.pipelines import class_archive
from bookwarden.pipelines.class_archive import ClassArchive, archive_for, spark_home
from bookwarden.pipelines.quick_daemon import leave_archives

MakeArchive = Callable[[], ClassArchive]

pytestmark = pytest.mark.slow

# A program of Spark's own jars that ends at once: what it loads is enough of an archive.
MAIN = ("org.apache.spark.launcher.Main", "org.apache.spark.deploy.SparkSubmit", "--version")
# What this environment tells the Spark of tests.
FOREIGN = ("PYSPARK_SUBMIT_ARGS", "SPARK_HOME")


def _as_an_operator_has_it(patch: pytest.MonkeyPatch, cache: Path) -> None:
    for name in FOREIGN:
        patch.delenv(name, raising=False)
    patch.delenv("BOOKWARDEN_CACHE", raising=False)
    patch.setenv("XDG_CACHE_HOME", str(cache))


@pytest.fixture(autouse=True)
def _cache_of_the_test(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _as_an_operator_has_it(monkeypatch, tmp_path)


def command(options: Sequence[str]) -> list[str]:
    home = spark_home()
    assert home is not None
    return [
        "env",
        f"SPARK_HOME={home}",
        "SPARK_SCALA_VERSION=2.13",
        find_java().executable,
        *options,
        "-cp",
        f"{home / 'jars'}/*",
        *MAIN,
    ]


def java(archive: ClassArchive, *further: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command((*archive.options, *further)), capture_output=True, text=True, check=False)


def found(**conf: str) -> ClassArchive | None:
    return archive_for("test", conf=conf)


def to_make() -> ClassArchive:
    archive = found()
    assert archive is not None
    assert archive.fresh is not None
    return archive


def to_use() -> ClassArchive:
    archive = found()
    assert archive is not None
    assert archive.fresh is None
    return archive


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> ClassArchive:
    """The archive that a first run makes, in a cache of its own."""
    with pytest.MonkeyPatch.context() as patch:
        _as_an_operator_has_it(patch, tmp_path_factory.mktemp("first"))
        archive = to_make()
        ended = java(archive)
        assert ended.returncode == 0, ended.stderr
        archive.keep(ended_well=True)
        return to_use()


@pytest.fixture
def made(first: ClassArchive) -> MakeArchive:
    """Make the archive again where the test looks for it: what that JVM wrote, which takes a JVM two seconds."""

    def make() -> ClassArchive:
        archive = to_make()
        assert archive.fresh is not None
        shutil.copyfile(first.path, archive.fresh)
        archive.keep(ended_well=True)
        return to_use()

    return make


def maps_classes(archive: ClassArchive) -> bool:
    """Whether a JVM takes the launcher from the archive; it must end well."""
    ended = java(archive, "-Xlog:class+load:stdout")
    assert ended.returncode == 0, ended.stderr
    lines = [line for line in ended.stdout.splitlines() if "org.apache.spark.launcher.Main " in line]
    assert lines
    return any("shared objects file" in line for line in lines)


def test_the_first_run_makes_one_and_the_next_uses_it_in_silence(first: ClassArchive) -> None:
    assert first.path.parent.parts[-2:] == ("bookwarden", "classes")
    assert list(first.path.parent.iterdir()) == [first.path]
    assert maps_classes(first)
    assert java(first).stderr == ""


@pytest.mark.parametrize("damage", ["header", "middle", "no file", "a folder"])
def test_a_jvm_leaves_a_damaged_archive_alone(made: MakeArchive, damage: str) -> None:
    archive = made()
    whole = archive.path.read_bytes()
    archive.path.chmod(0o600)
    changed = {
        "header": b"\xff" * 4096 + whole[4096:],
        "middle": whole[: len(whole) // 3] + b"\xff" * (len(whole) // 3) + whole[len(whole) // 3 * 2 :],
    }.get(damage)
    archive.path.unlink()
    if changed is not None:
        archive.path.write_bytes(changed)
    elif damage == "a folder":
        archive.path.mkdir()
    assert not maps_classes(archive)


@pytest.mark.parametrize("share", [0, 0.5, 2])
def test_one_of_another_size_is_not_used_and_made_again(made: MakeArchive, share: float) -> None:
    archive = made()
    whole = archive.path.read_bytes()
    archive.path.unlink()
    archive.path.write_bytes((whole * 2)[: int(len(whole) * share)])
    assert maps_classes(made())


def test_an_archive_of_another_java_or_of_other_jars_has_another_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = {to_make().path.name}
    java_home = tmp_path / "java" / "bin"
    java_home.mkdir(parents=True)
    (java_home / "java").write_text("another", encoding="utf-8")
    monkeypatch.setenv("JAVA_HOME", str(java_home.parent))
    names.add(to_make().path.name)
    monkeypatch.delenv("JAVA_HOME")
    home = tmp_path / "spark"
    (home / "jars").mkdir(parents=True)
    (home / "jars" / "one.jar").write_bytes(b"1")
    monkeypatch.setenv("SPARK_HOME", str(home))
    names.add(to_make().path.name)
    (home / "jars" / "one.jar").write_bytes(b"22")
    names.add(to_make().path.name)
    assert len(names) == 4
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    assert found() is None


def test_a_folder_that_cannot_be_written_and_a_disk_that_is_full_cost_the_archive_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    for place in (tmp_path / "file", Path("/proc")):
        monkeypatch.setenv("XDG_CACHE_HOME", str(place))
        assert found() is None
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with monkeypatch.context() as patch:
        patch.setattr(class_archive, "_FREE_BYTES", 1 << 60)
        assert found() is None
    # The disk is full when the JVM writes: as where no file may be larger than half a megabyte.
    archive = to_make()
    limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 19, 1 << 19))  # noqa: E731
    ended = subprocess.run(command(archive.options), capture_output=True, text=True, check=False, preexec_fn=limit)
    assert "spark-submit" in ended.stdout or "SparkSubmit" in ended.stdout
    archive.keep(ended_well=ended.returncode == 0)
    assert list(archive.path.parent.iterdir()) == []


def test_a_jvm_that_is_killed_while_it_writes_leaves_no_archive(made: MakeArchive) -> None:
    archive = to_make()
    assert archive.fresh is not None
    process = subprocess.Popen(command(archive.options), stdout=subprocess.DEVNULL)
    while process.poll() is None and not archive.fresh.exists():
        time.sleep(0.001)
    process.send_signal(signal.SIGKILL)
    archive.keep(ended_well=process.wait() == 0)
    # Its Python was killed too: what it left goes a day later, and hurts nothing before.
    left = to_make()
    assert left.fresh is not None
    left.fresh.write_bytes(b"half")
    assert maps_classes(made())
    assert left.fresh.exists()
    os.utime(left.fresh, (0, 0))
    to_use().path.unlink()
    to_make()
    assert not left.fresh.exists()


def test_two_at_once_do_not_hinder_each_other() -> None:
    one, other = to_make(), to_make()
    assert one.fresh != other.fresh
    processes = [subprocess.Popen(command(each.options), stdout=subprocess.DEVNULL) for each in (one, other)]
    for each, process in zip((one, other), processes, strict=True):
        each.keep(ended_well=process.wait() == 0)
    assert {path.suffix for path in one.path.parent.iterdir()} == {".jsa"}
    assert maps_classes(to_use())


def test_archives_that_nothing_used_for_a_month_are_removed(made: MakeArchive) -> None:
    archive = made()
    other = archive.path.with_name("other-0000.jsa")
    other.write_bytes(b"")
    os.utime(other, (0, 0))
    os.utime(archive.path, (0, 0))
    archive = to_use()
    archive_for("another", conf={})
    assert list(archive.path.parent.iterdir()) == [archive.path]


@pytest.mark.parametrize("variable", ["PYSPARK_SUBMIT_ARGS", "JAVA_TOOL_OPTIONS", "SPARK_CONF_DIR", "spark.conf"])
def test_an_operator_that_has_such_options_keeps_them(
    variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = "-XX:SharedArchiveFile=/mine"
    if variable == "spark.conf":
        assert archive_for("test", conf={"spark.driver.extraJavaOptions": own}) is None
        return
    if variable == "SPARK_CONF_DIR":
        (tmp_path / "spark-defaults.conf").write_text(f"spark.driver.extraJavaOptions {own}\n", encoding="utf-8")
        own = str(tmp_path)
    monkeypatch.setenv(variable, own)
    assert found() is None


SESSION = """
import sys
from bookwarden.config import load_settings
from bookwarden.pipelines import own_jvm
from bookwarden.pipelines.session import QUICK_JVM, running_session

# A busy machine writes for longer than a JVM gets to end.
own_jvm._JVM_SECONDS = 200.0

def worker(batches):
    import pyspark
    list(batches)
    import pyarrow
    yield pyarrow.RecordBatch.from_pydict({"place": [pyspark.__file__]})

with running_session(load_settings(None), local=True, defaults=QUICK_JVM, ends_soon=True) as spark:
    options = spark._jvm.java.lang.management.ManagementFactory.getRuntimeMXBean().getInputArguments()
    (row,) = spark.range(1).coalesce(1).mapInArrow(worker, "place string").collect()
    print([option for option in options if "Archive" in option], row.place)
"""

# What Java is to be told, without a start of it.
OPTIONS = """
from bookwarden.config import load_settings
from bookwarden.pipelines.session import _own_jvm

with _own_jvm(load_settings(None), "test", True) as jvm:
    print([option for option in jvm.options if "Archive" in option])
"""


@pytest.mark.timeout(600)
def test_a_spark_of_ours_makes_one_uses_it_and_can_be_told_not_to(tmp_path: Path) -> None:
    def run(program: str, **environment: str) -> str:
        ended = subprocess.run(
            [sys.executable, "-c", program],
            capture_output=True,
            text=True,
            check=False,
            cwd=tmp_path,
            env={**os.environ, **environment},
        )
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    assert run(OPTIONS, BOOKWARDEN_SPARK__CLASS_ARCHIVES="false") == "[]\n"
    assert "-XX:ArchiveClassesAtExit=" in run(OPTIONS)
    assert "-XX:ArchiveClassesAtExit=" in run(SESSION)
    second = run(SESSION)
    assert "-XX:SharedArchiveFile=" in second
    # And its workers have the compiled code.
    assert "pyspark.zip" not in second


def test_workers_leave_the_archives_of_code_only_where_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    archives = ["/spark/python/lib/pyspark.zip", "/spark/python/lib/py4j-0.10.9.9-src.zip"]
    monkeypatch.setattr(sys, "path", [*archives, *sys.path])
    leave_archives()
    assert not set(archives) & set(sys.path)
    monkeypatch.setattr("bookwarden.pipelines.quick_daemon.find_spec", lambda _name: None)
    monkeypatch.setattr(sys, "path", archives)
    leave_archives()
    assert sys.path == archives
