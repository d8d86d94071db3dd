package bookwarden.broker.marks;

import java.util.Arrays;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.UUID;
import java.util.function.LongPredicate;
import java.util.stream.LongStream;
import java.util.stream.Stream;

/**
 * The ledgers that the value of a node names, or those of them that the next value no longer names. Pure.
 *
 * @param data ledgers of a topic, by growing id
 * @param removed those of them that the broker says it removed from BookKeeper, since it has an offloaded copy
 * @param copies offloaded copies, also of attempts that were not completed
 * @param cursors the ledger in which a cursor keeps its position: none or one
 * @param buckets ledgers of a cursor's delayed messages, by growing id
 */
record NamedLedgers(long[] data, long[] removed, List<Copy> copies, long[] cursors, long[] buckets) {
    private static final long[] NO_IDS = {};
    static final NamedLedgers NONE = new NamedLedgers(NO_IDS, NO_IDS, List.of(), NO_IDS, NO_IDS);

    /**
     * An offloaded copy of a ledger.
     *
     * @param ledger its ledger
     * @param uuid names the objects of the copy; a second attempt for the same ledger has another one
     * @param driver where it is
     */
    record Copy(long ledger, UUID uuid, Driver driver) {
        private List<Object> key() {
            return List.of(ledger, uuid);
        }
    }

    static NamedLedgers ofTopic(long[] data, long[] removed, List<Copy> copies) {
        return new NamedLedgers(data, removed, copies, NO_IDS, NO_IDS);
    }

    /** Return what a cursor's node names; a negative id is no ledger. */
    static NamedLedgers ofCursor(long ledger, long[] buckets) {
        return new NamedLedgers(NO_IDS, NO_IDS, List.of(), ledger < 0 ? NO_IDS : new long[] {ledger}, buckets);
    }

    /**
     * Return what this value names and the next one does not. A ledger that stays in the list, and is said to be
     * removed from BookKeeper from now on, is dropped there. One that leaves the list is dropped there even where that
     * was said before: the broker says so before it removes it, and never tries that again.
     */
    NamedLedgers without(NamedLedgers next) {
        long[] droppedData = those(data, id -> !has(next.data, id) || has(next.removed, id) && !has(removed, id));
        long[] droppedCursors = those(cursors, id -> !has(next.cursors, id));
        long[] droppedBuckets = those(buckets, id -> !has(next.buckets, id));
        List<Copy> droppedCopies = copies;
        if (!copies.isEmpty() && !next.copies.isEmpty()) {
            Set<List<Object>> kept = new HashSet<>();
            next.copies.forEach(each -> kept.add(each.key()));
            droppedCopies = copies.stream().filter(each -> !kept.contains(each.key())).toList();
        }
        return new NamedLedgers(droppedData, NO_IDS, droppedCopies, droppedCursors, droppedBuckets);
    }

    boolean isEmpty() {
        return isInObjectStoresOnly() && copies.isEmpty();
    }

    /** Return the ids of what is in BookKeeper. */
    LongStream inBookKeeper() {
        return Stream.of(data, cursors, buckets).flatMapToLong(Arrays::stream);
    }

    /** Return the same without some of what is in BookKeeper. */
    NamedLedgers withoutInBookKeeper(LongPredicate gone) {
        return new NamedLedgers(those(data, gone.negate()), removed, copies, those(cursors, gone.negate()),
                those(buckets, gone.negate()));
    }

    NamedLedgers withoutCopies() {
        return new NamedLedgers(data, removed, List.of(), cursors, buckets);
    }

    NamedLedgers onlyCopies() {
        return new NamedLedgers(NO_IDS, NO_IDS, copies, NO_IDS, NO_IDS);
    }

    /** Return whether nothing of it is in BookKeeper. */
    boolean isInObjectStoresOnly() {
        return data.length + cursors.length + buckets.length == 0;
    }

    private static long[] those(long[] ids, LongPredicate condition) {
        return ids.length == 0 ? ids : Arrays.stream(ids).filter(condition).toArray();
    }

    private static boolean has(long[] sorted, long id) {
        return Arrays.binarySearch(sorted, id) >= 0;
    }
}
