package bookwarden.broker;

import static org.apache.bookkeeper.versioning.Version.Occurred.AFTER;
import static org.apache.bookkeeper.versioning.Version.Occurred.BEFORE;
import static org.apache.bookkeeper.versioning.Version.Occurred.CONCURRENTLY;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import org.apache.bookkeeper.versioning.LongVersion;
import org.apache.bookkeeper.versioning.Version;
import org.junit.jupiter.api.Test;

class PlacedVersionTest {
    private static PlacedVersion version(long epoch, boolean active, String cluster, long since, long inner) {
        return new PlacedVersion(epoch, active, cluster, since, new LongVersion(inner));
    }

    @Test
    void inOnePlaceTheVersionThereDecides() {
        PlacedVersion written = version(3, true, "a", 1, 6);
        assertEquals(CONCURRENTLY, written.compare(version(4, false, "a", 1, 6)));
        assertEquals(AFTER, written.compare(version(9, false, "a", 1, 5)));
        assertEquals(BEFORE, written.compare(version(3, true, "a", 1, 7)));
    }

    @Test
    void ofTwoPlacesTheLaterEpochThenTheActiveThenTheNewerIsNewer() {
        PlacedVersion first = version(3, false, "a", 1, 99);
        assertEquals(BEFORE, first.compare(version(4, false, "b", 2, 0)));
        assertEquals(BEFORE, first.compare(version(3, true, "b", 2, 0)));
        assertEquals(BEFORE, first.compare(version(3, false, "b", 2, 0)));
        assertEquals(AFTER, version(4, false, "b", 2, 0).compare(first));
        assertEquals(AFTER, version(3, true, "a", 1, 0).compare(version(3, false, "b", 2, 0)));
    }

    @Test
    void aLaterClusterOfTheSameNameIsAnotherPlace() {
        assertEquals(BEFORE, version(5, true, "b", 2, 7).compare(version(6, true, "b", 6, 0)));
    }

    @Test
    void versionsBeyond32BitsAreKept() {
        assertEquals(BEFORE, version(1, true, "a", 1, 1L << 40).compare(version(1, true, "a", 1, (1L << 40) + 1)));
    }

    @Test
    void newAndAnyAreAsBookKeeperHasThem() {
        assertEquals(AFTER, version(1, true, "a", 1, 0).compare(Version.NEW));
        assertEquals(CONCURRENTLY, version(1, true, "a", 1, 0).compare(Version.ANY));
        assertThrows(IllegalArgumentException.class, () -> version(1, true, "a", 1, 0).compare(new LongVersion(1)));
    }
}
