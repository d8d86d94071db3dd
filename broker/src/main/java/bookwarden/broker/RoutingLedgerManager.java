package bookwarden.broker;

import java.util.HashSet;
import java.util.List;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.function.Function;
import org.apache.bookkeeper.client.BKException;
import org.apache.bookkeeper.client.api.LedgerMetadata;
import org.apache.bookkeeper.meta.LedgerManager;
import org.apache.bookkeeper.net.BookieId;
import org.apache.bookkeeper.proto.BookkeeperInternalCallbacks.LedgerMetadataListener;
import org.apache.bookkeeper.proto.BookkeeperInternalCallbacks.Processor;
import org.apache.bookkeeper.versioning.Version;
import org.apache.bookkeeper.versioning.Versioned;
import org.apache.zookeeper.AsyncCallback;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Sends each ledger to the cluster that has it. An operation takes the view of the clusters once, so that a switch in
 * between changes nothing for it. All its errors are BKExceptions and not wrapped: the client compares them by class.
 */
final class RoutingLedgerManager implements LedgerManager {
    private static final Logger LOG = LoggerFactory.getLogger(RoutingLedgerManager.class);
    private static final String NOT_LISTED = "several bookie clusters are shown as one, whose ledgers are not listed: "
            + "use the URI of one of them";

    private final ClusterFollower follower;
    private final LedgerListeners listeners;
    private final Runnable changed;

    RoutingLedgerManager(ClusterFollower follower) {
        this.follower = follower;
        listeners = new LedgerListeners(this);
        changed = listeners::lookAtAll;
        follower.addListener(changed);
    }

    /** The ensemble was chosen before the id and this call: it says which cluster, whatever was switched meanwhile. */
    @Override
    public CompletableFuture<Versioned<LedgerMetadata>> createLedgerMetadata(long ledger, LedgerMetadata metadata) {
        ClusterView view = follower.view();
        BookieCluster cluster = view.clusterOf(bookiesOf(metadata));
        if (cluster == null) {
            Metrics.countRefusal("create_in_no_one_cluster");
            LOG.error("refused: ledger {} is not created, its bookies {} are not those of one bookie cluster", ledger,
                    metadata.getAllEnsembles());
            return Answers.failed(new BKException.BKNotEnoughBookiesException());
        }
        LedgerMetadata owned = LedgerMarks.owned(metadata, view.registry().owner());
        CompletableFuture<Versioned<LedgerMetadata>> answer = new CompletableFuture<>();
        cluster.create(ledger, owned).whenComplete((created, error) -> {
            if (error == null) {
                Metrics.countCreated(cluster);
            }
            settle(view, cluster, created, error, answer);
        });
        return answer;
    }

    @Override
    public CompletableFuture<Versioned<LedgerMetadata>> readLedgerMetadata(long ledger) {
        CompletableFuture<Versioned<LedgerMetadata>> answer = new CompletableFuture<>();
        find(ledger).whenComplete((found, error) -> {
            if (error == null) {
                Metrics.countRead(found.cluster());
                answer.complete(found.metadata());
            } else {
                answer.completeExceptionally(Answers.translated(error));
            }
        });
        return answer;
    }

    /**
     * Find the cluster that has a ledger. It is absent only if each said so twice, the second time past all memory, and
     * these were all clusters.
     */
    CompletableFuture<LedgerSearch.Found> find(long ledger) {
        ClusterView view = follower.view();
        return search(view, ledger, cluster -> cluster.read(ledger))
                .thenCompose(found -> found.isPresent() ? CompletableFuture.completedFuture(found)
                        : search(view, ledger, cluster -> cluster.readNow(ledger)))
                .thenCompose(found -> found.map(CompletableFuture::completedFuture)
                        .orElseGet(() -> absent(view, ledger)));
    }

    /** Fail with the exception that says that a ledger is in no cluster, or with another while that is not certain. */
    private <T> CompletableFuture<T> absent(ClusterView view, long ledger) {
        return follower.confirm(view).handle((done, error) -> {
            if (error != null) {
                LOG.warn("ledger {} was found in no bookie cluster, which is not taken for its absence: {}", ledger,
                        Answers.cause(error).getMessage());
            }
            throw new CompletionException(error == null
                    ? new BKException.BKNoSuchLedgerExistsOnMetadataServerException() : error);
        });
    }

    private CompletableFuture<Optional<LedgerSearch.Found>> search(
            ClusterView view, long ledger,
            Function<BookieCluster, CompletableFuture<Versioned<LedgerMetadata>>> question) {
        return new LedgerSearch(view, ledger, view.readingOrder(), question, follower.patienceMillis()).run();
    }

    private void settle(ClusterView view, BookieCluster cluster, Versioned<LedgerMetadata> written, Throwable error,
                        CompletableFuture<Versioned<LedgerMetadata>> answer) {
        if (error == null) {
            answer.complete(view.place(cluster, written));
        } else {
            answer.completeExceptionally(Answers.translated(error));
        }
    }

