package bookwarden.broker;

import java.net.URI;
import java.util.List;
import org.apache.bookkeeper.conf.ClientConfiguration;
import org.apache.commons.configuration2.ex.ConfigurationException;
import org.apache.pulsar.metadata.api.extended.MetadataStoreExtended;
import org.apache.pulsar.metadata.bookkeeper.AbstractMetadataDriver;

/**
 * What the follower of the registry is told, from the configuration of BookKeeper's client.
 *
 * @param store Pulsar's own metadata store, of the broker; null in tools that have none
 * @param storeUrl where it is, for tools
 * @param readMillis an answer of a store is waited for so long
 * @param patienceMillis a cluster that is silent for so long is waited for no more before others are asked
 * @param reachMillis a cluster that a changed registry needs is waited for so long
 * @param startMillis what a start cannot do without is waited for so long
 * @param retireMillis a cluster that is not registered any more is closed after so long
 */
record Settings(MetadataStoreExtended store, String storeUrl, String registryPath, int sessionTimeoutMillis,
                long pollMillis, long readMillis, long patienceMillis, long reachMillis, long startMillis,
                long retireMillis) {
    static final String REGISTRY = "bookwardenRegistry";
    static final String STORE_URL = "bookwardenMetadataStoreUrl";
    /** The broker sets it, for the mapping of bookies to racks (BookieRackAffinityMapping). */
    private static final String STORE_OF_RACKS = "METADATA_STORE_INSTANCE";
    private static final long POLL_MILLIS = 5_000;
    private static final long READ_MILLIS = 5_000;
    private static final long PATIENCE_MILLIS = 200;
    private static final long REACH_MILLIS = 10_000;
    private static final long START_MILLIS = 30_000;
    private static final long RETIRE_MILLIS = 60_000;

    static Settings of(ClientConfiguration conf) throws ConfigurationException {
        Object store = conf.getProperty(STORE_OF_RACKS);
        if (!(store instanceof MetadataStoreExtended)) {
            store = conf.getProperty(AbstractMetadataDriver.METADATA_STORE_INSTANCE);
        }
        String authority = URI.create(conf.getMetadataServiceUri()).getAuthority();
        String url = conf.getString(STORE_URL, "zk:" + (authority == null ? "" : authority.replace(';', ',')));
        return new Settings(store instanceof MetadataStoreExtended ? (MetadataStoreExtended) store : null, url,
                conf.getString(REGISTRY, Registry.PATH), conf.getZkTimeout(), POLL_MILLIS, READ_MILLIS, PATIENCE_MILLIS,
                REACH_MILLIS, START_MILLIS, RETIRE_MILLIS);
    }

    /** Return what is equal for all clients that can share a follower. */
    List<Object> key() {
        return List.of(store == null ? storeUrl : store, registryPath);
    }
}
