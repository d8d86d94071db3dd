package bookwarden.broker.marks;

import bookwarden.broker.Answers;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.IOException;
import java.util.Optional;
import java.util.concurrent.ExecutionException;
import org.apache.pulsar.metadata.api.GetResult;
import org.apache.pulsar.metadata.api.extended.MetadataStoreExtended;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Whether brokers are to mark, as `bookwarden broker-marks off` and `on` write it into a node: JSON, described in
 * docs/broker-marks.md. Without the node they do.
 */
final class MarksEnabled {
    static final String PATH = "/bookwarden/broker-marks/enabled";
    private static final int FORMAT = 1;
    private static final Logger LOG = LoggerFactory.getLogger(MarksEnabled.class);
    private static final ObjectMapper JSON = new ObjectMapper();

    private final MetadataStoreExtended store;
    private final long limitMillis;
    private volatile boolean enabled = true;
    private String reported = "";

    MarksEnabled(MetadataStoreExtended store, long limitMillis) {
        this.store = store;
        this.limitMillis = limitMillis;
    }

    boolean get() {
        return enabled;
    }

    /** Read the node; where that fails it stays as it was. Return whether it is different now. */
    boolean read() throws InterruptedException {
        boolean before = enabled;
        try {
            Optional<GetResult> found = Answers.within(limitMillis, store.get(PATH)).get();
            enabled = found.isEmpty() || parse(found.get().getValue());
            reported = "";
        } catch (ExecutionException | IOException | RuntimeException e) {
            String error = Answers.cause(e).toString();
            if (!error.equals(reported)) {
                reported = error;
                LOG.error("whether to mark cannot be read in {}, so that marks stay {}: {}", PATH,
                        before ? "on" : "off", error);
            }
        }
        if (enabled != before) {
            LOG.info("marks are turned {}", enabled ? "on" : "off: what leaves the metadata is not in the outbox first");
        }
        return enabled != before;
    }

    private static boolean parse(byte[] value) throws IOException {
        JsonNode fields = JSON.readTree(value);
        if (fields == null || fields.path("format").asInt() != FORMAT || !fields.path("enabled").isBoolean()) {
            throw new IOException("not as it must be, or of another format than " + FORMAT);
        }
        return fields.get("enabled").booleanValue();
    }
}
