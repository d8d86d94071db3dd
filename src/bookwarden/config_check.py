"""Everything that the settings name, asked at the same time: what it answers, and what to do where it does not.

Rights are tried by reads, and by nodes, files and objects of its own that are removed again. No message is sent, and
nothing of a ledger is changed. Where a right can be tried by the deletion of something that is not there, it is: a
store checks the right first.
"""

from __future__ import annotations

import shutil
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

import pulsar

from bookwarden.background import run_unawaited
from bookwarden.clusters.bookkeeper.bookie_cluster import read_members
from bookwarden.clusters.bookkeeper.bookies.disk_space import read_disk_space_at
from bookwarden.clusters.bookkeeper.service_uris import LedgersRoot
from bookwarden.clusters.offload.names import EVERYTHING
from bookwarden.clusters.offload.requests import RequestLimits
from bookwarden.clusters.offload.stores import AllowedStore, OffloadStores
from bookwarden.clusters.pulsar.client_errors import translate
from bookwarden.clusters.pulsar.connection import PulsarConnection
from bookwarden.clusters.pulsar.messages.switch_events import SWITCH_TOPIC
from bookwarden.clusters.pulsar.rest.topics import Topics
from bookwarden.config import (
    DeletionSettings,
    MetadataStoreSettings,
    OffloadStoreSettings,
    PulsarSettings,
    Settings,
    exposed_files,
)
from bookwarden.disk_space import summed
from bookwarden.errors import (
    BookwardenError,
    LostRaceError,
    NotFoundError,
    PulsarAccessError,
    PulsarError,
    StoreAccessError,
)
from bookwarden.findings import Finding, Found, Verdict, fails, ok, size_text, some, warns
from bookwarden.ledgers.metadata import DeleteResult
from bookwarden.ledgers.offloaded_copies import FILE_SYSTEM, CopyFate, OffloadedCopy, StoreLocation
from bookwarden.ledgers.pending_deletion import MAX_LEDGER_ID
from bookwarden.metastore.following.flag import MIGRATION_PATH
from bookwarden.metastore.interface import MetadataStore
from bookwarden.metastore.urls import is_same_store
from bookwarden.preflight import write_into
from bookwarden.wiring.bookkeeper import bookie_options_of
from bookwarden.wiring.cluster import Cluster
from bookwarden.wiring.cluster_migration import settings_of_side
from bookwarden.wiring.journal import journal_objects_of
from bookwarden.wiring.offload import allowed_store
from bookwarden.wiring.pulsar import admin_of, connection_of
from bookwarden.wiring.roots import roots_proof_of
from bookwarden.wiring.stores import bookkeeper_place_of, open_single_store

#: The longest time that a target is waited for.
LIMIT_S: Final = 20.0
# Of one request to a target; its own error says more than the end of the time for all of them.
_REQUEST_S: Final = 8.0
#: Below it our own nodes are, those of `config check` too.
_OWN_ROOT: Final = "/bookwarden"
_OWN_NAME: Final = "config-check"
_STORE_ADVICE: Final = "check the address, the network, credentials and TLS in the section metadata_store"
_ACL_ADVICE: Final = "give digest_user the right in the ACL of that node, or let it be open as Pulsar makes it"
_LITTLE_SPACE: Final = 100 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class CheckTarget:
    """Something that the settings name: its name in a finding, how to ask it, and what to do if that raises."""

    name: str
    ask: Callable[[], Iterable[Found]]
    advice: str


def check_settings(settings: Settings, *, limit_s: float = LIMIT_S) -> list[Finding]:
    """Ask everything; a target that does not answer in ``limit_s`` is a finding.

    Bookie clusters that are registered, and whether roots and BookKeeper belong together, are asked once the stores
    of the settings have answered: all takes twice that time at most.
    """
    settings = _bounded(settings)
    found = [*_exposed(settings), *ask_all(_targets(settings), limit_s)]
    stores = [one for one in found if one.check.startswith("metadata_store")]
    if any(one.verdict is Verdict.FAILS for one in stores):
        unproven = warns("not asked, since a metadata store did not pass", "mend that first")
        return [*found, Finding("roots and BookKeeper", *unproven)]
    return [*found, *ask_all(_targets_behind(settings), limit_s)]


