package bookwarden.broker.marks;

import static java.nio.charset.StandardCharsets.UTF_8;

import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Proxy;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.UUID;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.TimeUnit;
import java.util.function.Function;
import org.apache.pulsar.metadata.api.MetadataStoreConfig;
import org.apache.pulsar.metadata.api.extended.MetadataStoreExtended;

/** A store in memory that says what was asked of it, in order, and lets a test answer instead. */
final class WatchedStore implements AutoCloseable {
    final MetadataStoreExtended plain;
    final MetadataStoreExtended store;
    /** Calls as "put /path", without those of other methods than get, put and delete. */
    final List<String> calls = new CopyOnWriteArrayList<>();
    /** Answers a call; null: the store does. */
    volatile Function<String, CompletableFuture<?>> instead = call -> null;

    WatchedStore() throws Exception {
        plain = MetadataStoreExtended.create("memory:" + UUID.randomUUID(), MetadataStoreConfig.builder().build());
        store = (MetadataStoreExtended) Proxy.newProxyInstance(getClass().getClassLoader(),
                new Class<?>[] {MetadataStoreExtended.class}, (proxy, method, args) -> {
                    if (List.of("get", "put", "delete").contains(method.getName())) {
                        String call = method.getName() + " " + args[0];
                        calls.add(call);
                        CompletableFuture<?> answer = instead.apply(call);
                        if (answer != null) {
                            return answer;
                        }
                    }
                    try {
                        return method.invoke(plain, args);
                    } catch (InvocationTargetException e) {
                        throw e.getCause();
                    }
                });
    }


    /** Return the drops of a folder of the outbox as texts: path, and what was dropped. */
    List<String> outbox(String folder) throws Exception {
        List<String> drops = new ArrayList<>();
        for (String path : nodes(folder)) {
            for (Drop each : OutboxFormat.decode(value(path))) {
                drops.add(each.path() + ": " + NamedLedgersTest.text(each.ledgers()));
            }
        }
        return drops;
    }

    List<String> nodes(String folder) throws Exception {
        List<String> nodes = new ArrayList<>();
        for (String block : get(plain.getChildrenFromStore(folder))) {
            for (String node : get(plain.getChildrenFromStore(folder + "/" + block))) {
                nodes.add(folder + "/" + block + "/" + node);
            }
        }
        return nodes;
    }

    byte[] value(String path) throws Exception {
        return get(plain.get(path)).orElseThrow().getValue();
    }

    void put(String path, String value) throws Exception {
        get(plain.put(path, value.getBytes(UTF_8), Optional.empty()));
    }

    static <T> T get(CompletableFuture<T> answer) throws Exception {
        return answer.get(20, TimeUnit.SECONDS);
    }

    @Override
    public void close() throws Exception {
        plain.close();
    }
}
