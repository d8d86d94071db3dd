package bookwarden.broker;

import java.util.ArrayList;
import java.util.Collection;
import java.util.Comparator;
import java.util.List;
import java.util.function.Predicate;
import org.apache.bookkeeper.client.api.LedgerMetadata;
import org.apache.bookkeeper.net.BookieId;
import org.apache.bookkeeper.versioning.Versioned;

/**
 * What holds from one change of the registry to the next. An operation takes one view, and keeps to it.
 *
 * @param active the cluster that new ledgers go to
 * @param oldestFirst all clusters, by their registration
 * @param byReading all clusters as they are asked for a ledger: the active one, then the newest first
 */
record ClusterView(Registry registry, BookieCluster active, List<BookieCluster> oldestFirst,
                   List<BookieCluster> byReading) {
    private static final Comparator<BookieCluster> AGE =
            Comparator.<BookieCluster>comparingLong(each -> each.entry().since()).thenComparing(BookieCluster::name);

    static ClusterView of(Registry registry, Collection<BookieCluster> clusters) {
        List<BookieCluster> oldestFirst = new ArrayList<>(clusters);
        oldestFirst.sort(AGE);
        BookieCluster active = oldestFirst.stream().filter(each -> each.name().equals(registry.active())).findFirst()
                .orElseThrow();
        List<BookieCluster> byReading = new ArrayList<>(clusters);
        byReading.sort(Comparator.<BookieCluster>comparingInt(each -> each == active ? 0 : 1)
                .thenComparing(each -> -each.entry().since()).thenComparing(BookieCluster::name));
        return new ClusterView(registry, active, List.copyOf(oldestFirst), List.copyOf(byReading));
    }

    /** Return all clusters as they are to be asked now: those that failed lately, or are silent, come last. */
    List<BookieCluster> readingOrder() {
        List<BookieCluster> order = new ArrayList<>(byReading);
        order.sort(Comparator.comparing(each -> each.isFailing() || each.isSilent()));
        return order;
    }

    /** Return whether metadata that a cluster has is a ledger of ours, and no unfinished copy. */
    boolean isThere(BookieCluster cluster, long ledger, LedgerMetadata metadata) {
        return LedgerMarks.isWhole(metadata) && isOurs(cluster, ledger, metadata);
    }

    /** Return whether it is of our Pulsar cluster. */
    boolean isOurs(BookieCluster cluster, long ledger, LedgerMetadata metadata) {
        return registry.isOurs(cluster.name(), ledger, LedgerMarks.ownerOf(metadata));
    }

    /** Return whether a cluster may have ledgers that are not ours. */
    boolean canHaveOthers(BookieCluster cluster) {
        return registry.ownership().get(cluster.name()).canHaveOthers();
    }

    /** Return metadata of a cluster with a version that says where it is. */
    Versioned<LedgerMetadata> place(BookieCluster cluster, Versioned<LedgerMetadata> metadata) {
        return new Versioned<>(metadata.getValue(), new PlacedVersion(registry.epoch(), cluster == active,
                cluster.name(), cluster.entry().since(), metadata.getVersion()));
    }

    /**
     * Return the cluster that a bookie belongs to: the one where it is registered, else where it has a cookie, since
     * one that moved leaves that behind. Null if that is none, or more than one.
     */
    BookieCluster clusterOf(BookieId bookie) {
        List<BookieCluster> registered = those(each -> each.isRegistered(bookie));
        List<BookieCluster> found = registered.isEmpty() ? those(each -> each.hasCookie(bookie)) : registered;
        return found.size() == 1 ? found.get(0) : null;
    }

    /** Return the one cluster of all of these bookies that belong to one; null if that is none, or more than one. */
    BookieCluster clusterOf(Collection<BookieId> bookies) {
        BookieCluster found = null;
        for (BookieId bookie : bookies) {
            BookieCluster cluster = clusterOf(bookie);
            if (cluster != null && found != null && cluster != found) {
                return null;
            }
            found = cluster == null ? found : cluster;
        }
        return found;
    }

    /** Return the cluster that a version came from; null if it is not registered any more. */
    BookieCluster at(PlacedVersion version) {
        return oldestFirst.stream().filter(each -> each.name().equals(version.cluster())
                && each.entry().since() == version.since()).findFirst().orElse(null);
    }

    private List<BookieCluster> those(Predicate<BookieCluster> condition) {
        return oldestFirst.stream().filter(condition).toList();
    }
}