def ask_all(targets: Sequence[CheckTarget], limit_s: float) -> list[Finding]:
    """Ask all targets at the same time; the findings are in the order of the targets."""
    answers = [_asked(target) for target in targets]
    deadline = time.monotonic() + limit_s
    findings = []
    for target, answer in zip(targets, answers, strict=True):
        try:
            found = answer.result(max(0.0, deadline - time.monotonic()))
        except FutureTimeoutError:
            found = [fails(f"no answer within {limit_s:g} s", target.advice)]
        findings += [Finding(target.name, *one) for one in found]
    return findings


def _asked(target: CheckTarget) -> Future[list[Found]]:
    answer = Future[list[Found]]()

    def ask() -> None:
        found: list[Found] = []
        try:
            found += target.ask()
        except BookwardenError as error:
            answer.set_result([*found, fails(str(error), target.advice)])
        except Exception as error:  # noqa: BLE001 - it is raised again by `result`, in the thread that waits
            answer.set_exception(error)
        else:
            answer.set_result(found)

    # The process does not wait for one that does not answer.
    run_unawaited(ask, target.name)
    return answer


def _exposed(settings: Settings) -> list[Finding]:
    return [
        Finding(name, *warns(what, "chmod 600 it, or 640 for a group that needs it"))
        for name, what in exposed_files(settings)
    ]


def _bounded(settings: Settings) -> Settings:
    """Return the settings with shorter times for a request, so that each target's own error comes in time."""
    migration = settings.cluster_migration
    sides = {
        name: side.model_copy(update={"metadata_store": side.metadata_store and _bounded_store(side.metadata_store)})
        for name, side in (("blue", migration.blue), ("green", migration.green))
    }
    bookkeeper = settings.bookkeeper
    times = ("connect_timeout_seconds", "request_timeout_seconds")
    return settings.model_copy(
        update={
            "metadata_store": _bounded_store(settings.metadata_store),
            "bookkeeper": bookkeeper.model_copy(
                update={name: min(getattr(bookkeeper, name), _REQUEST_S) for name in times}
            ),
            "cluster_migration": migration.model_copy(update=sides),
        }
    )


def _bounded_store(store: MetadataStoreSettings) -> MetadataStoreSettings:
    return store.model_copy(
        update={
            "operation_timeout_seconds": min(store.operation_timeout_seconds, _REQUEST_S),
            "session_timeout_seconds": min(store.session_timeout_seconds, _REQUEST_S),
        }
    )


def _targets(settings: Settings) -> list[CheckTarget]:
    store, deletion = settings.metadata_store, settings.deletion
    place = bookkeeper_place_of(store)
    targets = [
        _root_target(f"metadata_store.urls[{index}]", store, url, writes=index == 0)
        for index, url in enumerate(dict.fromkeys(store.urls))
    ]
    name = "metadata_store.urls[0], ledgers_root" if store.bookkeeper_url is None else "metadata_store.bookkeeper_url"
    own = not is_same_store(place.url, store.urls[0])
    targets += [
        CheckTarget(name, lambda: _look_at_ledgers(store, place, own=own), _STORE_ADVICE),
        _bookies_target("bookies", settings, place),
        *_pulsar_targets("pulsar", settings.pulsar, deletion),
        *(
            target
            for index, offload in enumerate(settings.offload.stores)
            for target in _offload_targets(f"offload.stores[{index}]", offload, settings)
        ),
        _journal_target(settings),
    ]
    targets += [
        _folder_target(name, folder)
        for name, folder in (
            ("sweep.checkpoint", settings.sweep.checkpoint),
            ("sweep.outcomes", settings.sweep.outcomes),
            ("follow.checkpoint", settings.follow.checkpoint),
            ("follow.outcomes", settings.follow.outcomes),
            ("orphans.folder", settings.orphans.folder),
            ("cluster_migration.journal", settings.cluster_migration.journal),
        )
    ]
    if settings.log.file:
        targets.append(_folder_target("log.file", str(Path(settings.log.file).parent)))
    targets += [
        CheckTarget(f"orphans.inventories[{index}]", partial(_look_into, folder), "check the path")
        for index, folder in enumerate(settings.orphans.inventories)
    ]
    return [*targets, *_side_targets(settings)]


