package bookwarden.broker.marks;

import java.util.concurrent.atomic.AtomicLongArray;
import java.util.function.LongSupplier;

/**
 * The ledgers that this broker removed from BookKeeper a moment ago: they need no mark when their node goes next. A
 * table in which a newer one takes the place of an older one: what is not known any more is asked for.
 */
final class RemovedLedgers {
    private static final int SLOTS = 1 << 17;
    private static final long NONE = -1;
    private final AtomicLongArray ledgers = new AtomicLongArray(SLOTS);
    private final AtomicLongArray times = new AtomicLongArray(SLOTS);
    private final long nanos;
    private final LongSupplier clock;

    /**
     * @param nanos how long each is known: an id may come again after a move to another store
     * @param clock a monotonic clock in nanoseconds
     */
    RemovedLedgers(long nanos, LongSupplier clock) {
        for (int slot = 0; slot < SLOTS; slot++) {
            ledgers.setPlain(slot, NONE);
        }
        this.nanos = nanos;
        this.clock = clock;
    }

    void add(long ledger) {
        int slot = slot(ledger);
        times.set(slot, clock.getAsLong());
        ledgers.set(slot, ledger);
    }

    boolean has(long ledger) {
        int slot = slot(ledger);
        return ledgers.get(slot) == ledger && clock.getAsLong() - times.get(slot) < nanos;
    }

    private static int slot(long ledger) {
        return (int) (ledger & SLOTS - 1);
    }
}
