package bookwarden.broker;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.HashSet;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.function.Function;
import org.apache.bookkeeper.client.BKException;
import org.apache.bookkeeper.client.api.LedgerMetadata;
import org.apache.bookkeeper.conf.ClientConfiguration;
import org.apache.bookkeeper.discover.BookieServiceInfo;
import org.apache.bookkeeper.discover.RegistrationClient;
import org.apache.bookkeeper.meta.LedgerLayout;
import org.apache.bookkeeper.meta.LedgerManager;
import org.apache.bookkeeper.meta.LedgerMetadataSerDe;
import org.apache.bookkeeper.net.BookieId;
import org.apache.bookkeeper.proto.BookkeeperInternalCallbacks.LedgerMetadataListener;
import org.apache.bookkeeper.util.BookKeeperConstants;
import org.apache.bookkeeper.util.StringUtils;
import org.apache.bookkeeper.versioning.LongVersion;
import org.apache.bookkeeper.versioning.Version;
import org.apache.bookkeeper.versioning.Versioned;
import org.apache.pulsar.metadata.api.GetResult;
import org.apache.pulsar.metadata.api.MetadataStoreException;
import org.apache.pulsar.metadata.api.extended.MetadataStoreExtended;
import org.apache.pulsar.metadata.bookkeeper.PulsarLayoutManager;
import org.apache.pulsar.metadata.bookkeeper.PulsarLedgerManagerFactory;
import org.apache.pulsar.metadata.bookkeeper.PulsarRegistrationClient;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * One real bookie cluster: its ledger manager, and the bookies that it has now. Until its metadata was reached and its
 * bookies were compared with those of the other clusters, and while it says that it is another cluster's, every
 * operation fails, and it has no bookies: nothing there counts as absent.
 */
final class BookieCluster {
    private static final Logger LOG = LoggerFactory.getLogger(BookieCluster.class);
    /** The layout whose paths Pulsar's ledger manager reads; "long hierarchical" has others for small ids. */
    private static final String LAYOUT = "org.apache.bookkeeper.meta.HierarchicalLedgerManagerFactory";
    private static final int LAYOUT_VERSION = 1;
    /** A node that is never there. */
    private static final String BARRIER = "bookwarden-read-barrier";
    private static final IOException NOT_COMPARED =
            new IOException("its bookies were not compared with those of the other clusters yet");

    /** What was reached is not this cluster, or of a layout that cannot be read, or has bookies of another cluster. */
    static final class WrongClusterException extends IOException {
        WrongClusterException(String message) {
            super(message);
        }
    }

    private record Connection(MetadataStoreExtended store, LedgerManager ledgers, RegistrationClient registration) {
        void close() {
            registration.close();
            try {
                ledgers.close();
            } catch (IOException e) {
                LOG.warn("closing a ledger manager: {}", e.toString());
            }
        }
    }

    private final Registry.Entry entry;
    private final Stores stores;
    private final long limitMillis;
    private final Runnable onBookies;
    private CompletableFuture<Void> connecting;
    private boolean closed;
    private volatile Connection connection;
    private volatile boolean silent;
    private volatile Throwable trouble = new IOException("its metadata was not reached yet");
    private volatile boolean admitted;
    private volatile Set<BookieId> writable = Set.of();
    private volatile Set<BookieId> readOnly = Set.of();
    private volatile Set<BookieId> cookies = Set.of();

    /** A read or removal has this long to be answered; ``onBookies`` runs when its bookies have changed. */
    BookieCluster(Registry.Entry entry, Stores stores, long limitMillis, Runnable onBookies) {
        this.entry = entry;
        this.stores = stores;
        this.limitMillis = limitMillis;
        this.onBookies = onBookies;
    }

    Registry.Entry entry() {
        return entry;
    }

    String name() {
        return entry.name();
    }

    /** Return whether its metadata was reached, and it takes part since. */
    boolean isAdmitted() {
        return admitted;
    }

    /** Return whether its metadata was reached, and all that is left is to compare its bookies. */
    boolean isToBeAdmitted() {
        return trouble == NOT_COMPARED;
    }

