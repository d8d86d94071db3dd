package bookwarden.broker;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.net.InetAddress;
import java.net.UnknownHostException;
import java.util.Arrays;
import java.util.EnumSet;
import java.util.List;
import java.util.Optional;
import java.util.UUID;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import org.apache.pulsar.metadata.api.GetResult;
import org.apache.pulsar.metadata.api.extended.CreateOption;
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
    private static final EnumSet<CreateOption> EPHEMERAL = EnumSet.of(CreateOption.Ephemeral);

    /** What of the registry this jar heeds that the jar of 0.1.0 did not know. */
    private static final List<String> UNDERSTANDS = List.of("unmarkedBelow", "storeUrl");

    private final MetadataStoreExtended store;
    private final String folder;
    private final long limitMillis;
    private String path;

    SeenNode(MetadataStoreExtended store, String folder, long limitMillis) {
        this.store = store;
        this.folder = folder;
        this.limitMillis = limitMillis;
        this.path = folder + "/" + UUID.randomUUID();
    }

    /** Write what is followed, unless the node says so already; a failure is logged, and the next poll tries again. */
    void write(ClusterView view) {
        try {
            byte[] value = value(view);
            Optional<GetResult> found = store.get(path).get(limitMillis, TimeUnit.MILLISECONDS);
            boolean ours = found.isPresent() && found.get().getStat().isCreatedBySelf();
            if (ours && Arrays.equals(found.get().getValue(), value)) {
                return;
            }
            if (!ours) {
                // It is gone with its session, or about to go with it: the new session has a node of its own.
                path = folder + "/" + UUID.randomUUID();
            }
            Optional<Long> version = Optional.of(ours ? found.get().getStat().getVersion() : -1L);
            store.put(path, value, version, EPHEMERAL).get(limitMillis, TimeUnit.MILLISECONDS);
        } catch (ExecutionException | TimeoutException | JsonProcessingException e) {
            LOG.warn("cannot say at {} what this broker follows: {}", path, Answers.cause(e).toString());
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
    }

    /** Remove the node; if that fails it goes with its session. */
    void remove() {
        try {
            store.delete(path, Optional.empty()).get(limitMillis, TimeUnit.MILLISECONDS);
        } catch (ExecutionException | TimeoutException e) {
            LOG.info("{} goes with its session: {}", path, Answers.cause(e).toString());
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
    }

    private static byte[] value(ClusterView view) throws JsonProcessingException {
        ObjectNode fields = JSON.createObjectNode();
        fields.put("epoch", view.registry().epoch());
        fields.put("active", view.active().name());
        fields.put("owner", view.registry().owner());
        fields.put("host", host());
        fields.put("pid", ProcessHandle.current().pid());
        fields.put("jar", jar());
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

    private static String host() {
        try {
            return InetAddress.getLocalHost().getHostName();
        } catch (UnknownHostException e) {
            return "unknown";
        }
    }

    /** Return the release of this jar, which its manifest has. */
    private static String jar() {
        String version = SeenNode.class.getPackage().getImplementationVersion();
        return version == null ? "unpacked" : version;
    }
}
