"""Proof that the leaders of an Oxia namespace's shards still lead them.

A leader that was replaced without learning it, cut off from its coordinator, goes on answering reads with its old
data (docs/oxia.md). It can commit nothing: a write has to reach most replicas, and those follow another by then.
"""

from __future__ import annotations

from typing import Final

from bookwarden.metastore.oxia.channels import ServerLost
from bookwarden.metastore.oxia.shards import OxiaCluster
from bookwarden.metastore.oxia.writes import ShardWriters
from bookwarden.wire.pb import oxia_client_pb2 as pb

# Nobody makes this key, so its delete goes through the log of the shard and changes nothing.
_KEY: Final = "/bookwarden-nothing"
_VERSION: Final = 0


def prove_leaders(cluster: OxiaCluster, writers: ShardWriters) -> None:
    """Have the leader of each shard commit a delete of nothing; StoreUnavailableError where one does not in time."""
    deadline = cluster.deadline()
    while True:
        shards = cluster.shards(deadline)
        cluster.keep_rate(len(shards.shards), deadline)
        delete = pb.DeleteRequest(key=_KEY, expected_version_id=_VERSION)
        sent = [(shard, writers.send(shard, pb.WriteRequest(deletes=[delete]))) for shard in shards.shards]
        lost: ServerLost | None = None
        for shard, pending in sent:
            try:
                pending.get(deadline)
            except ServerLost as error:
                lost = ServerLost(
                    f"{shard.leader or 'nobody'} commits nothing as the leader of shard {shard.id}: {error}"
                )
        # Leaders may have changed meanwhile, and the reads that follow go to the new ones.
        if lost is None and cluster.shards(deadline) is shards:
            return
        if lost is not None:
            cluster.wait_for_news(shards, lost, deadline)