    /** Let it take part. */
    void admit() {
        admitted = true;
        note(null);
    }

    /** Refuse it, after it was reached, because it has bookies of another cluster. */
    void refuse(Set<BookieId> common, BookieCluster other) {
        note(new WrongClusterException("bookies of " + name() + " are also registered in " + other.name() + ": "
                + common));
    }

    /** Return whether its metadata could not be read lately, or never. */
    boolean isFailing() {
        return trouble != null;
    }

    /** Return whether it was silent lately, and nothing came from it since. */
    boolean isSilent() {
        return silent;
    }

    /** Note that an answer is waited for so long that others are asked first, until it is there. */
    void noteSilence() {
        silent = true;
    }

    /** Return what is wrong with it; null if nothing is. */
    Throwable trouble() {
        return trouble;
    }

    /** Return whether its metadata is that of another cluster. */
    boolean isWrong() {
        return trouble instanceof WrongClusterException;
    }

    // Bookies

    Set<BookieId> writable() {
        return admitted ? writable : Set.of();
    }

    Set<BookieId> readOnly() {
        return admitted ? readOnly : Set.of();
    }

    /** Return the bookies that run now, also before it takes part. */
    Set<BookieId> registered() {
        Set<BookieId> all = new HashSet<>(writable);
        all.addAll(readOnly);
        return all;
    }

    /** Return the bookies that it has, also those that do not run now. */
    Set<BookieId> members() {
        Set<BookieId> all = new HashSet<>(writable());
        all.addAll(readOnly());
        all.addAll(admitted ? cookies : Set.of());
        return all;
    }

    boolean isRegistered(BookieId bookie) {
        return writable().contains(bookie) || readOnly().contains(bookie);
    }

    boolean hasCookie(BookieId bookie) {
        return admitted && cookies.contains(bookie);
    }

    /** Return the bookie's addresses, from memory: the client asks in threads that must not wait for a store. */
    CompletableFuture<Versioned<BookieServiceInfo>> getBookieServiceInfo(BookieId bookie) {
        Connection now = connection;
        return now == null ? Answers.failed(new BKException.BKBookieHandleNotAvailableException())
                : now.registration.getBookieServiceInfo(bookie);
    }

    PulsarLayoutManager layout() {
        Connection now = connection;
        return now == null ? null : new PulsarLayoutManager(now.store, entry.ledgersRoot());
    }

    // Ledgers

    /**
     * Read a ledger's metadata, maybe from memory; fails with a BKException, NoSuchLedgerExists if it is not there.
     * An answer from memory says nothing of whether its store can be read.
     */
    CompletableFuture<Versioned<LedgerMetadata>> read(long ledger) {
        return ask(false, now -> Answers.within(limitMillis, now.ledgers.readLedgerMetadata(ledger)));
    }

    /**
     * Read a ledger's metadata as it is now, past all memory. A server of ZooKeeper may be behind: what another session
     * wrote is seen for sure only after a write of our own, and the deletion of what is not there is one that leaves
     * nothing behind. (The store's own sync does nothing in Pulsar 4.2.) It is absent only if the metadata is this
     * cluster's afterwards: an empty root in its place has no ledger either.
     */
    CompletableFuture<Versioned<LedgerMetadata>> readNow(long ledger) {
        return ask(true, now -> Answers.within(limitMillis, getNow(now.store, entry.ledgersRoot(), path(ledger))
                .thenCompose(found -> found.isPresent() ? CompletableFuture.completedFuture(found)
                        : verify(now.store).thenApply(x -> found))
                .thenApply(found -> parse(ledger, found))));
    }

    /** Read a node as it is now, after the write of ours that leaves nothing behind in this folder. */
    static CompletableFuture<Optional<GetResult>> getNow(MetadataStoreExtended store, String folder, String path) {
        return store.delete(folder + "/" + BARRIER, Optional.empty()).handle((done, error) -> {
            if (error != null && !(Answers.cause(error) instanceof MetadataStoreException.NotFoundException)) {
                throw new CompletionException(error);
            }
            return null;
        }).thenCompose(x -> store.get(path));
    }

