package bookwarden.broker;

import static java.nio.charset.StandardCharsets.UTF_8;
import static org.junit.jupiter.api.Assertions.fail;

import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.UUID;
import java.util.concurrent.Callable;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import org.apache.bookkeeper.client.BKException;
import org.apache.bookkeeper.client.LedgerMetadataBuilder;
import org.apache.bookkeeper.client.api.DigestType;
import org.apache.bookkeeper.client.api.LedgerMetadata;
import org.apache.bookkeeper.meta.LedgerMetadataSerDe;
import org.apache.bookkeeper.net.BookieId;
import org.apache.bookkeeper.util.StringUtils;
import org.apache.pulsar.metadata.api.MetadataStoreConfig;
import org.apache.pulsar.metadata.api.extended.MetadataStoreExtended;

/** Bookie clusters in metadata stores in memory, a registry of them, and a follower: what a broker would have. */
final class Site implements AutoCloseable {
    static final String OWNER = "5f2c9a41";
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final long PATIENCE_SECONDS = 30;

    /** A cluster: its store, and what the registry says of it. */
    record Cluster(MetadataStoreExtended first, String storeUrl, String root, String instance, boolean shared) {
        /** Return the session of the follower, if it has one: a store in memory tells only its own of changes. */
        MetadataStoreExtended store() {
            // One look: a session may end at any moment.
            return storeUrl == null ? first
                    : FlakyStore.sessions(storeUrl).stream().findFirst().map(MetadataStoreExtended.class::cast)
                            .orElse(first);
        }
    }

    private final String url = "memory:" + UUID.randomUUID();
    final MetadataStoreExtended own;
    final Map<String, Cluster> clusters = new LinkedHashMap<>();
    final Map<String, Long> since = new LinkedHashMap<>();
    private final List<ClusterFollower> followers = new ArrayList<>();
    private final List<AutoCloseable> opened = new ArrayList<>();
    final List<String> formerOwners = new ArrayList<>();
    /** Of clusters by name; those without are of a registry of 0.1.0. */
    final Map<String, Long> unmarkedBelow = new LinkedHashMap<>();
    String bootstrap = "";
    long epoch;

    Site() throws Exception {
        own = another();
    }

    /** Open one more session with Pulsar's own store: the follower does not hear of what it changes. */
    MetadataStoreExtended another() throws Exception {
        MetadataStoreExtended session = MetadataStoreExtended.create(url, MetadataStoreConfig.builder().build());
        opened.add(session);
        return session;
    }

    /** Make a cluster whose metadata is in Pulsar's own store. */
    Cluster cluster(String name, String... bookies) throws Exception {
        return cluster(name, own, null, false, bookies);
    }

    /** Make a cluster with a flaky store of its own; its URL is in the answer. */
    Cluster flaky(String name, boolean shared, String... bookies) throws Exception {
        String url = "flaky:" + UUID.randomUUID();
        MetadataStoreExtended store = MetadataStoreExtended.create("memory:" + url,
                MetadataStoreConfig.builder().build());
        opened.add(store);
        return cluster(name, store, url, shared, bookies);
    }

    private Cluster cluster(String name, MetadataStoreExtended store, String url, boolean shared, String... bookies)
            throws Exception {
        Cluster made = new Cluster(store, url, "/bookies-" + name, UUID.randomUUID().toString(), shared);
        clusters.put(name, made);
        put(made, "INSTANCEID", made.instance);
        for (String bookie : bookies) {
            put(made, "cookies/" + bookie, "");
            put(made, "available/" + bookie, "");
        }
        return made;
    }

    void put(Cluster cluster, String path, String value) throws Exception {
        cluster.store().put(cluster.root + "/" + path, value.getBytes(UTF_8), Optional.empty()).get();
    }

    void delete(Cluster cluster, String path) throws Exception {
        cluster.store().delete(cluster.root + "/" + path, Optional.empty()).get();
    }

    /** Write the next registry: these clusters, the first of them active. */
    void register(String... names) throws Exception {
        epoch++;
        for (String name : names) {
            since.putIfAbsent(name, epoch);
        }
        write(registry(epoch, names));
    }

