package bookwarden.broker;

import java.net.InetAddress;
import java.net.UnknownHostException;
import java.util.Arrays;
import java.util.EnumSet;
import java.util.Optional;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import org.apache.pulsar.metadata.api.GetResult;
import org.apache.pulsar.metadata.api.extended.CreateOption;
import org.apache.pulsar.metadata.api.extended.MetadataStoreExtended;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** A node of the broker's own session: others see it go when the broker does. To be written again with each poll. */
public final class EphemeralNode {
    private static final Logger LOG = LoggerFactory.getLogger(EphemeralNode.class);
    private static final EnumSet<CreateOption> EPHEMERAL = EnumSet.of(CreateOption.Ephemeral);

    private final MetadataStoreExtended store;
    private final String path;
    private final long limitMillis;

    public EphemeralNode(MetadataStoreExtended store, String path, long limitMillis) {
        this.store = store;
        this.path = path;
        this.limitMillis = limitMillis;
    }

    /**
     * Write a value, unless the node has it already. Return false, and write nothing, if the node is of another session:
     * a lost one of this broker, or of another broker.
     */
    public boolean write(byte[] value) throws ExecutionException, TimeoutException, InterruptedException {
        Optional<GetResult> found = store.get(path).get(limitMillis, TimeUnit.MILLISECONDS);
        boolean ours = found.isPresent() && found.get().getStat().isCreatedBySelf();
        if (found.isPresent() && !ours) {
            return false;
        }
        if (!ours || !Arrays.equals(found.get().getValue(), value)) {
            Optional<Long> version = Optional.of(ours ? found.get().getStat().getVersion() : -1L);
            store.put(path, value, version, EPHEMERAL).get(limitMillis, TimeUnit.MILLISECONDS);
        }
        return true;
    }

    /** Remove the node; if that fails it goes with its session. */
    public void remove() {
        try {
            store.delete(path, Optional.empty()).get(limitMillis, TimeUnit.MILLISECONDS);
        } catch (ExecutionException | TimeoutException e) {
            LOG.info("{} goes with its session: {}", path, Answers.cause(e).toString());
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
    }

    /** Return the name of this machine. */
    public static String host() {
        try {
            return InetAddress.getLocalHost().getHostName();
        } catch (UnknownHostException e) {
            return "unknown";
        }
    }

    /** Return the release of this jar, which its manifest has. */
    public static String jar() {
        String version = EphemeralNode.class.getPackage().getImplementationVersion();
        return version == null ? "unpacked" : version;
    }
}
