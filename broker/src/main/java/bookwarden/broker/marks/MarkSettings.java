package bookwarden.broker.marks;

import java.util.Optional;
import java.util.Properties;
import org.apache.pulsar.broker.ServiceConfiguration;
import org.apache.pulsar.broker.ServiceConfigurationUtils;

/**
 * Lines of broker.conf, and what else of it matters here.
 *
 * @param broker HOST:PORT, as the load manager names this broker
 * @param twoPhase when the broker deletes by itself again, in the mode in which the sweep does; null in mode mark
 * @param checkAfterMillis what the broker deletes by itself is asked for after so long, and taken out of the outbox
 * @param sendAfterMillis what of that is still in BookKeeper after so long is sent
 * @param takeOverAfterMillis the outbox of another broker is taken over when that is gone for so long
 * @param pollMillis from one look at the outbox to the next
 * @param maxBytes a broker has at most so much in the outbox
 * @param rememberedBytes values of nodes, to be compared with what replaces them
 * @param limitMillis an answer of the store is waited for so long
 */
record MarkSettings(String broker, Limits twoPhase, long checkAfterMillis, long sendAfterMillis,
                    long takeOverAfterMillis, long pollMillis, long maxBytes, long rememberedBytes, long limitMillis) {
    /**
     * How far the sweep may be behind.
     *
     * @param maxAgeMillis age of the oldest ledger that is left to it
     * @param maxBytes of all that are
     */
    record Limits(long maxAgeMillis, long maxBytes) {
    }

    static final String MODE = "bookwardenMarks";
    private static final String CHECK_AFTER = "bookwardenMarksCheckAfterSeconds";
    private static final String SEND_AFTER = "bookwardenMarksSendAfterSeconds";
    private static final String TAKE_OVER_AFTER = "bookwardenMarksTakeOverAfterSeconds";
    private static final String MAX_AGE = "bookwardenMarksMaxAgeSeconds";
    private static final String MAX_BYTES = "bookwardenMarksMaxBytes";
    private static final long DEFAULT_MAX_AGE = 2 * 24 * 3600;
    private static final long DEFAULT_MAX_BYTES = 100L << 30;
    /**
     * Longer than the minute for which a broker may keep the thread that gets the store's answers, as it does where it
     * closes the delayed messages of a topic within one: the write itself would wait as long.
     */
    private static final long LIMIT_MILLIS = 75_000;
    static final String MARK = "mark";
    static final String TWO_PHASE = "two-phase";

    /** Read the settings; IllegalArgumentException where this broker cannot mark with them. */
    static MarkSettings of(ServiceConfiguration conf) {
        Properties lines = conf.getProperties();
        String mode = lines.getProperty(MODE, MARK).strip();
        boolean twoPhase = mode.equals(TWO_PHASE);
        if (!twoPhase && !mode.equals(MARK)) {
            throw new IllegalArgumentException(MODE + " is '" + mode + "': the modes of this jar are " + MARK + " and "
                    + TWO_PHASE);
        }
        String events = conf.getMetadataSyncEventTopic();
        if (events != null && !events.isBlank()) {
            throw new IllegalArgumentException("metadataSyncEventTopic is set: the outbox would be copied to other "
                    + "clusters. Take out that line, or the line managedLedgerStorageClassName");
        }
        Limits limits = !twoPhase ? null : new Limits(1000 * whole(lines, MAX_AGE, DEFAULT_MAX_AGE, "seconds"),
                whole(lines, MAX_BYTES, DEFAULT_MAX_BYTES, "bytes"));
        return new MarkSettings(broker(conf), limits, seconds(lines, CHECK_AFTER, 10), seconds(lines, SEND_AFTER, 240),
                seconds(lines, TAKE_OVER_AFTER, 60), 5_000, 64L << 20, 32L << 20, LIMIT_MILLIS);
    }

    /** Return the mode, as broker.conf names it. */
    String mode() {
        return twoPhase == null ? MARK : TWO_PHASE;
    }

    private static String broker(ServiceConfiguration conf) {
        Optional<Integer> port = conf.getWebServicePort().isPresent() ? conf.getWebServicePort()
                : conf.getWebServicePortTls();
        return ServiceConfigurationUtils.getDefaultOrConfiguredAddress(conf.getAdvertisedAddress()) + ":"
                + port.orElse(0);
    }

    private static long seconds(Properties lines, String name, long otherwise) {
        return 1000 * whole(lines, name, otherwise, "seconds");
    }

    private static long whole(Properties lines, String name, long otherwise, String unit) {
        String value = lines.getProperty(name, Long.toString(otherwise)).strip();
        try {
            long number = Long.parseLong(value);
            if (number >= 0) {
                return number;
            }
        } catch (NumberFormatException e) {
            // Reported below.
        }
        throw new IllegalArgumentException(name + " is '" + value + "', not a number of " + unit);
    }
}
