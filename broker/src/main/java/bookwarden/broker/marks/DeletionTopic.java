package bookwarden.broker.marks;

import bookwarden.broker.Answers;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.ExecutionException;
import java.util.regex.Pattern;
import java.util.stream.Stream;
import org.apache.pulsar.common.naming.TopicName;
import org.apache.pulsar.common.util.Codec;
import org.apache.pulsar.metadata.api.GetResult;
import org.apache.pulsar.metadata.api.extended.MetadataStoreExtended;

/**
 * The deletion topic, as `bookwarden init` wrote it into a node: JSON, described in docs/broker-marks.md.
 *
 * @param partitions their number; 0 for a topic without partitions
 * @param subscription the sweep's, which keeps the marks
 * @param managedLedgers of this topic, its retry topic and its DLQ, or of what their partitions begin with
 */
record DeletionTopic(String topic, int partitions, MarkSchema schema, String subscription,
                     List<String> managedLedgers) {
    static final String PATH = "/bookwarden/broker-marks/deletion-topic";
    private static final int FORMAT = 1;
    private static final Pattern PARTITION = Pattern.compile("(-partition-[0-9]+)?");
    private static final ObjectMapper JSON = new ObjectMapper();

    /** Read the node, and see that the subscription is there; IOException with the reason if marks would be lost. */
    static DeletionTopic read(MetadataStoreExtended store, long limitMillis) throws IOException, InterruptedException {
        DeletionTopic topic = find(store, limitMillis)
                .orElseThrow(() -> new IOException("there is no " + PATH + ": run `bookwarden init`"));
        for (String partition : topic.names()) {
            String cursor = "/managed-ledgers/" + TopicName.get(partition).getPersistenceNamingEncoding() + "/"
                    + Codec.encode(topic.subscription);
            if (get(store, cursor, limitMillis).isEmpty()) {
                throw new IOException(partition + " has no subscription '" + topic.subscription
                        + "', so that marks would be lost: run `bookwarden init`");
            }
        }
        return topic;
    }

    /** Read the node; empty if there is none. */
    static Optional<DeletionTopic> find(MetadataStoreExtended store, long limitMillis)
            throws IOException, InterruptedException {
        Optional<GetResult> found = get(store, PATH, limitMillis);
        return found.isEmpty() ? Optional.empty() : Optional.of(parse(found.get().getValue()));
    }

    static DeletionTopic parse(byte[] value) throws IOException {
        try {
            JsonNode fields = JSON.readTree(value);
            if (fields.path("format").asInt() != FORMAT) {
                throw new IOException(PATH + ": format " + fields.get("format") + " is not " + FORMAT
                        + ": this broker needs the jar of the bookwarden that wrote it");
            }
            List<String> managedLedgers = Stream.of("topic", "retryTopic", "dlqTopic").filter(fields::has)
                    .map(each -> TopicName.get(fields.get(each).textValue()).getPersistenceNamingEncoding()).toList();
            return new DeletionTopic(fields.get("topic").textValue(), fields.get("partitions").intValue(),
                    new MarkSchema(fields.get("schema").textValue()), fields.get("subscription").textValue(),
                    managedLedgers);
        } catch (RuntimeException e) {
            throw new IOException(PATH + " is not as it must be: " + e, e);
        }
    }

    /** Return the names of its partitions in their order, or its own. */
    List<String> names() {
        List<String> names = new ArrayList<>();
        for (int number = 0; number < partitions; number++) {
            names.add(TopicName.get(topic).getPartition(number).toString());
        }
        return names.isEmpty() ? List.of(topic) : names;
    }

    /** Return whether a node is of this topic, its retry topic or its DLQ: of a partition, or of a cursor, too. */
    boolean owns(NodePath path) {
        return managedLedgers.stream().anyMatch(each -> path.managedLedger().startsWith(each)
                && PARTITION.matcher(path.managedLedger().substring(each.length())).matches());
    }

    private static Optional<GetResult> get(MetadataStoreExtended store, String path, long limitMillis)
            throws IOException, InterruptedException {
        try {
            return Answers.within(limitMillis, store.get(path)).get();
        } catch (ExecutionException e) {
            throw new IOException(path + " cannot be read: " + Answers.cause(e), e);
        }
    }
}
