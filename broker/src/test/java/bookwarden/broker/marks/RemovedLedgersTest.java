package bookwarden.broker.marks;

import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.concurrent.atomic.AtomicLong;
import org.junit.jupiter.api.Test;

class RemovedLedgersTest {
    @Test
    void aLedgerIsKnownForItsTimeAlone() {
        AtomicLong clock = new AtomicLong(Long.MAX_VALUE - 5);
        RemovedLedgers removed = new RemovedLedgers(10, clock::get);
        removed.add(7);
        assertTrue(removed.has(7));
        clock.addAndGet(9);
        assertTrue(removed.has(7), "the clock may overflow");
        clock.incrementAndGet();
        assertFalse(removed.has(7));
    }

    @Test
    void whatWasNeverRemovedIsNotKnownHoweverTheClockBegins() {
        for (long start : new long[] {-5, 0, 5}) {
            RemovedLedgers removed = new RemovedLedgers(10, () -> start);
            assertFalse(removed.has(0));
            assertFalse(removed.has(7));
        }
    }
}
