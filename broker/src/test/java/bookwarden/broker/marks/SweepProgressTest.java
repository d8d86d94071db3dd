package bookwarden.broker.marks;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.util.HashSet;
import java.util.Set;
import org.junit.jupiter.api.Test;

/** How far the sweep is behind, and which ledgers are held, by clocks of the test. */
class SweepProgressTest {
    private static final MarkSettings.Limits LIMITS = new MarkSettings.Limits(100_000, 1_000_000);
    private final Set<Long> gone = new HashSet<>();
    private long now = 1_000_000;
    private final SweepProgress progress = new SweepProgress(LIMITS, () -> now);

    /** Leave a ledger of 100 bytes each second. */
    private void leave(int from, int to) {
        for (long id = from; id < to; id++) {
            progress.add(id, 1, 100);
            now += 1000;
        }
    }

    @Test
    void theOldestThatIsThereHasTheAge() {
        assertEquals(0, progress.oldestMillis());
        leave(0, 50);
        progress.look(gone::contains);
        assertEquals(50_000, progress.oldestMillis());
        assertEquals(50, progress.ledgers());
        assertEquals(5_000, progress.bytes());
        for (long id = 0; id < 20; id++) {
            gone.add(id);
        }
        progress.look(gone::contains);
        assertEquals(30_000, progress.oldestMillis());
        assertEquals(3_000, progress.bytes());
        assertEquals("", progress.exceeded());
        now += 70_001;
        progress.look(gone::contains);
        assertEquals("age", progress.exceeded());
        for (long id = 20; id < 50; id++) {
            gone.add(id);
        }
        progress.look(gone::contains);
        assertEquals("", progress.exceeded());
        assertEquals(0, progress.bytes());
    }

    @Test
    void someThatAreNeverDeletedDoNotHideThatTheSweepGoesOn() {
        leave(0, 50);
        for (long id = 5; id < 40; id++) {
            gone.add(id);
        }
        for (int look = 0; look < 60; look++) {
            progress.look(gone::contains);
        }
        assertEquals(10_000, progress.oldestMillis());
    }

    @Test
    void whatIsRememberedIsBounded() throws Exception {
        for (long id = 0; id < 100_000; id++) {
            progress.add(id, 1, 10);
            now += 1;
        }
        assertEquals("", progress.exceeded());
        progress.add(100_000, 1, 1);
        now += 2;
        assertEquals("age", progress.exceeded());
        assertEquals(100_001, progress.ledgers());
        assertTrue(progress.encode().length < 64 * 1024, progress.encode().length + " bytes");
    }

    @Test
    void itGoesOnAfterARestart() throws Exception {
        leave(0, 50);
        SweepProgress next = new SweepProgress(LIMITS, () -> now);
        next.decode(progress.encode());
        assertEquals(50_000, next.oldestMillis());
        assertEquals(5_000, next.bytes());
        gone.add(0L);
        next.look(gone::contains);
        assertEquals(49_000, next.oldestMillis());
        assertThrows(IOException.class, () -> next.decode("{\"format\":2}".getBytes()));
        assertThrows(IOException.class, () -> next.decode("{\"format\":1}".getBytes()));
    }

    @Test
    void aHeldLedgerIsForgottenAfterAWhileAndWhenThereAreMany() {
        HeldLedgers held = new HeldLedgers(10, 60_000, () -> now);
        held.add(new long[] {1, 2, 3}, HeldLedgers.State.MARK);
        now += 59_000;
        assertTrue(held.has(1));
        held.release(new long[] {2});
        assertFalse(held.has(2));
        now += 59_000;
        assertTrue(held.has(1));
        now += 61_000;
        assertFalse(held.has(1));
        held.add(new long[] {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, HeldLedgers.State.RECORD);
        assertFalse(held.has(1));
        assertTrue(held.has(12));
        assertEquals(HeldLedgers.State.RECORD, held.state(12));
        held.add(new long[] {12}, HeldLedgers.State.MARK);
        assertEquals(HeldLedgers.State.MARK, held.state(12));
        held.clear();
        assertFalse(held.has(12));
    }
}
