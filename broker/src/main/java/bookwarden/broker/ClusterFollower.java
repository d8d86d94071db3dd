package bookwarden.broker;

import java.io.IOException;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.RejectedExecutionException;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.ScheduledThreadPoolExecutor;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.atomic.AtomicBoolean;
import org.apache.bookkeeper.net.BookieId;
import org.apache.pulsar.metadata.api.GetResult;
import org.apache.pulsar.metadata.api.extended.MetadataStoreExtended;
import org.apache.pulsar.metadata.api.extended.SessionEvent;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Follows the registry of bookie clusters, once for all BookKeeper clients of a process, so that all switch at once.
 * A registry that is of no use (unparsable, older, gone, with an active cluster that cannot be reached, or with a
 * cluster that is another) is refused: the last good one is kept, and the next poll tries again. Meanwhile no ledger
 * is absent, since it may be in a cluster of the newer one: `confirm`.
 */
final class ClusterFollower {
    private static final Logger LOG = LoggerFactory.getLogger(ClusterFollower.class);
    private static final Map<List<Object>, ClusterFollower> RUNNING = new HashMap<>();

    /** Why a registry is not followed. */
    static final class RefusedException extends Exception {
        RefusedException(String message) {
            super(message);
        }
    }

    private final Settings settings;
    private final List<Object> key;
    private final MetadataStoreExtended store;
    private final boolean ownsStore;
    private final Stores stores;
    private final SeenNode seen;
    private final List<Runnable> listeners = new CopyOnWriteArrayList<>();
    /** Clusters that were made: of the view, of a registry that is not accepted yet, and those about to be closed. */
    private final Map<Registry.Entry, BookieCluster> clusters = new HashMap<>();
    private final ScheduledExecutorService worker = thread("bookwarden-registry");
    private final ScheduledExecutorService notifier = thread("bookwarden-bookies");
    private volatile ClusterView view;
    private volatile boolean closed;
    private final AtomicBoolean refreshing = new AtomicBoolean();
    private String lastError = "";
    private int users;

    /**
     * Return the follower of this store and registry, started if there is none; each use of it ends with release.
     * Fails if the registry, or the metadata of its active cluster, cannot be read, or if the metadata of any cluster
     * is another's.
     */
    static ClusterFollower acquire(Settings settings) throws IOException, InterruptedException {
        synchronized (RUNNING) {
            ClusterFollower found = RUNNING.get(settings.key());
            if (found == null) {
                found = new ClusterFollower(settings);
                found.start();
                RUNNING.put(found.key, found);
            }
            found.users++;
            return found;
        }
    }

    void release() {
        synchronized (RUNNING) {
            users--;
            if (users == 0) {
                RUNNING.remove(key);
                close();
            }
        }
    }

    private ClusterFollower(Settings settings) throws IOException {
        this.settings = settings;
        key = settings.key();
        ownsStore = settings.store() == null;
        try {
            store = ownsStore ? Stores.create(settings.storeUrl(), settings.sessionTimeoutMillis()) : settings.store();
        } catch (CompletionException e) {
            throw new IOException("Pulsar's metadata store " + settings.storeUrl() + ": " + e.getCause(), e);
        }
        stores = new Stores(store, settings.sessionTimeoutMillis());
        seen = new SeenNode(store, seenFolder(), settings.readMillis());
    }

    private String seenFolder() {
        return settings.registryPath() + "-seen";
    }

    private void start() throws IOException, InterruptedException {
        boolean started = false;
        try {
            apply(read(settings.startMillis()), true);
            started = true;
        } catch (RefusedException | ExecutionException | TimeoutException | IOException | RuntimeException e) {
            throw new IOException("the registry of bookie clusters " + settings.registryPath() + " cannot be followed: "
                    + Answers.cause(e), e);
        } finally {
            if (!started) {
                close();
            }
        }
        store.registerListener(notification -> {
            if (notification.getPath().equals(settings.registryPath())) {
                refreshSoon();
            }
        });
        store.registerSessionListener(event -> {
            if (event == SessionEvent.SessionReestablished) {
                refreshSoon();
            }
        });
        run(worker, this::report);
        worker.scheduleWithFixedDelay(this::poll, settings.pollMillis(), settings.pollMillis(), TimeUnit.MILLISECONDS);
    }

    ClusterView view() {
        return view;
    }

