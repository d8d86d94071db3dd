package bookwarden.broker;

import java.util.EnumSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.pulsar.metadata.api.GetResult;
import org.apache.pulsar.metadata.api.MetadataStore;
import org.apache.pulsar.metadata.api.MetadataStoreConfig;
import org.apache.pulsar.metadata.api.MetadataStoreException;
import org.apache.pulsar.metadata.api.MetadataStoreProvider;
import org.apache.pulsar.metadata.api.Stat;
import org.apache.pulsar.metadata.api.extended.CreateOption;
import org.apache.pulsar.metadata.impl.LocalMemoryMetadataStore;

/** A store in memory that fails, or hangs, for as long as a test says so; URL flaky:NAME. */
public final class FlakyStore extends LocalMemoryMetadataStore {
    enum Mood { WELL, FAILING, HANGING }

    private static final Map<String, Mood> MOODS = new ConcurrentHashMap<>();
    private static final Map<String, AtomicInteger> SESSIONS = new ConcurrentHashMap<>();
    private final String url;

    private FlakyStore(String url, MetadataStoreConfig config) throws MetadataStoreException {
        super("memory:" + url, config);
        this.url = url;
        SESSIONS.computeIfAbsent(url, x -> new AtomicInteger()).incrementAndGet();
    }

    static void set(String url, Mood mood) {
        MOODS.put(url, mood);
    }

    /** Return how many sessions with it are open. */
    static int sessions(String url) {
        return SESSIONS.computeIfAbsent(url, x -> new AtomicInteger()).get();
    }

    /** Return the answer of a store in this mood. */
    private <T> CompletableFuture<T> answer(CompletableFuture<T> good) {
        switch (MOODS.getOrDefault(url, Mood.WELL)) {
            case FAILING:
                return CompletableFuture.failedFuture(new MetadataStoreException("connection lost"));
            case HANGING:
                return new CompletableFuture<>();
            default:
                return good;
        }
    }

    @Override
    public CompletableFuture<Optional<GetResult>> storeGet(String path) {
        return answer(super.storeGet(path));
    }

    @Override
    public CompletableFuture<List<String>> getChildrenFromStore(String path) {
        return answer(super.getChildrenFromStore(path));
    }

    @Override
    public CompletableFuture<Stat> storePut(String path, byte[] data, Optional<Long> version,
                                            EnumSet<CreateOption> options) {
        return MOODS.getOrDefault(url, Mood.WELL) == Mood.WELL ? super.storePut(path, data, version, options)
                : answer(null);
    }

    @Override
    public CompletableFuture<Void> storeDelete(String path, Optional<Long> version) {
        return MOODS.getOrDefault(url, Mood.WELL) == Mood.WELL ? super.storeDelete(path, version) : answer(null);
    }

    @Override
    public void close() throws Exception {
        SESSIONS.get(url).decrementAndGet();
        super.close();
    }

    /** How Pulsar finds it, by the property pulsar.metadatastore.providers. */
    public static final class Provider implements MetadataStoreProvider {
        @Override
        public String urlScheme() {
            return "flaky";
        }

        @Override
        public MetadataStore create(String url, MetadataStoreConfig config, boolean sessionWatcher)
                throws MetadataStoreException {
            if (MOODS.getOrDefault(url, Mood.WELL) != Mood.WELL) {
                throw new MetadataStoreException("nobody answers at " + url);
            }
            return new FlakyStore(url, config);
        }
    }
}
