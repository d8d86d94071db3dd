package bookwarden.broker;

import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.function.Function;
import org.apache.bookkeeper.client.BKException;
import org.apache.bookkeeper.discover.BookieServiceInfo;
import org.apache.bookkeeper.discover.RegistrationClient;
import org.apache.bookkeeper.net.BookieId;
import org.apache.bookkeeper.versioning.Version;
import org.apache.bookkeeper.versioning.Versioned;

/** The bookies of all clusters, for one client; which of them may be chosen is up to the placement policy. */
final class BookieUnion implements RegistrationClient {
    private final ClusterFollower follower;
    private final Runnable changed = this::changed;
    private final List<RegistrationListener> onWritable = new CopyOnWriteArrayList<>();
    private final List<RegistrationListener> onReadOnly = new CopyOnWriteArrayList<>();

    BookieUnion(ClusterFollower follower) {
        this.follower = follower;
        follower.addListener(changed);
    }

    @Override
    public void close() {
        follower.removeListener(changed);
        onWritable.clear();
        onReadOnly.clear();
    }

    private void changed() {
        onWritable.forEach(each -> each.onBookiesChanged(union(BookieCluster::writable)));
        onReadOnly.forEach(each -> each.onBookiesChanged(union(BookieCluster::readOnly)));
    }

    private Versioned<Set<BookieId>> union(Function<BookieCluster, Set<BookieId>> part) {
        Set<BookieId> all = new HashSet<>();
        follower.view().oldestFirst().forEach(each -> all.addAll(part.apply(each)));
        return new Versioned<>(all, Version.NEW);
    }

    @Override
    public CompletableFuture<Versioned<Set<BookieId>>> getWritableBookies() {
        return CompletableFuture.completedFuture(union(BookieCluster::writable));
    }

    @Override
    public CompletableFuture<Versioned<Set<BookieId>>> getReadOnlyBookies() {
        return CompletableFuture.completedFuture(union(BookieCluster::readOnly));
    }

    @Override
    public CompletableFuture<Versioned<Set<BookieId>>> getAllBookies() {
        return CompletableFuture.completedFuture(union(BookieCluster::members));
    }

    @Override
    public CompletableFuture<Versioned<BookieServiceInfo>> getBookieServiceInfo(BookieId bookie) {
        BookieCluster cluster = follower.view().clusterOf(bookie);
        return cluster == null ? Answers.failed(new BKException.BKBookieHandleNotAvailableException())
                : cluster.getBookieServiceInfo(bookie);
    }

    @Override
    public CompletableFuture<Void> watchWritableBookies(RegistrationListener listener) {
        onWritable.add(listener);
        return follower.notify(() -> listener.onBookiesChanged(union(BookieCluster::writable)));
    }

    @Override
    public void unwatchWritableBookies(RegistrationListener listener) {
        onWritable.remove(listener);
    }

    @Override
    public CompletableFuture<Void> watchReadOnlyBookies(RegistrationListener listener) {
        onReadOnly.add(listener);
        return follower.notify(() -> listener.onBookiesChanged(union(BookieCluster::readOnly)));
    }

    @Override
    public void unwatchReadOnlyBookies(RegistrationListener listener) {
        onReadOnly.remove(listener);
    }
}
