"""Exit codes of the commands below `cluster-migration`; they lie above those of errors."""

from __future__ import annotations

from typing import Final

from bookwarden.errors import DeadlockedBrokerError

NOT_DONE: Final = 22  #: `verify`: something is not as it has to be.
WOULD_FAIL: Final = 23  #: A check blocks it, and nothing was begun.
FLAG_OFF: Final = 24  #: The flag was taken off.
UNDER_WAY: Final = 25  #: It goes on.
LEFT: Final = 27  #: Something did not succeed, and somebody has to look.
DEADLOCKED: Final = DeadlockedBrokerError.exit_code  #: A broker of blue has to be killed.
LATE: Final = 29  #: Subscriptions came too late to green, and may have lost messages; nothing else is wrong.
