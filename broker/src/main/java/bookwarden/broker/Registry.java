package bookwarden.broker;

import java.util.Map;

/**
 * The registry of bookie clusters: what its node says.
 *
 * @param epoch grows by one with each change
 * @param owner eight hexadecimal digits of this Pulsar cluster, in the custom metadata of the ledgers that it makes
 * @param idRoot root in Pulsar's own store below which ledger ids are allocated, one sequence for all clusters
 * @param active name of the cluster that new ledgers go to
 * @param clusters all clusters, by name
 */
record Registry(long epoch, String owner, String idRoot, String active, Map<String, Entry> clusters) {
    /** The node that it is in, unless the broker's configuration names another. */
    static final String PATH = "/bookwarden/bookie-clusters";

    /**
     * A registered cluster.
     *
     * @param storeUrl where its metadata is; null: in Pulsar's own metadata store
     * @param ledgersRoot the path of its metadata there
     * @param instance what its INSTANCEID node says; a store that says something else is not this cluster
     * @param since the epoch of its registration; a later cluster of the same name has another
     * @param shared other Pulsar clusters write there too: only ledgers with our owner mark are ours
     */
    record Entry(String name, String storeUrl, String ledgersRoot, String instance, long since, boolean shared) {
        /** Return whether the other entry is of the same registration; all else of the two must then be equal. */
        boolean isSameRegistration(Entry other) {
            return name.equals(other.name) && since == other.since;
        }
    }
}
