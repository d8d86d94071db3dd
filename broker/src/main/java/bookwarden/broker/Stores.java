package bookwarden.broker;

import java.util.HashMap;
import java.util.HashSet;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import org.apache.pulsar.metadata.api.MetadataStoreConfig;
import org.apache.pulsar.metadata.api.MetadataStoreException;
import org.apache.pulsar.metadata.api.extended.MetadataStoreExtended;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** The metadata stores of all bookie clusters: Pulsar's own, and one session for each other URL. */
final class Stores {
    private static final Logger LOG = LoggerFactory.getLogger(Stores.class);
    private static final long CLOSE_RETRY_MILLIS = 5_000;
    private final MetadataStoreExtended own;
    private final int sessionTimeoutMillis;
    private final Map<String, CompletableFuture<MetadataStoreExtended>> opened = new HashMap<>();

    /** Pulsar's own store stays its caller's, who closes it. */
    Stores(MetadataStoreExtended own, int sessionTimeoutMillis) {
        this.own = own;
        this.sessionTimeoutMillis = sessionTimeoutMillis;
    }

    /**
     * Return the store of this URL, null for Pulsar's own. To connect may block for as long as its server does not
     * answer, so that it is done in a thread of its own; whoever asks meanwhile gets the same answer.
     */
    synchronized CompletableFuture<MetadataStoreExtended> open(String url) {
        if (url == null) {
            return CompletableFuture.completedFuture(own);
        }
        CompletableFuture<MetadataStoreExtended> store = opened.get(url);
        if (store == null || store.isCompletedExceptionally()) {
            store = CompletableFuture.supplyAsync(() -> create(url, sessionTimeoutMillis), Stores::runInThread);
            opened.put(url, store);
        }
        return store;
    }

    /**
     * Open a store; blocks. Without batches: with them an attempt to connect that fails leaves a thread behind, which
     * Pulsar's store starts before it connects.
     */
    static MetadataStoreExtended create(String url, int sessionTimeoutMillis) {
        try {
            return MetadataStoreExtended.create(url, MetadataStoreConfig.builder()
                    .sessionTimeoutMillis(sessionTimeoutMillis).batchingEnabled(false)
                    .metadataStoreName("bookwarden-bookie-cluster").build());
        } catch (MetadataStoreException e) {
            throw new CompletionException(e);
        }
    }

    /** Close all stores but those of these URLs, also those that are still being opened. */
    synchronized void closeAllBut(Set<String> urls) {
        for (String url : new HashSet<>(opened.keySet())) {
            if (!urls.contains(url)) {
                opened.remove(url).thenAcceptAsync(store -> close(url, store), Stores::runInThread);
            }
        }
    }

    /**
     * Close a store once its server answers; blocks. One that is closed while its session is lost never stops to make
     * new ones in Pulsar 4.0 and 4.2, some ten a second, until its server takes nobody's any more.
     */
    private static void close(String url, MetadataStoreExtended store) {
        try {
            while (!answers(store)) {
                Thread.sleep(CLOSE_RETRY_MILLIS);
            }
            store.close();
        } catch (Exception e) {
            LOG.warn("closing metadata store {}: {}", url, e.toString());
        }
    }

    private static boolean answers(MetadataStoreExtended store) {
        return Answers.within(CLOSE_RETRY_MILLIS, store.exists("/bookwarden-read-barrier"))
                .handle((found, error) -> error == null).join();
    }

    private static void runInThread(Runnable task) {
        Thread thread = new Thread(task, "bookwarden-store");
        thread.setDaemon(true);
        thread.start();
    }
}
