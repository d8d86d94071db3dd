package bookwarden.broker;

import java.io.IOException;
import org.apache.bookkeeper.conf.AbstractConfiguration;
import org.apache.bookkeeper.meta.LayoutManager;
import org.apache.bookkeeper.meta.LedgerAuditorManager;
import org.apache.bookkeeper.meta.LedgerIdGenerator;
import org.apache.bookkeeper.meta.LedgerManager;
import org.apache.bookkeeper.meta.LedgerManagerFactory;
import org.apache.bookkeeper.meta.LedgerUnderreplicationManager;
import org.apache.bookkeeper.replication.ReplicationException;
import org.apache.pulsar.metadata.bookkeeper.PulsarLedgerIdGenerator;

/** Makes what a client needs; bookies, auditors and tools that list or format work on one real cluster. */
final class RoutingLedgerManagerFactory implements LedgerManagerFactory {
    private static final String REFUSED = "several bookie clusters are shown as one: use the URI of one of them to ";
    private final ClusterFollower follower;

    RoutingLedgerManagerFactory(ClusterFollower follower) {
        this.follower = follower;
    }

    @Override
    public int getCurrentVersion() {
        return 1;
    }

    @Override
    @SuppressWarnings("rawtypes") // as the interface has it
    public LedgerManagerFactory initialize(AbstractConfiguration conf, LayoutManager layout, int version) {
        return this;
    }

    /**
     * One generator for all clusters. Brokers see a switch at different times; with one for each cluster a late broker
     * would take a smaller id, which a managed ledger sorts before the others and so loses what is in them.
     */
    @Override
    public LedgerIdGenerator newLedgerIdGenerator() {
        return new PulsarLedgerIdGenerator(follower.store(), follower.view().registry().idRoot());
    }

    @Override
    public LedgerManager newLedgerManager() {
        return new RoutingLedgerManager(follower);
    }

    @Override
    public LedgerUnderreplicationManager newLedgerUnderreplicationManager()
            throws ReplicationException.UnavailableException {
        throw new ReplicationException.UnavailableException(REFUSED + "replicate");
    }

    @Override
    public LedgerAuditorManager newLedgerAuditorManager() throws IOException {
        throw new IOException(REFUSED + "audit");
    }

    @Override
    public void format(AbstractConfiguration<?> conf, LayoutManager layout) throws IOException {
        throw new IOException(REFUSED + "format it");
    }

    @Override
    public boolean validateAndNukeExistingCluster(AbstractConfiguration<?> conf, LayoutManager layout)
            throws IOException {
        throw new IOException(REFUSED + "remove it");
    }

    @Override
    public void close() {
        // What it makes is closed by itself, and the follower by the driver.
    }
}
