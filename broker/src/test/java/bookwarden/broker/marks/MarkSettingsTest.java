package bookwarden.broker.marks;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.Optional;
import java.util.Properties;
import org.apache.pulsar.broker.ManagedLedgerClientFactory;
import org.apache.pulsar.broker.ServiceConfiguration;
import org.apache.pulsar.broker.storage.ManagedLedgerStorage;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** What broker.conf says, and what is refused. */
class MarkSettingsTest {

    @Test
    void theLinesOfBrokerConf() {
        MarkSettings stock = MarkSettings.of(conf("", ""));
        assertEquals("broker-1:8080", stock.broker());
        assertEquals(10_000, stock.checkAfterMillis());
        assertEquals(240_000, stock.sendAfterMillis());
        assertEquals(60_000, stock.takeOverAfterMillis());
        assertEquals(7_000, MarkSettings.of(conf("bookwardenMarksSendAfterSeconds", "7")).sendAfterMillis());
    }

    @Test
    void inTwoPhaseModeTheSweepMayBeBehindForTwoDays() {
        MarkSettings stock = MarkSettings.of(conf("bookwardenMarks", "two-phase"));
        assertEquals("two-phase", stock.mode());
        assertEquals(new MarkSettings.Limits(172_800_000, 107_374_182_400L), stock.twoPhase());
        assertEquals("mark", MarkSettings.of(conf("bookwardenMarks", "mark")).mode());
    }

    @ParameterizedTest
    @CsvSource({"bookwardenMarks, other", "bookwardenMarksCheckAfterSeconds, soon",
        "bookwardenMarksSendAfterSeconds, -1"})
    void whatIsRefused(String name, String value) {
        String message = assertThrows(IllegalArgumentException.class, () -> MarkSettings.of(conf(name, value)))
                .getMessage();
        assertTrue(message.startsWith(name + " is '" + value + "'"), message);
    }

    @Test
    void aClusterWhoseMetadataIsSentToOthersIsRefused() {
        ServiceConfiguration conf = conf("", "");
        conf.setMetadataSyncEventTopic("persistent://pulsar/system/events");
        assertTrue(assertThrows(IllegalArgumentException.class, () -> MarkSettings.of(conf)).getMessage()
                .contains("metadataSyncEventTopic"));
    }

    /** What 3.x calls has the same signature as its method: there it is an override. */
    @Test
    void olderReleasesAreRefusedByName() throws Exception {
        MarkingManagedLedgerStorage storage = new MarkingManagedLedgerStorage();
        assertTrue(assertThrows(UnsupportedOperationException.class,
                () -> storage.initialize(null, null, null, null)).getMessage().contains("4.0.4"));
        assertEquals(ManagedLedgerClientFactory.class, MarkingManagedLedgerStorage.class.getSuperclass());
        // 4.0.0 to 4.0.3 have what 3.x has not, but never ask for the store.
        MarkingManagedLedgerStorage.requireHook(ManagedLedgerClientFactory.class);
        assertTrue(assertThrows(UnsupportedOperationException.class,
                () -> MarkingManagedLedgerStorage.requireHook(ManagedLedgerStorage.class)).getMessage()
                .contains("4.0.4"));
    }

    private static ServiceConfiguration conf(String name, String value) {
        ServiceConfiguration conf = new ServiceConfiguration();
        conf.setAdvertisedAddress("broker-1");
        conf.setWebServicePort(Optional.of(8080));
        conf.setProperties(new Properties());
        if (!name.isEmpty()) {
            conf.getProperties().setProperty(name, value);
        }
        return conf;
    }
}
