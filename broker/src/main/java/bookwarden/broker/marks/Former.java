package bookwarden.broker.marks;

import java.util.List;
import java.util.Map;
import org.apache.pulsar.metadata.api.GetResult;

/**
 * What the trash keeps of a drop besides its ledgers.
 *
 * @param created when the node that named the ledgers was made, in milliseconds since the epoch
 * @param entries by id: the entry of a ledger in the list that it leaves; none where the node itself is deleted
 * @param node the node that is deleted or moved, or the schema's; null: none is
 * @param schema the id of the schema whose node that is; null: it is a topic's or a cursor's
 * @param field of a ledger that is none of the kinds that are marked here; null: there is none
 * @param ledger the id of this ledger
 * @param partitioned the value of the node of the partitioned topic whose partition is deleted; null: it is none
 * @param position ledger and entry of the cursor that a delete of its topic is about to move; null: its node is deleted
 */
record Former(long created, Map<Long, byte[]> entries, Node node, String schema, String field, long ledger,
              byte[] partitioned, List<Long> position) {

    /**
     * A node as it was.
     *
     * @param created in milliseconds since the epoch, as ``modified``
     */
    record Node(byte[] value, long version, long created, long modified) {
        static Node of(GetResult found) {
            return new Node(found.getValue(), found.getStat().getVersion(), found.getStat().getCreationTimestamp(),
                    found.getStat().getModificationTimestamp());
        }
    }

    /** Of ledgers that a node names no more, or is not going to. */
    static Former ofEntries(long created, Map<Long, byte[]> entries) {
        return new Former(created, entries, null, null, null, 0, null, null);
    }

    /** Of a node that is deleted. */
    static Former ofNode(Node node) {
        return new Former(node.created, Map.of(), node, null, null, 0, null, null);
    }

    /** Of a cursor that is about to be moved from there. */
    static Former ofMoved(Node node, long ledger, long entry) {
        return new Former(node.created, Map.of(), node, null, null, 0, null, List.of(ledger, entry));
    }

    /** Of a partition that is deleted, whose partitioned topic has a node of this value. */
    static Former ofPartition(Node node, byte[] partitioned) {
        return new Former(node.created, Map.of(), node, null, null, 0, partitioned, null);
    }

    /** Of a ledger of a schema that is removed. */
    static Former ofSchema(String schema, Node node, long ledger) {
        return new Former(node.created, Map.of(), node, schema, "schemas", ledger, null, null);
    }

    /** Of a compacted ledger of a topic whose node was made then. */
    static Former ofCompacted(long created, long ledger) {
        return new Former(created, Map.of(), null, null, "compacted", ledger, null, null);
    }
}