    ObjectNode registry(long number, String... names) {
        ObjectNode fields = JSON.createObjectNode();
        fields.put("format", 1).put("epoch", number).put("owner", OWNER).put("idRoot", "/ids").put("active", names[0]);
        if (!formerOwners.isEmpty()) {
            formerOwners.forEach(fields.putArray("formerOwners")::add);
        }
        ObjectNode all = fields.putObject("clusters");
        for (String name : names) {
            Cluster each = clusters.get(name);
            ObjectNode entry = all.putObject(name);
            entry.put("metadataServiceUri", "x").put("storeUrl", each.storeUrl)
                    .put("ledgersRoot", each.root).put("instance", each.instance).put("since", since.get(name))
                    .put("bootstrap", name.equals(bootstrap)).put("deprecated", false).put("shared", each.shared);
            if (unmarkedBelow.containsKey(name)) {
                entry.put("unmarkedBelow", unmarkedBelow.get(name));
            }
        }
        fields.putNull("directive");
        return fields;
    }

    void write(Object registry) throws Exception {
        own.put(Registry.PATH, registry.toString().getBytes(UTF_8), Optional.empty()).get();
    }

    /** From one look of a follower at everything to the next. */
    long pollMillis = 100;

    Settings settings() {
        return new Settings(own, null, Registry.PATH, 1000, pollMillis, 300, 20, 1000, 1000, 200);
    }

    /** Return a follower, which ends with the site. */
    ClusterFollower follow() throws Exception {
        ClusterFollower follower = ClusterFollower.acquire(settings());
        followers.add(follower);
        return follower;
    }

    /** Follow the registry as it is now, and wait until that is so. */
    void await(ClusterFollower follower, long number) throws Exception {
        until(() -> follower.view().registry().epoch() == number);
    }

    static void until(Callable<Boolean> condition) throws Exception {
        long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(PATIENCE_SECONDS);
        while (!condition.call()) {
            if (System.nanoTime() > end) {
                fail("did not come true in " + PATIENCE_SECONDS + " s");
            }
            Thread.sleep(5);
        }
    }

    /** Return the answer, or throw what the client's code would get. */
    static <T> T get(CompletableFuture<T> answer) throws Exception {
        try {
            return answer.get(PATIENCE_SECONDS, TimeUnit.SECONDS);
        } catch (ExecutionException e) {
            throw (Exception) e.getCause();
        }
    }

    /** Return the code of the BKException of an answer, which must be completed by that itself, not by a wrapper. */
    static int errorOf(CompletableFuture<?> answer) throws Exception {
        Throwable[] found = new Throwable[1];
        answer.handle((value, error) -> found[0] = error).get(PATIENCE_SECONDS, TimeUnit.SECONDS);
        if (!(found[0] instanceof BKException)) {
            fail("no BKException: " + found[0]);
        }
        return ((BKException) found[0]).getCode();
    }

    static LedgerMetadataBuilder ledger(long id, String... bookies) {
        return LedgerMetadataBuilder.create().withId(id).withEnsembleSize(bookies.length)
                .withWriteQuorumSize(bookies.length).withAckQuorumSize(bookies.length)
                .withDigestType(DigestType.CRC32C).withPassword(new byte[0]).newEnsembleEntry(0, ids(bookies));
    }

    static List<BookieId> ids(String... bookies) {
        return List.of(bookies).stream().map(BookieId::parse).toList();
    }

    /** Write a ledger's metadata past the jar, as the copy of a switch is, or another Pulsar cluster's ledger. */
    void plant(Cluster cluster, LedgerMetadata metadata) throws Exception {
        cluster.store().put(cluster.root + StringUtils.getHybridHierarchicalLedgerPath(metadata.getLedgerId()),
                new LedgerMetadataSerDe().serialize(metadata), Optional.empty()).get();
    }

    /** Return whether a cluster has metadata of a ledger, whatever it is. */
    boolean has(Cluster cluster, long id) throws Exception {
        return cluster.store().get(cluster.root + StringUtils.getHybridHierarchicalLedgerPath(id)).get().isPresent();
    }

    @Override
    public void close() throws Exception {
        followers.forEach(ClusterFollower::release);
        for (AutoCloseable each : opened) {
            each.close();
        }
    }
}
