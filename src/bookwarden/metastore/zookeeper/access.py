"""ACLs of the nodes that a store creates.

Pulsar makes all its nodes open to everybody (impl.ZKMetadataStore, `OPEN_ACL_UNSAFE`), and an operator closes them
afterwards (`setAcl`). That is of no use while bookwarden's own nodes, which say where ledgers are, stay open: they get
the ACL that Pulsar's topics have.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from kazoo.exceptions import NoNodeError
from kazoo.protocol.serialization import GetACL, SetACL
from kazoo.security import ACL, Id

from bookwarden.errors import ConfigError
from bookwarden.metastore.deadline import Deadline
from bookwarden.metastore.paths import ancestors
from bookwarden.metastore.zookeeper.requests import AccessRule
from bookwarden.metastore.zookeeper.session import ServerRefusal, ZooKeeperSession

_READ, _ALL = 1, 31
_OPEN: Final = (AccessRule(_ALL, "world", "anyone"),)
_CREATOR: Final = AccessRule(_ALL, "auth", "")
_AS_PULSAR: Final = "as-pulsar"
_ACLS: Final = {
    "open": _OPEN,
    "creator": (_CREATOR,),
    "creator-read-open": (_CREATOR, AccessRule(_READ, "world", "anyone")),
    _AS_PULSAR: _OPEN,
}
_OWN_TREE: Final = "/bookwarden"
# What we have closed stays closed; then topics and policies, of which the former come with the first topic.
_MODELS: Final = (_OWN_TREE, "/managed-ledgers", "/admin")
# What ZooKeeper shows instead of a password's hash to clients that may not administer the node.
_MASKED: Final = ":x"


def validate_acl(name: str) -> None:
    """Raise ConfigError unless this is one of `ZooKeeperConnection.acl`."""
    if name not in _ACLS:
        raise ConfigError(f"the metadata store's acl is {name!r}; expected one of {', '.join(_ACLS)}")


class NodeAccess:
    """The ACL of each node that a session creates, as `ZooKeeperConnection.acl` has it."""

    def __init__(self, session: ZooKeeperSession) -> None:
        self._session = session
        self._rules = _ACLS[session.connection.acl]
        # Without credentials we could not change our own nodes any more.
        self._copies = session.connection.acl == _AS_PULSAR and session.connection.digest is not None
        self._copied: tuple[AccessRule, ...] | None = None
        self._closed: set[str] = set()

    def rules_of_new(self, path: str) -> tuple[AccessRule, ...]:
        """Return the ACL of a node that is about to be created; close those above it if it will not be open.

        The latter are open where they are from before the topics were closed: any client could delete what lies there,
        and create it again. Raises StoreError as every read.
        """
        if not self._copies or not f"{path}/".startswith(f"{_OWN_TREE}/"):
            return self._rules
        if self._copied is None:
            self._copied = self._of_pulsar()
        if self._copied != _OPEN:
            for above in ancestors(path):
                self._close(above, self._copied)
        return self._copied

    def _of_pulsar(self) -> tuple[AccessRule, ...]:
        for rules in map(self._read, _MODELS):
            if rules is not None and _OPEN[0] not in rules:
                return (*(rule for rule in rules if not _is_masked(rule)), _CREATOR)
        return _OPEN

    def _close(self, path: str, rules: Sequence[AccessRule]) -> None:
        if path in self._closed:
            return
        found = self._read(path)
        if found is None:
            return
        if found == _OPEN:
            acl = [ACL(rule.permissions, Id(rule.scheme, rule.identity)) for rule in rules]
            self._session.read(SetACL(self._session.absolute(path), acl, -1), self._deadline())
        self._closed.add(path)

    def _read(self, path: str) -> tuple[AccessRule, ...] | None:
        try:
            acl, _ = self._session.read(GetACL(self._session.absolute(path)), self._deadline())
        except ServerRefusal as refusal:
            if refusal.code != NoNodeError.code:
                raise
            return None
        return tuple(AccessRule(rule.perms, rule.id.scheme, rule.id.id) for rule in acl)

    def _deadline(self) -> Deadline:
        return self._session.deadline()


def _is_masked(rule: AccessRule) -> bool:
    return rule.scheme == "digest" and rule.identity.endswith(_MASKED)
