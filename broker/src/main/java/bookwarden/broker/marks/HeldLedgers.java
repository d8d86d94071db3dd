package bookwarden.broker.marks;

import java.util.Arrays;
import java.util.HashMap;
import java.util.Map;
import java.util.function.LongSupplier;

/**
 * The ledgers that this broker dropped and that are in the outbox, or were: when it asks BookKeeper to remove one, the
 * sweep does that. Only in memory, and forgotten after a while, after a restart, and when there are too many: a ledger
 * that is not held is removed by the broker as ever, and its mark is found done.
 *
 * <p>What matters is the other direction: a ledger is held only while each removal that may still come is covered by
 * a mark. Its mark may be at its end, as *still referenced*, when the write that dropped it failed, or when a tool
 * named it again; a later drop of it must be in the outbox again, or be forgotten here.
 */
final class HeldLedgers {
    private final int most;
    private final long millis;
    private final LongSupplier clock;
    private Map<Long, State> newer = new HashMap<>();
    private Map<Long, State> older = new HashMap<>();
    private long began;

    /** What is in the outbox for a ledger. */
    enum State { NOTHING, MARK, RECORD }

    /**
     * @param most so many are remembered, those that came last
     * @param millis each is remembered for so long at least, if there are not too many
     * @param clock a monotonic clock in milliseconds
     */
    HeldLedgers(int most, long millis, LongSupplier clock) {
        this.most = most;
        this.millis = millis;
        this.clock = clock;
        began = clock.getAsLong();
    }

    /** Hold ledgers that are in the outbox, by their marks, or by their records of the trash. */
    synchronized void add(long[] ledgers, State state) {
        for (long ledger : ledgers) {
            age();
            newer.put(ledger, state);
        }
    }

    synchronized boolean has(long ledger) {
        return state(ledger) != State.NOTHING;
    }

    synchronized State state(long ledger) {
        age();
        return newer.getOrDefault(ledger, older.getOrDefault(ledger, State.NOTHING));
    }

    /** Forget ledgers: their drop did not come to pass, or is not in the outbox. */
    synchronized void release(long[] ledgers) {
        Arrays.stream(ledgers).forEach(each -> {
            newer.remove(each);
            older.remove(each);
        });
    }

    /** Forget all: something was dropped, and what it was is not known. */
    synchronized void clear() {
        newer = new HashMap<>();
        older = new HashMap<>();
    }

    private void age() {
        long now = clock.getAsLong();
        if (newer.size() >= most / 2 || now - began >= millis) {
            older = now - began >= 2 * millis ? new HashMap<>() : newer;
            newer = new HashMap<>();
            began = now;
        }
    }
}
