"""A store that does not answer is not asked again for each copy."""

from __future__ import annotations

import threading
from uuid import uuid4

import pytest

from bookwarden.clusters.offload.requests import StoreSilentError, look_at_each
from bookwarden.ledgers.offloaded_copies import AbsentCopy, CopyReading, OffloadedCopy, StoreLocation

COPIES = [OffloadedCopy(ledger, "t/n/persistent/x", uuid4(), StoreLocation("S3", "b", "", "")) for ledger in range(500)]


def test_the_silence_of_a_later_copy_counts_while_the_first_is_still_looked_at() -> None:
    begun: list[int] = []
    third = threading.Event()

    def look(copy: OffloadedCopy) -> CopyReading:
        begun.append(copy.ledger_id)
        if copy.ledger_id == 0:
            # As one that is tried again and again, while the other look is over at once.
            third.wait(0.5)
            return AbsentCopy()
        if copy.ledger_id > 1:
            third.set()
        raise StoreSilentError("down")

    with pytest.raises(StoreSilentError, match="down"):
        look_at_each(COPIES, look, 2)
    assert set(begun) <= {0, 1}
