package bookwarden.broker;

import java.io.IOException;
import java.util.Optional;
import java.util.concurrent.ScheduledExecutorService;
import org.apache.bookkeeper.conf.ClientConfiguration;
import org.apache.bookkeeper.discover.RegistrationClient;
import org.apache.bookkeeper.meta.LayoutManager;
import org.apache.bookkeeper.meta.LedgerManagerFactory;
import org.apache.bookkeeper.meta.MetadataClientDriver;
import org.apache.bookkeeper.meta.MetadataDrivers;
import org.apache.bookkeeper.meta.exceptions.Code;
import org.apache.bookkeeper.meta.exceptions.MetadataException;
import org.apache.bookkeeper.stats.StatsLogger;
import org.apache.commons.configuration2.ex.ConfigurationException;
import org.apache.pulsar.metadata.api.extended.SessionEvent;

/**
 * Shows all registered bookie clusters to a BookKeeper client as one. Its URI is
 * bookwarden://HOST:PORT[;HOST:PORT]/LEDGERS_ROOT. The driver itself follows the registry; host and path are for
 * Functions and packages, which take them for DistributedLog, and for tools without a metadata store of Pulsar's.
 */
public final class BookieClustersDriver implements MetadataClientDriver {
    static final String SCHEME = "bookwarden";
    private ClusterFollower follower;
    private BookieUnion bookies;
    private LedgerManagerFactory factory;

    static {
        MetadataDrivers.registerClientDriver(SCHEME, BookieClustersDriver.class);
    }

    @Override
    public MetadataClientDriver initialize(ClientConfiguration conf, ScheduledExecutorService scheduler,
                                           StatsLogger stats, Optional<Object> context) throws MetadataException {
        try {
            follower = ClusterFollower.acquire(Settings.of(conf));
            bookies = new BookieUnion(follower);
            factory = Removals.asking(new RoutingLedgerManagerFactory(follower));
            PerClusterPlacementPolicy.wrap(conf, follower);
        } catch (IOException | ConfigurationException e) {
            close();
            throw new MetadataException(Code.METADATA_SERVICE_ERROR, e.getMessage(), e);
        } catch (InterruptedException e) {
            close();
            Thread.currentThread().interrupt();
            throw new MetadataException(Code.METADATA_SERVICE_ERROR, e);
        }
        return this;
    }

    @Override
    public String getScheme() {
        return SCHEME;
    }

    @Override
    public RegistrationClient getRegistrationClient() {
        return bookies;
    }

    @Override
    public LedgerManagerFactory getLedgerManagerFactory() {
        return factory;
    }

    /** Return the layout of the active cluster: all have the same one. */
    @Override
    public LayoutManager getLayoutManager() {
        return follower.view().active().layout();
    }

    @Override
    public void setSessionStateListener(SessionStateListener listener) {
        follower.store().registerSessionListener(event -> {
            if (event == SessionEvent.SessionLost) {
                listener.onSessionExpired();
            }
        });
    }

    @Override
    public synchronized void close() {
        if (bookies != null) {
            bookies.close();
            bookies = null;
        }
        if (follower != null) {
            follower.release();
            follower = null;
        }
    }
}
