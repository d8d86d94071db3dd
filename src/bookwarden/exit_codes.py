"""Exit codes of commands and jobs: a number has one name and one meaning; docs/cli.md says it of each command."""

from __future__ import annotations

from typing import Final

# Of errors (bookwarden.errors), whatever was run.
FAILED: Final = 1  #: Something was left undone; also of errors that have no code of their own.
USAGE: Final = 2  #: An option or argument is missing or unknown; click's.
CONFIG: Final = 3
NOT_FOUND: Final = 4
REFUSED: Final = 5
FORMAT: Final = 6
STORE: Final = 7
PULSAR: Final = 8
ACCESS: Final = 9
DATA_GONE: Final = 10
SPARK: Final = 11
SERVER: Final = 12
BOOKIE: Final = 13
MISSING_EXTRA: Final = 14
STOPPED_FAILING: Final = 15
SHARED_DOUBT: Final = 16
FILE: Final = 17

# Of results, for schedulers.
ORPHANS_FOUND: Final = 20  #: A scan found candidates.
MISSING_FOUND: Final = 21  #: A scan found ledgers missing, or within the list of a topic that lost them.
NOT_DONE: Final = 22  #: What was checked is not as it has to be: something is missing, kept or different.
WOULD_FAIL: Final = 23  #: A check blocks it, and nothing was begun.
MIGRATION_FAILED: Final = 24  #: A migration failed, or its flag was taken off.
MORE_LATER: Final = 25  #: It is under way, or more can be done later.
COUNTERS_BEHIND: Final = 26  #: Ids or names would be given twice.
SOME_FAILED: Final = 27  #: Something did not succeed, and an operator has to look.
DEADLOCKED: Final = 28  #: A broker of blue is deadlocked, and has to be killed.
LATE: Final = 29  #: Subscriptions came too late to green, and may have lost messages; nothing else is wrong.

# As a shell says it of a command that a signal ended.
INTERRUPTED: Final = 130
CLOSED_OUTPUT: Final = 141  #: The reader of the output has closed it.