    private static Versioned<LedgerMetadata> parse(long ledger, Optional<GetResult> found) {
        try {
            GetResult node = found.orElseThrow(BKException.BKNoSuchLedgerExistsOnMetadataServerException::new);
            return new Versioned<>(new LedgerMetadataSerDe().parseConfig(node.getValue(), ledger,
                    Optional.of(node.getStat().getCreationTimestamp())), new LongVersion(node.getStat().getVersion()));
        } catch (IOException | BKException e) {
            throw new CompletionException(e);
        }
    }

    /** Create a ledger's metadata; LedgerExist, for which the client takes another id, if there is one already. */
    CompletableFuture<Versioned<LedgerMetadata>> create(long ledger, LedgerMetadata metadata) {
        return ask(true, now -> now.ledgers.createLedgerMetadata(ledger, metadata).handle((made, error) -> {
            if (error == null) {
                return made;
            }
            BKException translated = Answers.translated(error);
            boolean taken = translated.getCode() == BKException.Code.MetadataVersionException;
            throw new CompletionException(taken ? new BKException.BKLedgerExistException() : translated);
        }));
    }

    CompletableFuture<Versioned<LedgerMetadata>> write(long ledger, LedgerMetadata metadata, Version version) {
        return ask(true, now -> now.ledgers.writeLedgerMetadata(ledger, metadata, version));
    }

    /**
     * Remove a ledger's metadata; not by the ledger manager, which logs an error for each that is not there. It is
     * absent only if the metadata is this cluster's, as of a reading.
     */
    CompletableFuture<Void> remove(long ledger, Version version) {
        Optional<Long> expected = version == Version.ANY ? Optional.empty()
                : Optional.of(((LongVersion) version).getLongVersion());
        return ask(true, now -> Answers.within(limitMillis, now.store.delete(path(ledger), expected)
                .handle((done, error) -> error != null && Answers.isAbsent(Answers.translated(error))
                        ? verify(now.store).<Void>thenCompose(x -> Answers.failed(error))
                        : error == null ? CompletableFuture.completedFuture(done) : Answers.<Void>failed(error))
                .thenCompose(x -> x)));
    }

    void listen(long ledger, LedgerMetadataListener listener) {
        Connection now = connection;
        if (now != null) {
            now.ledgers.registerLedgerMetadataListener(ledger, listener);
        }
    }

    void unlisten(long ledger, LedgerMetadataListener listener) {
        Connection now = connection;
        if (now != null) {
            now.ledgers.unregisterLedgerMetadataListener(ledger, listener);
        }
    }

    /** Ask; an answer that tells that its store can be read, ``fresh``, takes back an earlier failure. */
    private <T> CompletableFuture<T> ask(boolean fresh, Function<Connection, CompletableFuture<T>> question) {
        Connection now = connection;
        if (now == null || isWrong() || !admitted) {
            return Answers.failed(new BKException.MetaStoreException(
                    new IOException("bookie cluster " + name() + " cannot be asked", trouble)));
        }
        CompletableFuture<T> answer = new CompletableFuture<>();
        question.apply(now).whenComplete((value, error) -> {
            BKException failure = error == null ? null : Answers.translated(error);
            boolean failed = failure != null && !Answers.isOrdinary(failure);
            if (failed || fresh) {
                settle(failed ? Answers.cause(error) : null);
            }
            if (failure == null) {
                answer.complete(value);
            } else {
                answer.completeExceptionally(failure);
            }
        });
        return answer;
    }

    /** Remember how the last question went; that it is the wrong cluster is taken back by a probe alone. */
    private void settle(Throwable error) {
        silent = false;
        if ((error != null || trouble != null) && !isWrong()) {
            note(error);
        }
    }

    private void note(Throwable error) {
        Throwable before = trouble;
        trouble = error;
        if (error != null && (before == null || !before.toString().equals(error.toString()))) {
            LOG.warn("bookie cluster {}: its metadata cannot be read: {}", name(), error.toString());
        } else if (error == null && before != null) {
            LOG.info("bookie cluster {}: its metadata is read", name());
        }
    }

    // Its connection

