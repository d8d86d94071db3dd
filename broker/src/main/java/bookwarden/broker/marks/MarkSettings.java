package bookwarden.broker.marks;

import java.util.Optional;
import java.util.Properties;
import org.apache.pulsar.broker.ServiceConfiguration;
import org.apache.pulsar.broker.ServiceConfigurationUtils;

/**
 * Lines of broker.conf, and what else of it matters here.
 *
 * @param broker HOST:PORT, as the load manager names this broker
 * @param checkAfterMillis a node of the outbox is looked at after so long: what the broker deleted is taken out
 * @param sendAfterMillis what is still in BookKeeper after so long is sent
 * @param takeOverAfterMillis the outbox of another broker is taken over when that is gone for so long
 * @param pollMillis from one look at the outbox to the next
 * @param maxBytes a broker has at most so much in the outbox
 * @param rememberedBytes values of nodes, to be compared with what replaces them
 * @param limitMillis an answer of the store is waited for so long
 */
record MarkSettings(String broker, long checkAfterMillis, long sendAfterMillis, long takeOverAfterMillis,
                    long pollMillis, long maxBytes, long rememberedBytes, long limitMillis) {
    static final String MODE = "bookwardenMarks";
    private static final String CHECK_AFTER = "bookwardenMarksCheckAfterSeconds";
    private static final String SEND_AFTER = "bookwardenMarksSendAfterSeconds";
    private static final String TAKE_OVER_AFTER = "bookwardenMarksTakeOverAfterSeconds";
    /** The only mode of this release. */
    static final String MARK = "mark";

    /** Read the settings; IllegalArgumentException where this broker cannot mark with them. */
    static MarkSettings of(ServiceConfiguration conf) {
        Properties lines = conf.getProperties();
        String mode = lines.getProperty(MODE, MARK).strip();
        if (!mode.equals(MARK)) {
            throw new IllegalArgumentException(MODE + " is '" + mode + "': the only mode of this jar is " + MARK);
        }
        String events = conf.getMetadataSyncEventTopic();
        if (events != null && !events.isBlank()) {
            throw new IllegalArgumentException("metadataSyncEventTopic is set: the outbox would be copied to other "
                    + "clusters. Take out that line, or the line managedLedgerStorageClassName");
        }
        return new MarkSettings(broker(conf), seconds(lines, CHECK_AFTER, 10), seconds(lines, SEND_AFTER, 240),
                seconds(lines, TAKE_OVER_AFTER, 60), 5_000, 64L << 20, 32L << 20, 30_000);
    }

    private static String broker(ServiceConfiguration conf) {
        Optional<Integer> port = conf.getWebServicePort().isPresent() ? conf.getWebServicePort()
                : conf.getWebServicePortTls();
        return ServiceConfigurationUtils.getDefaultOrConfiguredAddress(conf.getAdvertisedAddress()) + ":"
                + port.orElse(0);
    }

    private static long seconds(Properties lines, String name, long otherwise) {
        String value = lines.getProperty(name, Long.toString(otherwise)).strip();
        try {
            long seconds = Long.parseLong(value);
            if (seconds >= 0) {
                return seconds * 1000;
            }
        } catch (NumberFormatException e) {
            // Reported below.
        }
        throw new IllegalArgumentException(name + " is '" + value + "', not a number of seconds");
    }
}