def _targets_behind(settings: Settings) -> list[CheckTarget]:
    """List what is asked once the stores have answered; those that registered bookie clusters are in answer too."""
    targets = [
        CheckTarget(
            "roots and BookKeeper",
            lambda: _prove_roots(settings),
            "docs/sweep.md, 'What it proves before its first batch'",
        )
    ]
    with Cluster(settings) as cluster:
        try:
            found = cluster.registry.read()
        except BookwardenError as error:
            failed = fails(str(error), "docs/bookie-clusters.md")
            return [*targets, CheckTarget("registered bookie clusters", lambda: [failed], "")]
        for known in () if found is None else found.registry.clusters.values():
            place = cluster.registry.place_of(known)
            name = f"bookie cluster {known.name}"
            targets += [
                CheckTarget(
                    name,
                    partial(_look_at_ledgers, settings.metadata_store, place, own=False),
                    f"{_STORE_ADVICE}; docs/bookie-clusters.md",
                ),
                _bookies_target(f"bookies of {known.name}", settings, place),
            ]
    return targets


def _side_targets(settings: Settings) -> Iterator[CheckTarget]:
    """Yield the targets of the clusters that clients are moved between, as far as the settings name them."""
    migration = settings.cluster_migration
    for name, side in (("blue", migration.blue), ("green", migration.green)):
        of_side = f"cluster_migration.{name}"
        if side.metadata_store is not None:
            for index, url in enumerate(side.metadata_store.urls):
                yield _root_target(
                    f"{of_side}.metadata_store.urls[{index}]", side.metadata_store, url, writes=name == "blue"
                )
        if side.pulsar is not None:
            yield from _pulsar_targets(f"{of_side}.pulsar", side.pulsar, None)
    if migration.green.pulsar or migration.green.metadata_store:
        yield CheckTarget("cluster_migration.green", lambda: _look_at_green(settings), "set both sections")


def _look_at_green(settings: Settings) -> Iterator[Found]:
    settings_of_side(settings, "green")
    yield ok("its brokers and its metadata store are set")


def _root_target(name: str, store: MetadataStoreSettings, url: str, *, writes: bool) -> CheckTarget:
    return CheckTarget(f"{name} {url}", lambda: _look_at_root(store, url, writes=writes), _STORE_ADVICE)


def _look_at_root(settings: MetadataStoreSettings, url: str, *, writes: bool) -> Iterator[Found]:
    with closing(open_single_store(settings, url)) as store:
        store.sync()
        top = store.children_of("/")
        if {"admin", "managed-ledgers"}.isdisjoint(top):
            yield warns(
                "answers, and has neither /admin nor /managed-ledgers: no Pulsar cluster has its metadata there",
                "check host and chroot; a cluster that has no topic yet is all right",
            )
        else:
            read = [store.children_of(f"/{name}") for name in ("admin", "managed-ledgers")]
            yield ok(f"answers; {sum(map(len, read)):,} nodes read below /admin and /managed-ledgers")
        if writes:
            yield _own_node(store)


