package bookwarden.broker.marks;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.zip.CRC32;

/**
 * A pending deletion, as src/bookwarden/ledgers/pending_deletion.py has it.
 *
 * @param copy the offloaded copy that is meant; null: the ledger in BookKeeper
 * @param markedAt in milliseconds since the epoch
 */
record Mark(NodePath path, Kind kind, long ledger, NamedLedgers.Copy copy, long markedAt) {

    /** Return the marks of a drop: of its ledgers in BookKeeper, of its offloaded copies, or of both. */
    static List<Mark> of(Drop drop, boolean ledgers, boolean copies) {
        List<Mark> marks = new ArrayList<>();
        for (Kind kind : ledgers ? Kind.values() : new Kind[] {}) {
            for (long id : kind.ids(drop.ledgers())) {
                marks.add(new Mark(drop.path(), kind, id, null, drop.time()));
            }
        }
        if (copies) {
            drop.ledgers().copies().forEach(
                    each -> marks.add(new Mark(drop.path(), Kind.DATA, each.ledger(), each, drop.time())));
        }
        return marks;
    }

    /** Return the same mark of another time. */
    Mark at(long time) {
        return new Mark(path, kind, ledger, copy, time);
    }

    /** Return the key of its message: messages of one holder share a partition, and their order. */
    String key() {
        return kind.holder(path);
    }

    /** Return the number of its partition. */
    int partition(int partitions) {
        CRC32 sum = new CRC32();
        sum.update(key().getBytes(StandardCharsets.UTF_8));
        return (int) (sum.getValue() % partitions);
    }

    String ledgerType() {
        return copy == null ? "LEDGER" : "OFFLOAD_LEDGER";
    }
}
