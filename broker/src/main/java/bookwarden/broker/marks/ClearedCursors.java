package bookwarden.broker.marks;

import com.github.benmanes.caffeine.cache.Cache;
import com.github.benmanes.caffeine.cache.Caffeine;
import java.time.Duration;

/**
 * Where cursors were before a delete moved them. Where a broker deletes a topic while its managed ledger is open and the
 * topic is not, as within a load, the managed ledger truncates itself first: it clears the backlog of each cursor, and
 * deletes it at the end of the topic. Nothing in the cursor's node or ledger tells that from a subscription that consumed
 * all; and what it had acknowledged out of order is dropped before its new ledger has an entry.
 */
final class ClearedCursors {
    /** From the begin of a delete to that of a cursor's node, tries of the broker included. */
    private static final Duration LONGEST = Duration.ofMinutes(10);
    private static final int MOST = 100_000;

    /**
     * A cursor as it was.
     *
     * @param ledger of its mark-delete position, as ``entry``
     * @param node the value of its node that was replaced within the delete; null: none was
     */
    record Cleared(long ledger, long entry, byte[] node) {
    }

    private final Cache<NodePath, Cleared> cursors =
            Caffeine.newBuilder().maximumSize(MOST).expireAfterWrite(LONGEST).build();

    /** Learn where a cursor is that is about to be cleared; a delete that is repeated finds it at the end. */
    void clears(NodePath cursor, long ledger, long entry) {
        cursors.asMap().putIfAbsent(cursor, new Cleared(ledger, entry, null));
    }

    /** Learn which value of a cursor's node is about to be replaced. */
    void replaces(NodePath cursor, byte[] node) {
        cursors.asMap().computeIfPresent(cursor, (path, found) -> found.node != null ? found
                : new Cleared(found.ledger, found.entry, node));
    }

    /** Return where a cursor was; null if it was not cleared. */
    Cleared of(NodePath cursor) {
        return cursors.getIfPresent(cursor);
    }

    /** Forget a cursor whose node is gone: one that is made later is another one. */
    void gone(NodePath cursor) {
        cursors.invalidate(cursor);
    }
}