def _own_node(store: MetadataStore) -> Found:
    """Try to make, change and remove a node of our own; it would end with our session."""
    if store.get(MIGRATION_PATH) is not None:
        # Nothing is written to a store while brokers move its nodes, or after that.
        return warns(
            f"whether we may write is not tried: {MIGRATION_PATH} is there",
            "`bookwarden metadata-migration status` says where the move stands",
        )
    made_root = False
    try:
        if store.get(_OWN_ROOT) is None:
            with suppress(LostRaceError):
                store.create(_OWN_ROOT, b"")
                made_root = True
        path = store.ephemeral_sequential(f"{_OWN_ROOT}/{_OWN_NAME}-", b"")
        node = store.get(path)
        if node is not None:
            version = store.put(path, b"1", node.version)
            store.delete_many([(path, version)])
    except StoreAccessError as error:
        return fails(f"no node can be made, changed and removed below {_OWN_ROOT}: {error}", _ACL_ADVICE)
    finally:
        if made_root and (root := store.get(_OWN_ROOT)) is not None:
            # It stays if another process has made something in it by now.
            store.delete_many([(_OWN_ROOT, root.version)])
    return ok(f"a node of our own was made, changed and removed below {_OWN_ROOT}")


def _look_at_ledgers(settings: MetadataStoreSettings, place: LedgersRoot, *, own: bool) -> Iterator[Found]:
    root = place.ledgers_root
    with closing(open_single_store(settings, place.url)) as store:
        store.sync()
        if store.get(root) is None:
            yield fails(
                f"{place.url} answers, and has no node {root}: BookKeeper's metadata is not there",
                "check metadata_store.bookkeeper_url and ledgers_root (BookKeeper's zkLedgersRootPath)",
            )
            return
        parent, ledger = _first_ledger(store, root)
        yield ok(f"{place.url}: {root} can be read" + (f", and {ledger}" if ledger else "; it has no ledger"))
        try:
            # The right to delete is one on the parent, and is checked before the node is looked for.
            (result,) = store.delete_many([(f"{parent}/bookwarden-{_OWN_NAME}-{uuid.uuid4().hex}", 0)])
        except StoreAccessError as error:
            yield fails(f"ledgers below {parent} cannot be deleted: {error}", _ACL_ADVICE)
        else:
            allowed = result in (DeleteResult.ABSENT, DeleteResult.DELETED)
            yield (
                ok(f"nodes below {parent} may be deleted: tried on one that is not there")
                if allowed
                else warns(f"whether nodes below {parent} may be deleted is not known: {result.value}", "try again")
            )
        if own:
            yield _own_node(store)


def _first_ledger(store: MetadataStore, root: str) -> tuple[str, str]:
    """Find any ledger; return the node that it is in, and its own path, which is "" without one."""
    parent = root
    while True:
        names = store.children_of(parent)
        ledger = next((name for name in names if name.startswith("L") and name[1:].isdecimal()), None)
        if ledger is not None:
            path = f"{parent}/{ledger}"
            store.get(path)
            return parent, path
        below = next((name for name in names if name.isdecimal()), None)
        if below is None:
            return parent, ""
        parent = f"{parent}/{below}"


def _bookies_target(name: str, settings: Settings, place: LedgersRoot) -> CheckTarget:
    return CheckTarget(
        name, lambda: _look_at_bookies(settings, place), "check that they run, and TLS in the section bookkeeper"
    )


def _look_at_bookies(settings: Settings, place: LedgersRoot) -> Iterator[Found]:
    with closing(open_single_store(settings.metadata_store, place.url)) as store:
        members = read_members(store, place.ledgers_root)
        registered = sorted(members.writable | members.read_only)
        if not registered:
            yield fails(f"none is registered in {place.ledgers_root}/available of {place.url}", "start the bookies")
            return
        options = bookie_options_of(settings.bookkeeper)
        full, silent, free = summed(read_disk_space_at(store, place.ledgers_root, registered, options=options))
    if silent:
        yield fails(
            f"{len(silent)} of {len(registered)} did not answer: {some(silent)}",
            "start it, or check the network to it, and TLS in the section bookkeeper",
        )
    if full:
        yield warns(some(full), "free space: docs/howto/reclaim-leaked-ledgers.md")
    if not silent and not full:
        yield ok(f"{len(registered)} answer, with {size_text(free)} free")


