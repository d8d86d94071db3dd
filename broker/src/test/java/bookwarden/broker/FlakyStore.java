package bookwarden.broker;

import java.util.EnumSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CopyOnWriteArrayList;
import org.apache.pulsar.metadata.api.GetResult;
import org.apache.pulsar.metadata.api.MetadataStore;
import org.apache.pulsar.metadata.api.MetadataStoreConfig;
import org.apache.pulsar.metadata.api.MetadataStoreException;
import org.apache.pulsar.metadata.api.MetadataStoreProvider;
import org.apache.pulsar.metadata.api.Notification;
import org.apache.pulsar.metadata.api.Stat;
import org.apache.pulsar.metadata.api.extended.CreateOption;
import org.apache.pulsar.metadata.impl.LocalMemoryMetadataStore;

/** A store in memory that fails, or hangs, for as long as a test says so; URL flaky:NAME. */
public final class FlakyStore extends LocalMemoryMetadataStore {
    enum Mood { WELL, FAILING, HANGING }

    private static final Map<String, Mood> MOODS = new ConcurrentHashMap<>();
    private static final Map<String, List<FlakyStore>> SESSIONS = new ConcurrentHashMap<>();
    private final List<CompletableFuture<?>> hanging = new CopyOnWriteArrayList<>();
    private final String url;
    private volatile boolean deaf;

    private FlakyStore(String url, MetadataStoreConfig config) throws MetadataStoreException {
        super("memory:" + url, config);
        this.url = url;
        sessions(url).add(this);
    }

    /** Change the mood; what hung before fails now, as what a lost connection had not answered. */
    static void set(String url, Mood mood) {
        MOODS.put(url, mood);
        sessions(url).forEach(each -> each.hanging.forEach(
                answer -> answer.completeExceptionally(new MetadataStoreException("connection lost"))));
    }

    /** Return the open sessions with it. */
    static List<FlakyStore> sessions(String url) {
        return SESSIONS.computeIfAbsent(url, x -> new CopyOnWriteArrayList<>());
    }

    /** Return the answer of a store in this mood. */
    private <T> CompletableFuture<T> answer(CompletableFuture<T> good) {
        switch (MOODS.getOrDefault(url, Mood.WELL)) {
            case FAILING:
                return CompletableFuture.failedFuture(new MetadataStoreException("connection lost"));
            case HANGING:
                CompletableFuture<T> none = new CompletableFuture<>();
                hanging.add(none);
                return none;
            default:
                return good;
        }
    }

    /** From now on no open session hears of changes that another session makes. */
    static void deafen(String url) {
        sessions(url).forEach(each -> each.deaf = true);
    }

    @Override
    public void accept(Notification notification) {
        if (!deaf) {
            super.accept(notification);
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
        sessions(url).remove(this);
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
