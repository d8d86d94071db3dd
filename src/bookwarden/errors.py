"""The one tree of errors that bookwarden raises.

    BookwardenError
    ├── ConfigError              a setting is missing, malformed or contradicts another
    ├── NotFoundError            the topic, ledger or node that was asked for does not exist
    ├── RefusedError             a safety rule forbids what was asked for
    │   ├── StateTakenOverError      another process writes the state of this stream now
    │   └── DeadlockedBrokerError    threads of a broker wait for each other for ever: kill it
    ├── FormatError              bytes from a store or a topic are not what their format says
    │   ├── MalformedMarkError   a message that is no valid pending deletion
    │   └── PoisonedBatchError   more messages fail than can be at fault
    ├── StoreError               a metadata store did not do what it was asked
    │   ├── StoreUnavailableError    no connection, session lost, timeout: nothing was changed
    │   │   └── StoreMigratingError      the metadata is being moved to another store: try again after it
    │   ├── RegistryChangedError     the registry of bookie clusters changed while a batch ran by its former state
    │   ├── StoreMovedError          the metadata moved to where this process must not write as it was started
    │   ├── OutcomeUnknownError      the connection broke under a write: read back before trying again
    │   ├── LostRaceError            the version or existence changed since it was read: read again
    │   ├── StoreAccessError         the store refuses our credentials
    │   ├── StoreWedgedError         the store's server takes no write until it is restarted
    │   └── TruncatedListingError    a part of a listing was given for the whole
    ├── PulsarError              a broker or its admin REST did not do what it was asked
    │   ├── PulsarUnavailableError   no answer, or an answer that asks to try later
    │   │   ├── PulsarTimeoutError       no answer in time: it may have done what it was asked
    │   │   └── UnconfirmedError         some of the messages that were sent are not confirmed
    │   ├── SilentBrokerError        a registered broker does not tell what it is asked; others do
    │   ├── PulsarAccessError        the broker refuses our credentials or rights
    │   ├── PulsarConflictError      what should be created exists, or what should go is in use
    │   └── DataGoneError            messages that should still be there were trimmed or skipped
    ├── BookieError              bookies did not give what was asked of them
    │   ├── BookieUnavailableError   too few of them answered to know: try again
    │   ├── BookieAccessError        they ask for credentials or encryption that we do not have
    │   ├── EntryAbsentError         every bookie that should have the entry says that it does not
    │   └── DigestMismatchError      an entry is not, byte for byte, what was written
    ├── SparkError               a query failed more often than allowed, or cannot start
    │   └── StoppedFailingError      a stop was asked for while its batches failed: messages are left
    ├── SharedDoubtError         a sweep that does not wait met a doubt about very many marks
    ├── ServerError              a server of the development cluster did not start, or did not stop
    ├── FileError                a file, a folder or the output cannot be written or read
    └── MissingExtraError        a library of one of the package's extras is not installed

Foreign errors are translated where they arise, and chained. Each class carries the exit code that the command line ends
with: bookwarden.exit_codes has all of them, docs/cli.md what they mean.
"""

from __future__ import annotations

from collections.abc import Iterable

from bookwarden import exit_codes


class BookwardenError(Exception):
    """Root of all errors that bookwarden raises; its text is one line that says what to do next."""

    exit_code = exit_codes.FAILED


class ConfigError(BookwardenError):
    """A setting is missing, malformed or contradicts another."""

    exit_code = exit_codes.CONFIG


class NotFoundError(BookwardenError):
    """The topic, ledger or node that was asked for does not exist."""

    exit_code = exit_codes.NOT_FOUND


class RefusedError(BookwardenError):
    """A safety rule forbids what was asked for."""

    exit_code = exit_codes.REFUSED


class StateTakenOverError(RefusedError):
    """Another process writes the state of this stream now: this one must end."""


class DeadlockedBrokerError(RefusedError):
    """Threads of a broker wait for each other's locks; nothing but a kill of its process ends that."""

    exit_code = exit_codes.DEADLOCKED


class FormatError(BookwardenError):
    """Bytes from a store or a topic are not what their format says."""

    exit_code = exit_codes.FORMAT


class MalformedMarkError(FormatError):
    """A message on a deletion topic is no valid pending deletion."""


class PoisonedBatchError(FormatError):
    """More messages of a batch fail, each alone, than can be at fault themselves; nothing is settled."""