def _prove_roots(settings: Settings) -> Iterator[Found]:
    with Cluster(settings) as cluster:
        notes = roots_proof_of(cluster).require()
    for note in notes:
        yield warns(note, "make sure that this is so")
    if not notes:
        yield ok("the roots of the settings are all that share this BookKeeper, as far as it can be seen")


def _pulsar_targets(
    name: str, pulsar_settings: PulsarSettings, deletion: DeletionSettings | None
) -> Iterator[CheckTarget]:
    """Yield the targets of a cluster's brokers; ``deletion`` is None where it has no topics of ours."""
    connection = connection_of(pulsar_settings)
    yield CheckTarget(
        f"{name}.admin_url {connection.admin_url}",
        lambda: _look_at_admin(connection, deletion),
        f"check {name}.admin_url, auth and TLS",
    )
    yield CheckTarget(
        f"{name}.service_url {connection.service_url}",
        lambda: _look_at_service(connection, deletion.topic if deletion else SWITCH_TOPIC, sends=deletion is not None),
        f"check {name}.service_url, auth and TLS",
    )


def _look_at_admin(connection: PulsarConnection, deletion: DeletionSettings | None) -> Iterator[Found]:
    with closing(admin_of(connection, _REQUEST_S)) as admin:
        names = admin.get_json("/clusters")
        yield ok(f"answers; knows the clusters {some(sorted(map(str, names)))}")
        try:
            admin.get_json("/brokers/configuration/runtime")
        except PulsarAccessError as error:
            yield warns(
                f"our role is no superuser's: {error}",
                "the sweep needs less; init and the migrations want one (docs/deploy.md, Secrets)",
            )
        if deletion is None:
            return
        topics = Topics(admin)
        for topic in (deletion.topic, deletion.retry_topic, deletion.dlq_topic):
            missing = topics.why_nothing_is_kept(topic, deletion.subscription)
            if missing is not None:
                yield fails(missing, "`bookwarden init`")
                return
        yield ok("the deletion topics and their subscriptions are there, and may be read")


def _look_at_service(connection: PulsarConnection, topic: str, *, sends: bool) -> Iterator[Found]:
    client = connection.client(operation_timeout_seconds=int(_REQUEST_S))
    with closing(client):
        try:
            partitions = client.get_topic_partitions(topic)
        except pulsar.PulsarException as error:
            raise translate(error, f"looking up {topic} at {connection.service_url}") from error
        yield ok("answers")
        # A producer would let the broker make a topic that is not there.
        if not sends or not _is_there(connection, topic):
            return
        try:
            producer = client.create_producer(partitions[0], producer_name=f"bookwarden-{_OWN_NAME}-{uuid.uuid4().hex}")
        except pulsar.PulsarException as error:
            raise translate(error, f"opening a producer on {partitions[0]}") from error
        producer.close()
        yield ok(f"a producer may be opened on {partitions[0]}; nothing was sent")


def _is_there(connection: PulsarConnection, topic: str) -> bool:
    with closing(admin_of(connection, _REQUEST_S)) as admin:
        try:
            return bool(Topics(admin).partitions(topic))
        except (NotFoundError, PulsarError):
            # The line on the admin URL says it.
            return False