    /** Write where the version came from. If that is not registered any more, the client must look for it anew. */
    @Override
    public CompletableFuture<Versioned<LedgerMetadata>> writeLedgerMetadata(long ledger, LedgerMetadata metadata,
                                                                            Version version) {
        ClusterView view = follower.view();
        BookieCluster cluster = version instanceof PlacedVersion ? view.at((PlacedVersion) version) : null;
        if (cluster == null) {
            return Answers.failed(new BKException.BKMetadataVersionException());
        }
        CompletableFuture<Versioned<LedgerMetadata>> answer = new CompletableFuture<>();
        Set<BookieId> foreign = foreignTo(view, cluster, metadata);
        // Bookies that moved to another cluster stay in the metadata of older ledgers, which still has to be written.
        CompletableFuture<Set<BookieId>> added = foreign.isEmpty() ? CompletableFuture.completedFuture(foreign)
                : cluster.read(ledger).thenApply(stored -> without(foreign, bookiesOf(stored.getValue())));
        added.thenCompose(refused -> {
            if (refused.isEmpty()) {
                return cluster.write(ledger, metadata, ((PlacedVersion) version).inner());
            }
            Metrics.countRefusal("write_adds_bookies_of_another_cluster");
            LOG.error("refused: ledger {} of bookie cluster {} would get bookies of another, {}", ledger,
                    cluster.name(), refused);
            return Answers.failed(new BKException.BKNotEnoughBookiesException());
        }).whenComplete((written, error) -> settle(view, cluster, written, error, answer));
        return answer;
    }

    private static Set<BookieId> without(Set<BookieId> bookies, Set<BookieId> removed) {
        Set<BookieId> rest = new HashSet<>(bookies);
        rest.removeAll(removed);
        return rest;
    }

    private static Set<BookieId> foreignTo(ClusterView view, BookieCluster cluster, LedgerMetadata metadata) {
        Set<BookieId> foreign = bookiesOf(metadata);
        foreign.removeIf(each -> {
            BookieCluster other = view.clusterOf(each);
            return other == null || other == cluster;
        });
        return foreign;
    }

    private static Set<BookieId> bookiesOf(LedgerMetadata metadata) {
        Set<BookieId> all = new HashSet<>();
        metadata.getAllEnsembles().values().forEach(all::addAll);
        return all;
    }

    /**
     * Remove the ledger everywhere, unfinished copies too: the oldest place first, so that one that is killed leaves
     * the newest to be found. An unknown answer of any cluster is an error, for which the client tries again.
     */
    @Override
    public CompletableFuture<Void> removeLedgerMetadata(long ledger, Version version) {
        ClusterView view = follower.view();
        BookieCluster place = version instanceof PlacedVersion ? view.at((PlacedVersion) version) : null;
        if (version != Version.ANY && place == null) {
            return Answers.failed(new BKException.BKMetadataVersionException());
        }
        CompletableFuture<Void> answer = new CompletableFuture<>();
        Version inner = place == null ? null : ((PlacedVersion) version).inner();
        removeFrom(view, view.oldestFirst(), 0, ledger, place, inner, false, answer);
        return answer;
    }

    private void removeFrom(ClusterView view, List<BookieCluster> clusters, int index, long ledger,
                            BookieCluster place, Version version, boolean any, CompletableFuture<Void> answer) {
        if (index == clusters.size()) {
            if (any) {
                answer.complete(null);
            } else {
                absent(view, ledger).whenComplete((x, error) -> answer.completeExceptionally(Answers.translated(error)));
            }
            return;
        }
        BookieCluster cluster = clusters.get(index);
        Version there = cluster == place ? version : Version.ANY;
        removeFromOne(view, cluster, ledger, there).whenComplete((removed, error) -> {
            if (error == null) {
                removeFrom(view, clusters, index + 1, ledger, place, version, any || removed, answer);
            } else {
                answer.completeExceptionally(Answers.translated(error));
            }
        });
    }

    /** Remove a ledger from one cluster; false if it is not there. One that is not ours counts as not there. */
    private CompletableFuture<Boolean> removeFromOne(ClusterView view, BookieCluster cluster, long ledger,
                                                     Version version) {
        CompletableFuture<Boolean> removed;
        if (view.canHaveOthers(cluster)) {
            removed = cluster.readNow(ledger).thenCompose(found -> view.isOurs(cluster, ledger, found.getValue())
                    ? cluster.remove(ledger, version == Version.ANY ? found.getVersion() : version).thenApply(x -> true)
                    : CompletableFuture.completedFuture(false));
        } else {
            removed = cluster.remove(ledger, version).thenApply(x -> true);
        }
        return removed.exceptionally(error -> {
            BKException translated = Answers.translated(error);
            if (Answers.isAbsent(translated)) {
                return false;
            }
            throw new CompletionException(translated);
        });
    }

    @Override
    public void registerLedgerMetadataListener(long ledger, LedgerMetadataListener listener) {
        listeners.add(ledger, listener);
    }

    @Override
    public void unregisterLedgerMetadataListener(long ledger, LedgerMetadataListener listener) {
        listeners.remove(ledger, listener);
    }

    ClusterView view() {
        return follower.view();
    }

    @Override
    public void asyncProcessLedgers(Processor<Long> processor, AsyncCallback.VoidCallback done, Object context,
                                    int successRc, int failureRc) {
        LOG.error("refused: {}", NOT_LISTED);
        done.processResult(failureRc, NOT_LISTED, context);
    }

    @Override
    public LedgerRangeIterator getLedgerRanges(long timeoutMillis) {
        throw new UnsupportedOperationException(NOT_LISTED);
    }

    @Override
    public void close() {
        follower.removeListener(changed);
        listeners.close();
    }
}