    /**
     * Complete if the registry is the one of this view, read past every cache: only then a ledger that no cluster of
     * the view has is absent. Else fail, and follow it. A ledger in a cluster that the view lacks was made after that
     * cluster was registered, so that to ask for it first and read the registry then leaves no gap.
     */
    CompletableFuture<Void> confirm(ClusterView asked) {
        return Answers.within(settings.readMillis(),
                BookieCluster.getNow(store, seenFolder(), settings.registryPath())).handle((found, error) -> {
                    try {
                        if (error != null) {
                            throw new IOException("it cannot be read: " + Answers.cause(error), error);
                        }
                        Registry now = parse(found);
                        if (!now.equals(asked.registry())) {
                            throw new IOException("it has epoch " + now.epoch());
                        }
                    } catch (IOException e) {
                        refreshSoon();
                        throw new CompletionException(new IOException("the clusters of epoch "
                                + asked.registry().epoch() + " may not be all, see the registry "
                                + settings.registryPath() + ": " + e.getMessage(), e));
                    }
                    return null;
                });
    }

    /** Return how long a cluster may be silent before others are asked too. */
    long patienceMillis() {
        return settings.patienceMillis();
    }

    /** Return Pulsar's own metadata store. */
    MetadataStoreExtended store() {
        return store;
    }

    /** Run this after each change of the registry, or of any cluster's bookies, in the thread of notify. */
    void addListener(Runnable listener) {
        listeners.add(listener);
    }

    void removeListener(Runnable listener) {
        listeners.remove(listener);
    }

    /** Run something after all that was notified before; one thread does it all, so that nobody sees the older last. */
    CompletableFuture<Void> notify(Runnable task) {
        CompletableFuture<Void> done = new CompletableFuture<>();
        boolean accepted = run(notifier, () -> {
            try {
                task.run();
                done.complete(null);
            } catch (RuntimeException e) {
                LOG.error("a listener failed", e);
                done.completeExceptionally(e);
            }
        });
        if (!accepted) {
            done.completeExceptionally(new IOException("the bookie clusters are not followed any more"));
        }
        return done;
    }

    private void changed() {
        listeners.forEach(this::notify);
    }

    // Following

    /** Read the registry, and look whether each cluster is there; an error must not end the polls. */
    private void poll() {
        try {
            refresh();
            CompletableFuture<?>[] probes = view.oldestFirst().stream().map(each -> each.probe(settings.readMillis()))
                    .toArray(CompletableFuture<?>[]::new);
            CompletableFuture.allOf(probes).thenRun(() -> run(worker, () -> {
                admitReached();
                report();
            }));
        } catch (RuntimeException e) {
            LOG.error("following the bookie clusters", e);
        }
    }

    private void admitReached() {
        boolean any = false;
        for (BookieCluster each : view.oldestFirst()) {
            any |= admitted(each, view);
        }
        if (any) {
            changed();
        }
    }

    /** Have the registry read; calls that come before it is begun are one. */
    private void refreshSoon() {
        if (refreshing.compareAndSet(false, true)) {
            run(worker, this::refresh);
        }
    }

