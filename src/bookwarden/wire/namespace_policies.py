"""The policies of a namespace: JSON of Pulsar's Policies, in the node below /admin/policies.

Source: Policies and AuthPolicies of Pulsar 4.0. Whatever else is in them stays as it is.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from bookwarden.errors import FormatError
from bookwarden.ledgers.trash import Roles

#: AuthPolicies.topicAuthentication.
_TOPICS: Final = "destination_auth"


def is_to_be_deleted(value: bytes) -> bool:
    """Return whether brokers are deleting the namespace; FormatError for other policies."""
    return bool(_decoded(value).get("deleted"))


def before_the_delete(value: bytes) -> bytes:
    """Return policies as they are, but not to be deleted."""
    policies = _decoded(value)
    return _encoded({**policies, "deleted": False}) if policies.get("deleted") else value


def topic_permissions(value: bytes) -> dict[str, Roles]:
    """Return the permissions of single topics by full name; FormatError for other policies."""
    try:
        found = (_decoded(value).get("auth_policies") or {}).get(_TOPICS) or {}
        return {
            str(topic): {str(role): tuple(map(str, actions)) for role, actions in roles.items()}
            for topic, roles in found.items()
        }
    except (AttributeError, TypeError) as error:
        raise FormatError(f"the policies of a namespace are not as Pulsar writes them: {error!r}") from error


def with_topic_permissions(value: bytes, added: Mapping[str, Roles]) -> bytes:
    """Return the policies with the permissions of topics that have none in them, the rest as it is."""
    missing = {topic: roles for topic, roles in added.items() if topic not in topic_permissions(value)}
    if not missing:
        return value
    policies = _decoded(value)
    of_topics = policies.setdefault("auth_policies", {}).setdefault(_TOPICS, {})
    for topic, roles in missing.items():
        of_topics[topic] = {role: list(actions) for role, actions in roles.items()}
    return _encoded(policies)


def _decoded(value: bytes) -> dict[str, Any]:
    try:
        found = json.loads(value)
    except ValueError as error:
        raise FormatError(f"the policies of a namespace are no JSON: {error}") from error
    if not isinstance(found, dict):
        raise FormatError("the policies of a namespace are no JSON object")
    return found


def _encoded(policies: Mapping[str, Any]) -> bytes:
    return json.dumps(policies, separators=(",", ":")).encode()
