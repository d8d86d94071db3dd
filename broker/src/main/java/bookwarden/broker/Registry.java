package bookwarden.broker;

import java.util.Map;
import java.util.Set;

/**
 * The registry of bookie clusters: what its node says.
 *
 * @param epoch grows by one with each change
 * @param owner eight hexadecimal digits of this Pulsar cluster, in the custom metadata of the ledgers that it makes
 * @param formerOwners owners of earlier registries, whose ledgers are ours too
 * @param idRoot root in Pulsar's own store below which ledger ids are allocated, one sequence for all clusters
 * @param active name of the cluster that new ledgers go to
 * @param clusters all clusters, by name
 * @param ownership which ledgers are ours, by the name of each cluster
 */
record Registry(long epoch, String owner, Set<String> formerOwners, String idRoot, String active,
                Map<String, Entry> clusters, Map<String, Ownership> ownership) {
    /** The node that it is in, unless the broker's configuration names another. */
    static final String PATH = "/bookwarden/bookie-clusters";

    /**
     * A registered cluster, and where its metadata is.
     *
     * @param storeUrl where its metadata is; null: in Pulsar's own metadata store
     * @param ledgersRoot the path of its metadata there
     * @param instance what its INSTANCEID node says; a store that says something else is not this cluster
     * @param since the epoch of its registration; a later cluster of the same name has another
     */
    record Entry(String name, String storeUrl, String ledgersRoot, String instance, long since) {
        /** Return whether the other entry is of the same registration, and yet of another cluster. */
        boolean contradicts(Entry other) {
            return name.equals(other.name) && since == other.since
                    && !(instance.equals(other.instance) && ledgersRoot.equals(other.ledgersRoot));
        }
    }

    /**
     * Which ledgers of a cluster are ours besides those with our owner mark.
     *
     * @param bootstrap it was there before the registry was
     * @param shared other Pulsar clusters write there too: only ledgers with our owner mark are ours
     * @param unmarkedBelow ledgers without an owner mark are ours if their id is below this one; null: all of them
     */
    record Ownership(boolean bootstrap, boolean shared, Long unmarkedBelow) {
        /** Return whether a ledger there may be somebody else's. */
        boolean canHaveOthers() {
            return shared || unmarkedBelow != null;
        }
    }

    /** Return whether brokers take a ledger of this cluster for ours, by its owner mark, or null if it has none. */
    boolean isOurs(String cluster, long ledger, String mark) {
        if (mark != null && (mark.equals(owner) || formerOwners.contains(mark))) {
            return true;
        }
        Ownership there = ownership.get(cluster);
        if (there == null) {
            // It has left the registry: whoever asks looks for the ledger again.
            return false;
        }
        if (there.shared() || there.unmarkedBelow() == null) {
            return !there.shared();
        }
        return mark == null ? ledger < there.unmarkedBelow() : there.bootstrap();
    }
}