    private void refresh() {
        refreshing.set(false);
        if (closed) {
            return;
        }
        try {
            apply(read(settings.readMillis()), false);
            lastError = "";
        } catch (RefusedException | ExecutionException | TimeoutException | IOException | RuntimeException e) {
            Metrics.countRegistryError();
            String error = Answers.cause(e).toString();
            if (!error.equals(lastError)) {
                lastError = error;
                LOG.error("the registry of bookie clusters {} is of no use, epoch {} with active {} is kept: {}",
                        settings.registryPath(), view.registry().epoch(), view.active().name(), error);
            }
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
        report();
    }

    private void report() {
        if (!closed) {
            Metrics.reach(view.oldestFirst());
            seen.write(view);
        }
    }

    private Registry read(long millis)
            throws IOException, ExecutionException, TimeoutException, InterruptedException {
        return parse(store.get(settings.registryPath()).get(millis, TimeUnit.MILLISECONDS));
    }

    private static Registry parse(Optional<GetResult> found) throws IOException {
        if (found.isEmpty()) {
            throw new IOException("there is no such node");
        }
        return RegistryFormat.parse(found.get().getValue());
    }

    /** Follow this registry, if it is of use. Only the worker does this, and whoever starts it. */
    private void apply(Registry next, boolean starting) throws RefusedException, InterruptedException {
        ClusterView before = view;
        if (before != null) {
            if (next.equals(before.registry())) {
                return;
            }
            checkSuccession(before.registry(), next);
        }
        List<BookieCluster> chosen = new ArrayList<>();
        for (Registry.Entry each : next.clusters().values()) {
            chosen.add(clusters.computeIfAbsent(each, this::make));
        }
        ClusterView after = ClusterView.of(next, chosen);
        reach(before, after, starting);
        view = after;
        LOG.info("bookie clusters: epoch {}, active {}, of {}", next.epoch(), next.active(),
                next.clusters().keySet());
        Metrics.follow(before, after);
        changed();
        retireAllBut(after);
    }

    private BookieCluster make(Registry.Entry entry) {
        return new BookieCluster(entry, stores, settings.readMillis(), this::changed);
    }

    private static void checkSuccession(Registry before, Registry next) throws RefusedException {
        if (next.epoch() <= before.epoch()) {
            throw new RefusedException("epoch " + next.epoch() + " does not follow " + before.epoch());
        }
        if (!next.owner().equals(before.owner()) || !next.idRoot().equals(before.idRoot())) {
            throw new RefusedException("owner or idRoot is another than in epoch " + before.epoch());
        }
        for (Registry.Entry each : next.clusters().values()) {
            Registry.Entry known = before.clusters().get(each.name());
            if (known != null && known.contradicts(each)) {
                throw new RefusedException("cluster '" + each.name() + "' is another than in epoch " + before.epoch());
            }
        }
    }

    /**
     * Refuse a view unless its active cluster answers, if that is not the one of the view before. Another cluster may be
     * out of reach: the switch of the others must not wait for it, and its ledgers fail with an error until it is
     * there. Metadata that is another cluster's, or a new cluster with bookies of another one, is refused always.
     */
    private void reach(ClusterView before, ClusterView after, boolean starting)
            throws RefusedException, InterruptedException {
        List<BookieCluster> asked = new ArrayList<>(after.oldestFirst());
        if (before != null) {
            asked.removeAll(before.oldestFirst());
            if (before.active() != after.active() && !asked.contains(after.active())) {
                asked.add(after.active());
            }
        }
        List<CompletableFuture<Void>> probes = new ArrayList<>();
        for (BookieCluster each : asked) {
            boolean needed = starting && each == after.active();
            probes.add(each.probe(needed ? settings.startMillis() : settings.reachMillis()));
        }
        for (CompletableFuture<Void> each : probes) {
            try {
                each.get();
            } catch (ExecutionException e) {
                throw new IllegalStateException("a probe never fails", e);
            }
        }
        for (BookieCluster each : asked) {
            if (starting && each.isToBeAdmitted()) {
                // Bookies that were registered twice while this broker was down do not keep it down.
                each.admit();
            } else {
                admitted(each, after);
            }
            if (each.isWrong() || each == after.active() && each.isFailing()) {
                throw new RefusedException("bookie cluster " + each.name() + ": " + each.trouble());
            }
        }
    }

    /**
     * Let a cluster take part that was reached for the first time, and return whether it does since now. With one name
     * in two clusters nobody can tell where an ensemble is: it is refused as long as a bookie runs in another one too.
     */
    private static boolean admitted(BookieCluster added, ClusterView view) {
        if (!added.isToBeAdmitted()) {
            return false;
        }
        for (BookieCluster other : view.oldestFirst()) {
            Set<BookieId> both = new HashSet<>(added.registered());
            both.retainAll(other.registered());
            if (other != added && !both.isEmpty()) {
                added.refuse(both, other);
                return false;
            }
        }
        added.admit();
        return true;
    }

    /** Close what is not registered any more, once the calls that still know it are through. */
    private void retireAllBut(ClusterView current) {
        Set<Registry.Entry> gone = new HashSet<>(clusters.keySet());
        gone.removeAll(current.registry().clusters().values());
        if (!gone.isEmpty()) {
            worker.schedule(() -> closeUnused(gone), settings.retireMillis(), TimeUnit.MILLISECONDS);
        }
    }

    private void closeUnused(Set<Registry.Entry> gone) {
        gone.stream().filter(each -> !view.registry().clusters().containsValue(each)).map(clusters::remove)
                .forEach(each -> {
                    if (each != null) {
                        each.close();
                    }
                });
        Set<String> urls = new HashSet<>();
        clusters.keySet().forEach(each -> urls.add(each.storeUrl()));
        stores.closeAllBut(urls);
    }

    // Its end

    private void close() {
        closed = true;
        if (view != null) {
            run(worker, seen::remove);
        }
        worker.shutdown();
        notifier.shutdownNow();
        try {
            if (!worker.awaitTermination(settings.reachMillis(), TimeUnit.MILLISECONDS)) {
                worker.shutdownNow();
            }
            clusters.values().forEach(BookieCluster::close);
            stores.closeAllBut(Set.of());
            if (ownsStore) {
                store.close();
            }
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        } catch (Exception e) {
            LOG.warn("closing Pulsar's metadata store: {}", e.toString());
        }
    }

    /** Return whether the thread takes the task, which it does until all is closed. */
    private static boolean run(ScheduledExecutorService thread, Runnable task) {
        try {
            thread.execute(task);
            return true;
        } catch (RejectedExecutionException e) {
            return false;
        }
    }

    private static ScheduledExecutorService thread(String name) {
        ScheduledThreadPoolExecutor thread = new ScheduledThreadPoolExecutor(1, task -> {
            Thread made = new Thread(task, name);
            made.setDaemon(true);
            return made;
        });
        thread.setExecuteExistingDelayedTasksAfterShutdownPolicy(false);
        return thread;
    }
}
