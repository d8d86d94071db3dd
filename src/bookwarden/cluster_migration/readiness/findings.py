"""Results of the checks of a pre-flight: how bad each is, where, and whether an operator may accept it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import asdict, dataclass
from enum import Enum
from functools import wraps
from typing import Any, Final

from bookwarden.cluster_migration.sides.values import Observations
from bookwarden.findings import Finding, Verdict


class Severity(Enum):
    """The harm of a migration that begins all the same."""

    LOSES = "loses messages"
    FAILS = "stands still"
    WARNING = "warning"


class Override(Enum):
    """Cases that cannot be made safe; an operator who accepts one names it."""

    TRANSACTIONS = "transactions"
    TWO_WAY_REPLICATION = "two-way-replication"
    READERS = "readers"
    COMPACTED_TOPICS = "compacted-topics"
    HISTORY = "history"
    OLD_CLIENTS = "old-clients"
    IDLE_SUBSCRIPTIONS = "idle-subscriptions"
    LATE_SUBSCRIPTIONS = "late-subscriptions"
    LATE_CLIENTS = "late-clients"


#: What each override accepts, for the help and the documents.
ACCEPTED: Final = {
    Override.TRANSACTIONS: "transactions that are committed on blue while their messages go to green are lost",
    Override.TWO_WAY_REPLICATION: "every message of a namespace that is replicated between both arrives twice on green",
    Override.READERS: "topics without a durable subscription lose on blue what was not read yet",
    Override.COMPACTED_TOPICS: "compacted topics begin empty on green",
    Override.HISTORY: "what was read and only retention keeps stays on blue, and is removed with its topic",
    Override.OLD_CLIENTS: "clients that do not follow stay without a connection until they are restarted elsewhere",
    Override.IDLE_SUBSCRIPTIONS: "backlogs without a consumer stay on blue, and so do their topics, until one comes",
    Override.LATE_SUBSCRIPTIONS: "subscriptions that came while their topics moved lost what `watch` and `verify` say",
    Override.LATE_CLIENTS: "clients that are not on green yet get errors from blue once their topics are removed",
}


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One line of a pre-flight; the table of all checks gives it the number and the name of its check."""

    number: int  #: Of the check, from 1.
    check: str  #: Its name.
    severity: Severity | None  #: None where all is well.
    seen: str  #: For people.
    advice: str = ""  #: What to do about it.
    namespace: str = ""  #: "" for what is of a whole cluster.
    evidence: tuple[str, ...] = ()  #: Everything that is concerned: topics, subscriptions, clients.
    override: Override | None = None  #: By which it may be accepted.

    @property
    def blocks(self) -> bool:
        """True where the migration should not begin."""
        return self.severity in (Severity.LOSES, Severity.FAILS)

    def is_accepted(self, accepted: Collection[Override]) -> bool:
        """Return whether it blocks and is among the cases accepted by name."""
        return self.blocks and self.override is not None and self.override in accepted

    def verdict(self, accepted: Collection[Override] = ()) -> Verdict:
        """Return the verdict, in the words of every check of bookwarden."""
        if self.severity is None:
            return Verdict.OK
        return Verdict.FAILS if self.blocks and not self.is_accepted(accepted) else Verdict.WARNING

    def as_finding(self, accepted: Collection[Override] = ()) -> Finding:
        """Return it as a line of a table."""
        where = f"{self.namespace}: " if self.namespace else ""
        advice = self.advice
        if self.blocks and self.override is not None:
            said = "accepted by name" if self.is_accepted(accepted) else f"or --accept {self.override.value}"
            advice = f"{advice}; {said}" if advice else said
        return Finding(f"{self.number} {self.check}", self.verdict(accepted), f"{where}{self.seen}", advice)

    def as_json(self, accepted: Collection[Override] = ()) -> dict[str, Any]:
        """Return it as programs read it."""
        found = asdict(self)
        found["severity"] = None if self.severity is None else self.severity.value
        found["override"] = None if self.override is None else self.override.value
        found["verdict"] = self.verdict(accepted).value
        found["accepted"] = self.is_accepted(accepted)
        return found


def blocking(findings: Iterable[CheckResult], accepted: Collection[Override] = ()) -> list[CheckResult]:
    """List what blocks and was not accepted by name."""
    return [one for one in findings if one.blocks and not one.is_accepted(accepted)]


Results = Iterator[CheckResult]
Check = Callable[[Observations], Results]


def good(seen: str, namespace: str = "") -> CheckResult:
    """Make a line on which all is well."""
    return CheckResult(0, "", None, seen, namespace=namespace)


def loses(
    seen: str, advice: str, namespace: str = "", evidence: Iterable[str] = (), override: Override | None = None
) -> CheckResult:
    """Make a line of what would lose or double messages."""
    return CheckResult(0, "", Severity.LOSES, seen, advice, namespace, tuple(evidence), override)


def stalls(
    seen: str, advice: str, namespace: str = "", evidence: Iterable[str] = (), override: Override | None = None
) -> CheckResult:
    """Make a line of what would fail, or never end."""
    return CheckResult(0, "", Severity.FAILS, seen, advice, namespace, tuple(evidence), override)


def warns(seen: str, advice: str, namespace: str = "", evidence: Iterable[str] = ()) -> CheckResult:
    """Make a line that an operator should know of before."""
    return CheckResult(0, "", Severity.WARNING, seen, advice, namespace, tuple(evidence))


def or_good(seen: str | Callable[[Observations], str]) -> Callable[[Check], Check]:
    """Add to a check the line that all is well where it yields no other; ``seen`` is its text, or makes it."""

    def with_good(check: Check) -> Check:
        @wraps(check)
        def checked(observed: Observations) -> Results:
            found = list(check(observed))
            yield from found or [good(seen if isinstance(seen, str) else seen(observed))]

        return checked

    return with_good
