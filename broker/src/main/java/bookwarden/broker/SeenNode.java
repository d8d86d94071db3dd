package bookwarden.broker;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.List;
import java.util.UUID;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeoutException;
import org.apache.pulsar.metadata.api.extended.MetadataStoreExtended;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * The node that says what this process follows. It is ephemeral and of the broker's own session: whoever switches
 * matches it by that with the broker's node among the load reports, and sees it go when the broker does.
 */
final class SeenNode {
    private static final Logger LOG = LoggerFactory.getLogger(SeenNode.class);
    private static final ObjectMapper JSON = new ObjectMapper();

    /** What of the registry this jar heeds that the jar of 0.1.0 did not know. */
    private static final List<String> UNDERSTANDS = List.of("unmarkedBelow", "storeUrl");

    private final MetadataStoreExtended store;
    private final String folder;
    private final long limitMillis;
    private EphemeralNode node;

    SeenNode(MetadataStoreExtended store, String folder, long limitMillis) {
        this.store = store;
        this.folder = folder;
        this.limitMillis = limitMillis;
        this.node = another();
    }

    private EphemeralNode another() {
        return new EphemeralNode(store, folder + "/" + UUID.randomUUID(), limitMillis);
    }

    /** Write what is followed, unless the node says so already; a failure is logged, and the next poll tries again. */
    void write(ClusterView view) {
        try {
            byte[] value = value(view);
            if (!node.write(value)) {
                // It is about to go with its session: the new session has a node of its own.
                node = another();
                node.write(value);
            }
        } catch (ExecutionException | TimeoutException | JsonProcessingException e) {
            LOG.warn("cannot say in {} what this broker follows: {}", folder, Answers.cause(e).toString());
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
    }

    void remove() {
        node.remove();
    }

    private static byte[] value(ClusterView view) throws JsonProcessingException {
        ObjectNode fields = JSON.createObjectNode();
        fields.put("epoch", view.registry().epoch());
        fields.put("active", view.active().name());
        fields.put("owner", view.registry().owner());
        fields.put("host", EphemeralNode.host());
        fields.put("pid", ProcessHandle.current().pid());
        fields.put("jar", EphemeralNode.jar());
        ObjectNode instances = fields.putObject("instances");
        for (BookieCluster each : view.oldestFirst()) {
            if (each.isAdmitted()) {
                instances.put(each.name(), each.entry().instance());
            }
        }
        view.oldestFirst().stream().filter(BookieCluster::isFailing).map(BookieCluster::name)
                .forEach(fields.putArray("unreachable")::add);
        UNDERSTANDS.forEach(fields.putArray("understands")::add);
        return JSON.writeValueAsBytes(fields);
    }
}