def _offload_targets(name: str, offload: OffloadStoreSettings, settings: Settings) -> Iterator[CheckTarget]:
    limits = RequestLimits(
        attempts=1,
        parallel=1,
        connect_timeout=min(settings.offload.connect_timeout_seconds, _REQUEST_S),
        read_timeout=min(settings.offload.read_timeout_seconds, _REQUEST_S),
        abort_uploads=settings.offload.abort_uploads,
    )
    advice = f"check {name}: endpoint, buckets, credentials (docs/offload.md)"
    if offload.driver == FILE_SYSTEM:
        folder = offload.mount or unquote(urlsplit(offload.endpoint).path)
        yield _folder_target(f"{name} {offload.driver}", folder, is_there=True)
        return
    try:
        store = allowed_store(offload, limits)
    except BookwardenError as error:
        failed = fails(str(error), advice)
        yield CheckTarget(name, lambda: [failed], advice)
        return
    for location in store.locations():
        yield CheckTarget(
            f"{name} {location.bucket}",
            partial(_look_at_copies, store, location),
            advice,
        )


def _look_at_copies(store: AllowedStore, location: StoreLocation) -> Iterator[Found]:
    with closing(OffloadStores([store])) as stores:
        next(stores.pages(location, EVERYTHING), None)
        yield ok("answers, and can be listed")
        none_such = OffloadedCopy(MAX_LEDGER_ID, f"bookwarden/{_OWN_NAME}", uuid.uuid4(), location)
        (deletion,) = stores.delete_many([none_such])
    if deletion.fate is CopyFate.FAILED:
        yield fails(f"objects cannot be deleted: {deletion.reason}", "give our role the rights of docs/offload.md")
    else:
        yield ok("objects may be deleted: tried on one that is not there")


def _journal_target(settings: Settings) -> CheckTarget:
    journal = settings.sweep.journal
    if "://" not in journal:
        return _folder_target("sweep.journal", journal)
    return CheckTarget(
        f"sweep.journal {journal}", lambda: _look_at_journal(journal), "check bucket, region and credentials"
    )


def _look_at_journal(location: str) -> Iterator[Found]:
    with closing(journal_objects_of(location)) as objects:
        objects.names_from(_OWN_NAME)
        objects.put(_OWN_NAME, b"")
        try:
            objects.remove(_OWN_NAME)
        except StoreAccessError as error:
            yield warns(
                f"can be listed and written; the object {_OWN_NAME} stays: {error}",
                "nothing: the sweep removes no object of the journal",
            )
        else:
            yield ok("can be listed and written: an object of our own was made and removed")


def _folder_target(name: str, folder: str, *, is_there: bool = False) -> CheckTarget:
    return CheckTarget(
        f"{name} {folder}",
        lambda: _look_at_folder(folder, is_there=is_there),
        f"set {name.partition(' ')[0]} to a folder that this user may write to, on a disk with space",
    )


def _look_at_folder(folder: str, *, is_there: bool) -> Iterator[Found]:
    """Try to write into a folder, or where it would be made; a file without a name is written there."""
    if "://" in folder:
        yield warns("not tried: it is for a file system of Spark's", "`bookwarden sweep --once` shows whether it works")
        return
    path = Path(folder).absolute()
    there = next(one for one in (path, *path.parents) if one.exists())
    advice = "give this user the right to write there, make room, or name another folder"
    if is_there and there != path:
        yield fails(f"{path} is not there", "mount it, or correct the path")
        return
    try:
        write_into(there)
    except OSError as error:
        yield fails(f"{there} cannot be written: {error.strerror}", advice)
        return
    free = shutil.disk_usage(there).free
    what = f"{path} can be written" if there == path else f"{path} will be made"
    seen = f"{what}; {size_text(free)} free"
    yield warns(seen, "make room before it is full") if free < _LITTLE_SPACE else ok(seen)


def _look_into(folder: str) -> Iterator[Found]:
    try:
        names = sorted(one.name for one in Path(folder).iterdir())
    except OSError as error:
        yield fails(f"{folder} cannot be read: {error.strerror}", "name a folder with an S3 inventory")
        return
    yield ok(f"{folder} can be read: {some(names) or 'empty'}")
