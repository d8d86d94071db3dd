package bookwarden.broker;

import io.prometheus.client.Counter;
import io.prometheus.client.Gauge;
import java.util.List;

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

    /** Show what is followed now. */
    static void follow(ClusterView view) {
        EPOCH.set(view.registry().epoch());
        ACTIVE.clear();
        view.oldestFirst().forEach(each -> ACTIVE.labels(each.name()).set(each == view.active() ? 1 : 0));
    }

    /** Show which clusters cannot be read. */
    static void reach(List<BookieCluster> clusters) {
        UNREACHABLE.clear();
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
