package bookwarden.broker;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.bookkeeper.client.BKException;
import org.apache.bookkeeper.client.api.LedgerMetadata;
import org.apache.bookkeeper.proto.BookkeeperInternalCallbacks.LedgerMetadataListener;
import org.apache.bookkeeper.versioning.Versioned;

/**
 * Those who want to know when a ledger's metadata changes. Each ledger is watched where it is, and only there; where
 * that is, is looked up anew when the ledger goes from there, and when the registry changes. No lock is held while a
 * cluster is called: it calls back with locks of its own.
 */
final class LedgerListeners {
    /** What watches a ledger in one cluster. */
    private record Relay(BookieCluster cluster, LedgerMetadataListener listener) {
        void start(long ledger) {
            cluster.listen(ledger, listener);
        }

        void stop(long ledger) {
            cluster.unlisten(ledger, listener);
        }
    }

    private static final class Watch {
        final Set<LedgerMetadataListener> listeners = new LinkedHashSet<>();
        Relay relay;
    }

    private final RoutingLedgerManager manager;
    private final Map<Long, Watch> watches = new HashMap<>();
    private ClusterView seen;

    LedgerListeners(RoutingLedgerManager manager) {
        this.manager = manager;
    }

    void add(long ledger, LedgerMetadataListener listener) {
        if (listener == null) {
            return;
        }
        synchronized (this) {
            watches.computeIfAbsent(ledger, x -> new Watch()).listeners.add(listener);
        }
        look(ledger);
    }

    void remove(long ledger, LedgerMetadataListener listener) {
        boolean last;
        synchronized (this) {
            Watch watch = watches.get(ledger);
            last = watch != null && watch.listeners.remove(listener) && watch.listeners.isEmpty();
        }
        if (last) {
            forget(ledger);
        }
    }

    /** After a change: look for all ledgers anew, unless it was only one of bookies. */
    void lookAtAll() {
        List<Long> all;
        synchronized (this) {
            ClusterView now = manager.view();
            all = now == seen ? List.of() : new ArrayList<>(watches.keySet());
            seen = now;
        }
        all.forEach(this::look);
    }

    void close() {
        List<Long> all;
        synchronized (this) {
            all = new ArrayList<>(watches.keySet());
        }
        all.forEach(this::forget);
    }

    private void look(long ledger) {
        manager.find(ledger).whenComplete((found, error) -> {
            if (error == null) {
                move(ledger, found.cluster());
                tell(ledger, found.metadata());
            } else if (Answers.isAbsent(Answers.translated(error))) {
                tell(ledger, null);
                forget(ledger);
            }
            // Not known: it is still watched where it was, and the next change of the registry asks again.
        });
    }

    private void move(long ledger, BookieCluster cluster) {
        Relay relay = new Relay(cluster, (id, metadata) -> changed(id, cluster, metadata));
        Relay before;
        synchronized (this) {
            Watch watch = watches.get(ledger);
            if (watch == null || watch.relay != null && watch.relay.cluster() == cluster) {
                return;
            }
            before = watch.relay;
            watch.relay = relay;
        }
        if (before != null) {
            before.stop(ledger);
        }
        relay.start(ledger);
        boolean current;
        synchronized (this) {
            Watch watch = watches.get(ledger);
            current = watch != null && watch.relay == relay;
        }
        if (!current) {
            relay.stop(ledger);
        }
    }

    /** The ledger's metadata has changed in a cluster, or is gone from it if there is none. */
    private void changed(long ledger, BookieCluster cluster, Versioned<LedgerMetadata> metadata) {
        ClusterView view = manager.view();
        if (metadata != null && view.isThere(cluster, ledger, metadata.getValue())) {
            tell(ledger, view.place(cluster, metadata));
            return;
        }
        Relay left = null;
        synchronized (this) {
            Watch watch = watches.get(ledger);
            if (watch != null && watch.relay != null && watch.relay.cluster() == cluster) {
                left = watch.relay;
                watch.relay = null;
            }
        }
        if (left != null) {
            left.stop(ledger);
            look(ledger);
        }
    }

    private void tell(long ledger, Versioned<LedgerMetadata> metadata) {
        List<LedgerMetadataListener> told;
        synchronized (this) {
            Watch watch = watches.get(ledger);
            told = watch == null ? List.of() : new ArrayList<>(watch.listeners);
        }
        told.forEach(each -> each.onChanged(ledger, metadata));
    }

    private void forget(long ledger) {
        Watch watch;
        synchronized (this) {
            watch = watches.remove(ledger);
        }
        if (watch != null && watch.relay != null) {
            watch.relay.stop(ledger);
        }
    }
}
