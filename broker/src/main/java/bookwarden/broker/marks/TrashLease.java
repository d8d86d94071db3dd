package bookwarden.broker.marks;

import bookwarden.broker.Answers;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.ExecutionException;
import java.util.function.LongSupplier;
import java.util.function.Predicate;
import java.util.regex.Pattern;
import org.apache.pulsar.metadata.api.GetResult;
import org.apache.pulsar.metadata.api.extended.MetadataStoreExtended;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * The leave to keep in the trash what is dropped, which the sweep renews in a node while it keeps up: JSON, described
 * in docs/trash.md. Without it, or once it has ended, nothing is kept.
 */
final class TrashLease {
    static final String PATH = "/bookwarden/trash/lease";
    private static final int FORMAT = 1;
    private static final String TOPICS = "/persistent/";
    private static final Logger LOG = LoggerFactory.getLogger(TrashLease.class);
    private static final ObjectMapper JSON = new ObjectMapper();

    private final MetadataStoreExtended store;
    private final long limitMillis;
    private final Predicate<NodePath> kept;
    private final LongSupplier clock;
    private volatile Lease lease = new Lease(0, List.of());
    private String reported = "";

    private record Rule(Pattern namespaces, boolean deleted, boolean trimmed) {
    }

    /** The first rule that matches holds. */
    private record Lease(long until, List<Rule> rules) {
    }

    /**
     * @param kept whether anything of a node may be kept now
     * @param clock in milliseconds since the epoch
     */
    TrashLease(MetadataStoreExtended store, long limitMillis, Predicate<NodePath> kept, LongSupplier clock) {
        this.store = store;
        this.limitMillis = limitMillis;
        this.kept = kept;
        this.clock = clock;
    }

    /** Return whether this node is kept when it is deleted, and what goes with it. */
    boolean keepsDeleted(NodePath path) {
        Rule rule = rule(path);
        return rule != null && rule.deleted;
    }

    /** Return whether ledgers that leave this topic's list are kept: a delete begins with that, too. */
    boolean keepsTrimmed(NodePath path) {
        Rule rule = path.cursor() == null ? rule(path) : null;
        return rule != null && (rule.deleted || rule.trimmed);
    }

    private Rule rule(NodePath path) {
        Lease now = lease;
        if (now.rules.isEmpty() || clock.getAsLong() >= now.until || !kept.test(path)) {
            return null;
        }
        String namespace = path.managedLedger().substring(0, path.managedLedger().indexOf(TOPICS));
        return now.rules.stream().filter(each -> each.namespaces.matcher(namespace).matches()).findFirst().orElse(null);
    }

    /** Read the node; where the store does not answer, the lease that was read last holds until its end. */
    void read() throws InterruptedException {
        try {
            Optional<GetResult> found = Answers.within(limitMillis, store.get(PATH)).get();
            lease = found.isEmpty() ? new Lease(0, List.of()) : parse(found.get().getValue());
            reported = "";
        } catch (IOException | RuntimeException e) {
            lease = new Lease(0, List.of());
            report("nothing is kept in the trash, since " + PATH + " cannot be read: " + e);
        } catch (ExecutionException e) {
            report(PATH + " is not read now: " + Answers.cause(e));
        }
    }

    private void report(String error) {
        if (!error.equals(reported)) {
            reported = error;
            LOG.error("{}", error);
        }
    }

    private static Lease parse(byte[] value) throws IOException {
        JsonNode fields = JSON.readTree(value);
        if (fields == null || fields.path("format").asInt() != FORMAT) {
            throw new IOException("its format is not " + FORMAT);
        }
        List<Rule> rules = new ArrayList<>();
        for (JsonNode each : fields.get("keep")) {
            rules.add(new Rule(pattern(each.get("namespaces").textValue()), each.get("deletedSeconds").longValue() > 0,
                    each.get("trimmedSeconds").longValue() > 0));
        }
        return new Lease(fields.get("deferUntil").longValue(), rules);
    }

    /** Return what matches as Python's fnmatch does, of whose special characters patterns have only * and ?. */
    private static Pattern pattern(String namespaces) {
        StringBuilder regex = new StringBuilder();
        namespaces.codePoints().forEach(each -> regex.append(
                each == '*' ? ".*" : each == '?' ? "." : Pattern.quote(Character.toString(each))));
        return Pattern.compile(regex.toString(), Pattern.DOTALL);
    }
}