class MarkingInterrupted(KeyboardInterrupt):
    """Ctrl-C while marks were being sent; not a BookwardenError, so that no handler takes it for a failure and goes on.

    ``confirmed`` of ``total`` marks were confirmed by then; later ones may be confirmed all the same.
    """

    def __init__(self, confirmed: int, total: int) -> None:
        super().__init__(f"interrupted when {confirmed:,} of {total:,} marks were confirmed")
        self.confirmed = confirmed
        self.total = total


class StoreError(BookwardenError):
    """A metadata store did not do what it was asked."""

    exit_code = exit_codes.STORE


class StoreUnavailableError(StoreError):
    """The metadata store could not be reached, or its session ended; nothing was changed."""


class NoBookieError(StoreUnavailableError):
    """BookKeeper is not in service: its metadata has no bookie registered."""


class StoreMigratingError(StoreUnavailableError):
    """The metadata is being moved to another store, so nothing is written for now; nothing was changed."""


class RegistryChangedError(StoreError):
    """The registry of bookie clusters was changed since a batch began: the batch has to be repeated by the new one."""


class StoreMovedError(StoreError):
    """The metadata moved to a store that this process, as it was started, must not write to; nothing was changed."""


class OutcomeUnknownError(StoreError):
    """The connection broke while a write was under way: read back before trying again."""


class LostRaceError(StoreError):
    """The version, or the existence, of a node changed since it was read: read again, then retry."""


class StoreAccessError(StoreError):
    """The metadata store refuses our credentials."""

    exit_code = exit_codes.ACCESS


class StoreWedgedError(StoreError):
    """A server of the metadata store accepts no writes from anybody until it is restarted."""


class TruncatedListingError(StoreError):
    """A store gave part of a listing for the whole: nodes missing from it may exist all the same."""


class PulsarError(BookwardenError):
    """A broker, or its admin REST, did not do what it was asked."""

    exit_code = exit_codes.PULSAR


class PulsarUnavailableError(PulsarError):
    """The broker gave no answer, or one that asks to try again later."""


class PulsarTimeoutError(PulsarUnavailableError):
    """The broker gave no answer in time; it may have done all the same what it was asked."""


class SilentBrokerError(PulsarError):
    """A registered broker does not tell its topics; ``topics`` are those of the brokers that do."""

    def __init__(self, message: str, topics: frozenset[str]) -> None:
        super().__init__(message)
        self.topics = topics


class UnconfirmedError(PulsarUnavailableError):
    """Some messages were not confirmed, and may have been stored or not; all others were.

    ``messages`` names them as their sender did.
    """

    def __init__(self, text: str, messages: Iterable[object]) -> None:
        super().__init__(text)
        self.messages = frozenset(messages)


class PulsarAccessError(PulsarError):
    """The broker refuses our credentials or our rights."""

    exit_code = exit_codes.ACCESS


class PulsarConflictError(PulsarError):
    """A conflict: the thing to create exists already, or the one to remove is in use or in another state."""


class DataGoneError(PulsarError):
    """Messages that should still be on a topic were trimmed or skipped."""

    exit_code = exit_codes.DATA_GONE


class BookieError(BookwardenError):
    """Bookies did not give what was asked of them."""

    exit_code = exit_codes.BOOKIE


class BookieUnavailableError(BookieError):
    """A bookie, or too many of a ledger's bookies, did not answer, so that nothing is known: try again."""


class BookieAccessError(BookieError):
    """The bookies ask for credentials or encryption that we do not have."""

    exit_code = exit_codes.ACCESS


class EntryAbsentError(BookieError):
    """Every bookie that should have the entry answered that it does not."""


class DigestMismatchError(BookieError):
    """An entry, or what a bookie knows of the last one, is not byte for byte as it was written."""


class SparkError(BookwardenError):
    """A Spark query failed more often than allowed, or cannot be started here."""

    exit_code = exit_codes.SPARK


class StoppedFailingError(SparkError):
    """A query was asked to stop while its batches failed, so that what was due is not done."""

    exit_code = exit_codes.STOPPED_FAILING


class SharedDoubtError(BookwardenError):
    """A doubt about very many marks keeps their ledgers, and the sweep was not to wait for its end."""

    exit_code = exit_codes.SHARED_DOUBT


class ServerError(BookwardenError):
    """A server of the development cluster did not start or did not stop."""

    exit_code = exit_codes.SERVER


class FileError(BookwardenError):
    """A file, a folder or the standard output cannot be written or read: a full disk, missing rights, a wrong path."""

    exit_code = exit_codes.FILE


class MissingExtraError(BookwardenError):
    """A library of one of the package's extras is not installed; the text says which extra to install."""

    exit_code = exit_codes.MISSING_EXTRA
