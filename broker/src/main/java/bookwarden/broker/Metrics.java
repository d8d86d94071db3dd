package bookwarden.broker;

import io.prometheus.client.Counter;
import io.prometheus.client.Gauge;
import java.util.HashSet;
import java.util.List;
import java.util.Set;

/**
 * Metrics on the broker's own endpoint, which prints the default registry. Their label is not named cluster, since the
 * broker's own label of that name is Pulsar's cluster.
 */
final class Metrics {
    private static final String LABEL = "bookie_cluster";

    private static final Gauge EPOCH =
            Gauge.build("bookwarden_bookie_clusters_epoch", "Epoch of the registry that is followed.").register();
    private static final Gauge ACTIVE = Gauge.build("bookwarden_bookie_clusters_active",
            "1 for the bookie cluster that takes new ledgers, 0 for the others.").labelNames(LABEL).register();
    private static final Gauge UNREACHABLE = Gauge.build("bookwarden_bookie_clusters_unreachable",
            "1 while the metadata of this bookie cluster cannot be read.").labelNames(LABEL).register();
    private static final Counter REGISTRY_ERRORS = Counter.build("bookwarden_bookie_clusters_registry_errors_total",
            "Readings of the registry that were of no use; the last good state was kept.").register();
    private static final Counter CREATED = Counter.build("bookwarden_bookie_clusters_ledgers_created_total",
            "Ledgers created.").labelNames(LABEL).register();
    private static final Counter READS = Counter.build("bookwarden_bookie_clusters_ledger_reads_total",
            "Readings of a ledger's metadata, by the bookie cluster that had it.").labelNames(LABEL).register();
    private static final Counter REFUSALS = Counter.build("bookwarden_bookie_clusters_refusals_total",
            "Creations and writes of ledger metadata that were refused.").labelNames("reason").register();

    private Metrics() {
    }

    /** Show what is followed now, and no more of what was registered before; that is null at the start. */
    static void follow(ClusterView before, ClusterView after) {
        EPOCH.set(after.registry().epoch());
        after.oldestFirst().forEach(each -> ACTIVE.labels(each.name()).set(each == after.active() ? 1 : 0));
        if (before != null) {
            Set<String> gone = new HashSet<>(before.registry().clusters().keySet());
            gone.removeAll(after.registry().clusters().keySet());
            gone.forEach(each -> {
                ACTIVE.remove(each);
                UNREACHABLE.remove(each);
            });
        }
    }

    /** Show which clusters cannot be read. */
    static void reach(List<BookieCluster> clusters) {
        clusters.forEach(each -> UNREACHABLE.labels(each.name()).set(each.isFailing() ? 1 : 0));
    }

    static void countRegistryError() {
        REGISTRY_ERRORS.inc();
    }

    static void countCreated(BookieCluster cluster) {
        CREATED.labels(cluster.name()).inc();
    }

    static void countRead(BookieCluster cluster) {
        READS.labels(cluster.name()).inc();
    }

    /** Count a refusal; the reason is one of few words. */
    static void countRefusal(String reason) {
        REFUSALS.labels(reason).inc();
    }
}