    /**
     * Connect if there is no connection, else look whether it still is the same cluster. The answer comes when it is
     * known, or after so long, and never fails: isFailing tells, and isToBeAdmitted at the first contact.
     */
    CompletableFuture<Void> probe(long millis) {
        Connection now = connection;
        CompletableFuture<Void> attempt =
                now == null ? connect() : verify(now.store).thenCompose(x -> count(now.store));
        return Answers.within(millis, attempt).handle((done, error) -> {
            silent = false;
            if (error == null && !admitted) {
                trouble = NOT_COMPARED;
            } else {
                note(error == null ? null : Answers.cause(error));
            }
            return null;
        });
    }

    private synchronized CompletableFuture<Void> connect() {
        if (connecting == null || connecting.isCompletedExceptionally()) {
            connecting = stores.open(entry.storeUrl())
                    .thenCompose(store -> verify(store).thenCompose(x -> watch(store)));
        }
        return connecting;
    }

    private CompletableFuture<Void> verify(MetadataStoreExtended store) {
        CompletableFuture<Optional<GetResult>> instance = store.get(child(BookKeeperConstants.INSTANCEID));
        return instance.thenCombine(store.get(child(BookKeeperConstants.LAYOUT_ZNODE)), (found, layout) -> {
            try {
                checkInstance(found);
                checkLayout(layout);
            } catch (IOException e) {
                throw new CompletionException(e);
            }
            return null;
        });
    }

    private void checkInstance(Optional<GetResult> found) throws WrongClusterException {
        String instance =
                found.map(each -> new String(each.getValue(), StandardCharsets.UTF_8).strip()).orElse("nothing");
        if (!instance.equals(entry.instance())) {
            throw new WrongClusterException("bookie cluster " + name() + ": INSTANCEID below " + entry.ledgersRoot()
                    + " says " + instance + ", it was registered with " + entry.instance());
        }
    }

    private void checkLayout(Optional<GetResult> found) throws IOException {
        if (found.isPresent()) {
            String manager = LedgerLayout.parseLayout(found.get().getValue()).getManagerFactoryClass();
            if (!LAYOUT.equals(manager)) {
                throw new WrongClusterException("bookie cluster " + name() + ": its ledgers have the layout of "
                        + manager + ", not the hierarchical one");
            }
        }
    }

    private CompletableFuture<Void> watch(MetadataStoreExtended store) {
        RegistrationClient registration = new PulsarRegistrationClient(store, entry.ledgersRoot());
        LedgerManager ledgers;
        try {
            ledgers = new PulsarLedgerManagerFactory().initialize(new ClientConfiguration(),
                    new PulsarLayoutManager(store, entry.ledgersRoot()), LAYOUT_VERSION).newLedgerManager();
        } catch (IOException e) {
            registration.close();
            return Answers.failed(e);
        }
        Connection made = new Connection(store, ledgers, registration);
        return registration.watchWritableBookies(bookies -> {
            writable = Set.copyOf(bookies.getValue());
            onBookies.run();
        }).thenCompose(x -> registration.watchReadOnlyBookies(bookies -> {
            readOnly = Set.copyOf(bookies.getValue());
            onBookies.run();
        })).thenCompose(x -> count(store)).whenComplete((done, error) -> {
            if (error != null || !keep(made)) {
                made.close();
            }
        });
    }

    private synchronized boolean keep(Connection made) {
        if (!closed) {
            connection = made;
        }
        return !closed;
    }

    /** Read which bookies have a cookie: a member that does not run now is a member. */
    private CompletableFuture<Void> count(MetadataStoreExtended store) {
        return store.getChildren(child(BookKeeperConstants.COOKIE_NODE)).thenAccept(names -> {
            Set<BookieId> found = new HashSet<>();
            names.forEach(each -> found.add(BookieId.parse(each)));
            cookies = Set.copyOf(found);
        });
    }

    private String path(long ledger) {
        return entry.ledgersRoot() + StringUtils.getHybridHierarchicalLedgerPath(ledger);
    }

    private String child(String name) {
        return entry.ledgersRoot() + "/" + name;
    }

    synchronized void close() {
        closed = true;
        if (connection != null) {
            connection.close();
        }
    }
}
