"""The report of a build: what was copied, and what stays, with the reason and what to do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from bookwarden.ledgers.outcomes import CopyOutcome
from bookwarden.switching.moving.build import Build
from bookwarden.switching.moving.counts import LATER

#: Exit code: everything that can be copied now is copied, and a later build may copy more.
MORE_LATER: Final = 25
#: Exit code: a ledger could not be copied, and somebody has to look.
SOME_FAILED: Final = 27

#: What to do with ledgers that stay.
ADVICE: Final = {
    CopyOutcome.FAILED: "they stay where they are: look at each with `bookwarden ledger show`, then build again",
    CopyOutcome.OPEN: ("`bookwarden bookie-clusters unload` unloads their topics, which closes them; then build again"),
    CopyOutcome.DEFERRED: "nothing is wrong with them: build again later",
}
#: What to do with copies that are not proven.
UNPROVEN_ADVICE: Final = (
    "cleanup keeps what the former cluster has of them: start bookies that do not answer, look at the others with "
    "`bookwarden ledger read`, and verify again"
)


class Staying(NamedTuple):
    """A ledger that was not copied."""

    ledger_id: int
    outcome: CopyOutcome
    kind: str
    holder: str | None
    reason: str


@dataclass(frozen=True, slots=True)
class BuildReport:
    """A build that is through, or what one would do."""

    build: Build
    staying: tuple[Staying, ...]  #: The first of them, the worst first.
    seconds: float  #: That this process took.
    is_dry_run: bool = False  #: Nothing was copied: what would be has no outcome yet.
    is_verification: bool = False  #: Nothing was copied: what is complete was proven by its bookies.

    @property
    def exit_code(self) -> int:
        """The exit code, for schedulers."""
        if self.is_dry_run:
            return 0
        if self.build.counts.of(CopyOutcome.FAILED):
            return SOME_FAILED
        return MORE_LATER if self.build.counts.of(*LATER) else 0

    def as_json(self) -> dict[str, Any]:
        """Return it as values of JSON."""
        return {
            **self.build.as_json(),
            "dryRun": self.is_dry_run,
            "verify": self.is_verification,
            "seconds": round(self.seconds, 3),
            "staying": [
                {
                    "ledgerId": one.ledger_id,
                    "outcome": one.outcome.value,
                    "kind": one.kind,
                    "holder": one.holder,
                    "reason": one.reason,
                }
                for one in self.staying
            ],
        }
