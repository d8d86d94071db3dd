"""One lease of a namespace for all commands that change its migration."""

from __future__ import annotations

from contextlib import AbstractContextManager

import pytest

from bookwarden.errors import RefusedError
from bookwarden.metastore.lock import locked
from bookwarden.metastore.memory import MemoryStore
from bookwarden.wiring.cluster_migration import LEASES_PATH

STORE = MemoryStore()


def leased(*namespaces: str) -> AbstractContextManager[None]:
    return locked(STORE, LEASES_PATH, namespaces, what="command that changes the migration of", wait_s=0)


def test_one_command_at_a_time_changes_a_namespace() -> None:
    with leased("shop/live"), leased("shop/other"):
        refused = r"another command that changes the migration of shop/live runs on .* stop that one first"
        with pytest.raises(RefusedError, match=refused), leased("shop/idle", "shop/live"):
            pytest.fail("both change it")
        # What it had taken by then is free.
        with leased("shop/idle"):
            pass
    with leased("shop/live", "shop/live"):
        assert len(STORE.list_children(f"{LEASES_PATH}/shop/live")) == 1
    assert STORE.list_children(f"{LEASES_PATH}/shop/live") == []


def test_an_error_of_the_command_frees_it() -> None:
    with pytest.raises(ValueError, match="broken"), leased("shop/live"):
        raise ValueError("broken")
    with leased("shop/live"):
        pass
