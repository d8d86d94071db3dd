package bookwarden.broker.marks;

import static bookwarden.broker.marks.NodeWriter.TOPIC;
import static bookwarden.broker.marks.NodeWriter.cursor;
import static bookwarden.broker.marks.NodeWriter.topic;
import static bookwarden.broker.marks.WatchedStore.get;
import static java.nio.charset.StandardCharsets.UTF_8;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import bookwarden.broker.Removals;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.File;
import java.lang.reflect.Proxy;
import java.net.URI;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.Callable;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.stream.LongStream;
import org.apache.bookkeeper.client.LedgerMetadataBuilder;
import org.apache.bookkeeper.client.api.DigestType;
import org.apache.bookkeeper.client.api.LedgerMetadata;
import org.apache.bookkeeper.conf.ClientConfiguration;
import org.apache.bookkeeper.meta.LedgerManager;
import org.apache.bookkeeper.meta.LedgerMetadataSerDe;
import org.apache.bookkeeper.meta.MetadataClientDriver;
import org.apache.bookkeeper.meta.MetadataDrivers;
import org.apache.bookkeeper.net.BookieId;
import org.apache.bookkeeper.stats.NullStatsLogger;
import org.apache.bookkeeper.util.StringUtils;
import org.apache.bookkeeper.versioning.Version;
import org.apache.pulsar.metadata.api.MetadataStoreException;
import org.apache.pulsar.metadata.api.MetadataStoreException.BadVersionException;
import org.apache.pulsar.metadata.api.extended.MetadataStoreExtended;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;

/** Mode two-phase: which removals BookKeeper's client is asked for and does not do. */
class LeftToSweepTest {
    private static final String CURSOR = TOPIC + "/sub";
    private static final byte[] DAMAGED = "damaged".getBytes(UTF_8);
    private WatchedStore watched;
    private BrokerMarks marks;
    private MetadataStoreExtended store;
    private MetadataClientDriver driver;
    private LedgerManager ledgers;

    @BeforeEach
    void start() throws Exception {
        watched = new WatchedStore();
        begin(new MarkSettings.Limits(60_000, 1000), 1 << 20);
    }

    private void begin(MarkSettings.Limits limits, long maxBytes) throws Exception {
        marks = new BrokerMarks(new MarkSettings("b1:8080", limits, 0, 0, 200, 20, maxBytes, 1 << 20, 500),
                watched.store);
        assertEquals(limits != null, marks.isNotObeyed());
        ClientConfiguration conf = new ClientConfiguration();
        conf.setMetadataServiceUri("metadata-store:zk:unused:2181");
        conf.setProperty("metadata-store-instance", watched.plain);
        driver = MetadataDrivers.getClientDriver(URI.create(conf.getMetadataServiceUri()));
        driver.initialize(conf, null, NullStatsLogger.INSTANCE, Optional.empty());
        ledgers = driver.getLedgerManagerFactory().newLedgerManager();
        store = marks.wrap(watched.store);
        assertFalse(marks.isNotObeyed());
    }

    private void end() throws Exception {
        marks.close();
        ledgers.close();
        driver.close();
    }

    @AfterEach
    void stop() throws Exception {
        end();
        watched.close();
    }

    @Test
    void whatIsInTheOutboxIsNotRemovedAndEverythingElseIs() throws Exception {
        ledgers(1, 2, 5, 6, 40);
        put(TOPIC, topic(1, 2), -1);
        put(TOPIC, topic(2), 0);
        put(CURSOR, cursor(5), -1);
        put(CURSOR, cursor(6), 0);
        remove(1, 5, 40);
        assertEquals(List.of(true, true, false), List.of(has(1), has(5), has(40)));
        get(store.delete(CURSOR, Optional.empty()));
        remove(6);
        assertTrue(has(6));
        // A second removal is answered likewise.
        remove(1);
        assertTrue(has(1));
    }

    /** A topic's last ledger, and all ledgers of a topic that is not loaded, are removed before its node. */
    @Test
    void whatItsTopicStillNamesIsMarkedAndNotRemoved() throws Exception {
        ledgers(1, 2, 3);
        cursorLedgers(7, 8);
        ledgers(Map.of("component", "delayed-index-bucket".getBytes(UTF_8), "pulsar/delayedIndexTopic",
                "persistent://t/n/topic".getBytes(UTF_8), "pulsar/delayedIndexCursor", "sub".getBytes(UTF_8)), 30, 31);
        ledgers(Map.of("component", "schema".getBytes(UTF_8)), 50);
        get(watched.plain.put(TOPIC, topic(1, 2), Optional.of(-1L)));
        get(watched.plain.put(CURSOR, cursor(7, 30), Optional.of(-1L)));
        remove(1, 2, 3, 7, 8, 30, 31, 50);
        assertEquals(List.of(true, true, false, true, false), List.of(has(1), has(2), has(3), has(7), has(8)));
        assertEquals(List.of(true, false, false), List.of(has(30), has(31), has(50)));
        assertEquals(List.of("t/n/persistent/topic: data 1", "t/n/persistent/topic: data 2",
                "t/n/persistent/topic/sub: cursor 7", "t/n/persistent/topic/sub: bucket 30"),
                watched.outbox(marks.folder()));
        assertEquals(1, watched.calls.stream().filter(("get " + TOPIC)::equals).count());
        get(store.delete(TOPIC, Optional.empty()));
        assertEquals(4, watched.outbox(marks.folder()).size());
        remove(1);
        assertTrue(has(1));
    }

    /** Each mark makes more ledgers of the deletion topics: if these were marked too, there were no end of it. */
    @Test
    void ledgersOfTheDeletionTopicsAreInTheOutboxAndTheBrokerRemovesThem() throws Exception {
        String schema = new ObjectMapper().readTree(new File(System.getProperty("marks.samples"))).get("schema")
                .toString();
        watched.put(DeletionTopic.PATH, "{\"format\":1,\"topic\":\"persistent://pulsar/system/deletions\","
                + "\"partitions\":1,\"schema\":" + schema + ",\"subscription\":\"s\","
                + "\"retryTopic\":\"persistent://t/n/topic\",\"dlqTopic\":\"persistent://t/n/dead letters\"}");
        end();
        begin(new MarkSettings.Limits(60_000, 1000), 1 << 20);
        ledgers(1, 2);
        cursorLedgers(5, 6);
        put(TOPIC, topic(1, 2), -1);
        put(TOPIC, topic(2), 0);
        put(CURSOR, cursor(5), -1);
        put(CURSOR, cursor(6), 0);
        // The last two are still named.
        remove(1, 5, 2, 6);
        assertEquals(List.of(false, false, false, false), List.of(has(1), has(5), has(2), has(6)));
        assertEquals(List.of("t/n/persistent/topic: data 1", "t/n/persistent/topic/sub: cursor 5"),
                watched.outbox(marks.folder()));
        DeletionTopic topic = DeletionTopic.find(watched.store, 500).orElseThrow();
        for (String owned : new String[] {"pulsar/system/persistent/deletions-partition-0", "t/n/persistent/topic",
            "t/n/persistent/dead+letters", "t/n/persistent/topic-partition-12"}) {
            assertTrue(topic.owns(new NodePath(owned, "cursor")), owned);
        }
        for (String other : new String[] {"t/n/persistent/topic-2", "t/n/persistent/topi", "x/t/n/persistent/topic"}) {
            assertFalse(topic.owns(new NodePath(other, null)), other);
        }
    }

    @Test
    void anAbsentLedgerOfWhichNothingIsKnownIsAnsweredAsEver() throws Exception {
        assertTrue(ledgers.removeLedgerMetadata(1, Version.ANY).handle((x, error) -> error != null).get());
    }

    /** A topic that is not loaded is read before its ledgers are removed, one that is loaded has written its list. */
    @Test
    void whatWasReadOrWrittenTellsWhoseALedgerIs() throws Exception {
        // No custom metadata tells it.
        ledgers(Map.of("component", new byte[0]), 1, 2, 3, 4, 5);
        put(TOPIC, topic(1, 2), -1);
        remove(1, 2);
        assertEquals(List.of(false, true), List.of(has(1), has(2)));
        get(watched.plain.put(TOPIC, topic(3, 4), Optional.empty()));
        get(watched.plain.put(CURSOR, cursor(5), Optional.empty()));
        get(store.get(TOPIC));
        get(store.get(CURSOR));
        remove(3, 4, 5);
        assertEquals(List.of(true, true, true), List.of(has(3), has(4), has(5)));
        assertEquals(List.of("t/n/persistent/topic: data 2", "t/n/persistent/topic: data 3",
                "t/n/persistent/topic: data 4", "t/n/persistent/topic/sub: cursor 5"), watched.outbox(marks.folder()));
        // What its value does not name any more is not the topic's.
        put(TOPIC, topic(6, 7), 1);
        put(TOPIC, topic(7), 2);
        get(watched.plain.put(TOPIC, topic(8), Optional.empty()));
        get(store.get(TOPIC));
        ledgers(Map.of("component", new byte[0]), 7);
        remove(7);
        assertFalse(has(7));
    }

    @Test
    void eachOfVeryManyThatAreLeftAtOnceIsCounted() throws Exception {
        end();
        begin(new MarkSettings.Limits(60_000, 1 << 20), 1 << 20);
        long[] ids = LongStream.range(1, 1000).toArray();
        ledgers(ids);
        marks.start(id -> CompletableFuture.completedFuture(true), sender());
        put(TOPIC, topic(ids), -1);
        put(TOPIC, topic(3000), 0);
        CompletableFuture<?> read = new CompletableFuture<>();
        LedgerManager slow = (LedgerManager) Proxy.newProxyInstance(getClass().getClassLoader(),
                new Class<?>[] {LedgerManager.class},
                (proxy, method, args) -> read.thenCompose(x -> ledgers.readLedgerMetadata((long) args[0])));
        // None of them waits for what counts them.
        for (long id : ids) {
            assertTrue(get(marks.removals.isLeft(id, slow)));
        }
        read.complete(null);
        // One that BookKeeper does not have is not counted.
        put(TOPIC, topic(2000, 3000), 1);
        put(TOPIC, topic(3000), 2);
        remove(2000);
        until(() -> live().get("leftToSweep").get("ledgers").intValue() == ids.length);
        assertEquals(600 * ids.length, live().get("leftToSweep").get("bytes").intValue());
    }

    @Test
    void inModeMarkWhatTheBrokerHasRemovedNeedsNoMarkAndIsNotAskedFor() throws Exception {
        end();
        begin(null, 1 << 20);
        ledgers(1, 2);
        marks.start(id -> CompletableFuture.completedFuture(true), sender());
        put(TOPIC, topic(1, 2, 3), -1);
        remove(1, 2);
        get(store.delete(TOPIC, Optional.empty()));
        assertEquals(List.of(false, false), List.of(has(1), has(2)));
        assertEquals(List.of("t/n/persistent/topic: data 3"), watched.outbox(marks.folder()));
    }

    @Test
    void aDropThatFailedLeavesItsLedgersToTheBroker() throws Exception {
        ledgers(1, 2, 7);
        put(TOPIC, topic(1, 2), -1);
        assertTrue(store.put(TOPIC, topic(2), Optional.of(5L)).handle((x, error) -> error != null).get());
        watched.instead = call -> call.equals("delete " + CURSOR)
                ? CompletableFuture.failedFuture(new BadVersionException("another one writes it")) : null;
        put(CURSOR, cursor(7), -1);
        assertTrue(store.delete(CURSOR, Optional.empty()).handle((x, error) -> error != null).get());
        watched.instead = call -> null;
        // The nodes name 1 and 7 no more, which was not by a write through the outbox.
        get(watched.plain.put(TOPIC, topic(2), Optional.empty()));
        get(watched.plain.delete(CURSOR, Optional.empty()));
        get(store.get(TOPIC));
        remove(1, 7);
        assertEquals(List.of(false, false), List.of(has(1), has(7)));
    }

    @Test
    void whatIsDroppedUnmarkedIsRemovedAlthoughItWasHeldBefore() throws Exception {
        ledgers(1, 2, 3, 4);
        put(TOPIC, topic(1, 2, 3), -1);
        put(TOPIC, topic(3), 0);
        // A tool names them again.
        get(watched.plain.put(TOPIC, topic(1, 2, 3), Optional.empty()));
        get(store.get(TOPIC));
        watched.instead = call -> call.startsWith("put " + marks.folder())
                ? CompletableFuture.failedFuture(new MetadataStoreException("no")) : null;
        put(TOPIC, topic(2, 3), 2);
        remove(1);
        assertFalse(has(1));
        watched.instead = call -> null;
        // Of a value that cannot be read it is not known what it named.
        get(watched.plain.put(TOPIC, DAMAGED, Optional.empty()));
        put(TOPIC, topic(3), 4);
        remove(2);
        assertFalse(has(2));
    }

    @Test
    void withMarksTurnedOffAllIsRemovedAndOnAgainOnlyWhatIsMarkedIsLeft() throws Exception {
        ledgers(1, 2, 3);
        marks.start(id -> CompletableFuture.completedFuture(true), sender());
        put(TOPIC, topic(1, 2, 3), -1);
        put(TOPIC, topic(2, 3), 0);
        watched.put(MarksEnabled.PATH, "{\"format\":1,\"enabled\":false}");
        until(() -> !live().get("enabled").booleanValue());
        remove(1);
        assertFalse(has(1));
        put(TOPIC, topic(3), 1);
        // And what is still named, before its topic is deleted.
        remove(2, 3);
        assertEquals(List.of(false, false), List.of(has(2), has(3)));
        ledgers(1, 4, 5);
        watched.put(MarksEnabled.PATH, "{\"format\":1,\"enabled\":true}");
        until(() -> live().get("enabled").booleanValue());
        // What was held before may have been named, and dropped unmarked, meanwhile.
        remove(1);
        assertFalse(has(1));
        get(store.delete(TOPIC, Optional.empty()));
        put(TOPIC, topic(4, 5), -1);
        put(TOPIC, topic(5), 0);
        remove(4);
        assertTrue(has(4));
    }

    @Test
    void beyondALimitTheBrokerRemovesUntilTheSweepHasCaughtUp() throws Exception {
        ledgers(1, 2, 3, 4, 5);
        marks.start(id -> get2(watched.plain.get(path(id))).thenApply(Optional::isPresent), sender());
        put(TOPIC, topic(1, 2, 3, 4, 5), -1);
        put(TOPIC, topic(2, 3, 4, 5), 0);
        remove(1);
        assertEquals("", live().get("leftToSweep").get("exceeded").textValue());
        // Each has 600 bytes; the limit is 1000.
        put(TOPIC, topic(3, 4, 5), 1);
        remove(2);
        until(() -> live().get("leftToSweep").get("exceeded").textValue().equals("bytes"));
        assertEquals(1200, live().get("leftToSweep").get("bytes").longValue());
        put(TOPIC, topic(4, 5), 2);
        remove(3);
        assertEquals(List.of(true, true, false), List.of(has(1), has(2), has(3)));
        // It is so after a restart.
        until(() -> new String(watched.value("/bookwarden/broker-marks/left-to-sweep/b1:8080"), UTF_8)
                .contains("\"bytes\":1200"));
        end();
        begin(new MarkSettings.Limits(60_000, 1000), 1 << 20);
        assertEquals("bytes", live().get("leftToSweep").get("exceeded").textValue());
        marks.start(id -> get2(watched.plain.get(path(id))).thenApply(Optional::isPresent), sender());
        get(store.get(TOPIC));
        put(TOPIC, topic(5), 3);
        get(watched.plain.delete(path(1), Optional.empty()));
        get(watched.plain.delete(path(2), Optional.empty()));
        until(() -> live().get("leftToSweep").get("exceeded").textValue().isEmpty());
        remove(4);
        assertTrue(has(4));
    }

    /** It is there by design: it neither counts for the limits nor is it removed beyond them. */
    @Test
    void whatTheTrashKeepsIsLeftAndDoesNotCount() throws Exception {
        ledgers(1, 2, 3, 4, 5, 6);
        ledgers(Map.of("component", "compacted-ledger".getBytes(UTF_8), "pulsar/compactedTopic",
                "persistent://t/n/topic".getBytes(UTF_8)), 40);
        ledgers(Map.of("component", "schema".getBytes(UTF_8), "pulsar/schemaId", "t/n/topic".getBytes(UTF_8)), 50, 51);
        // SchemaLocator with version 0 in ledger 50.
        get(watched.plain.put("/schemas/t/n/topic", new byte[] {10, 12, 8, 0, 18, 4, 8, 50, 16, 0, 26, 2, 1, 1},
                Optional.empty()));
        marks.start(id -> get2(watched.plain.get(path(id))).thenApply(Optional::isPresent), sender());
        lease(true);
        put(TOPIC, topic(1, 2, 3, 4, 5, 6), -1);
        put(TOPIC, topic(2, 3, 4, 5, 6), 0);
        remove(1, 6, 40, 50, 51);
        assertEquals(List.of(true, true, true, true, false), List.of(has(1), has(6), has(40), has(50), has(51)));
        lease(false);
        put(TOPIC, topic(4, 5, 6), 1);
        remove(2, 3);
        until(() -> live().get("leftToSweep").get("exceeded").textValue().equals("bytes"));
        assertEquals(2, live().get("leftToSweep").get("ledgers").intValue());
        lease(true);
        put(TOPIC, topic(5, 6), 2);
        remove(4, 1);
        assertEquals(List.of(false, true), List.of(has(4), has(1)));
    }

    private void lease(boolean keeps) throws Exception {
        watched.put(TrashLease.PATH, "{\"format\":1,\"deferUntil\":" + (keeps ? Long.MAX_VALUE : 0)
                + ",\"keep\":[{\"namespaces\":\"t/*\",\"deletedSeconds\":60,\"trimmedSeconds\":0}]}");
        long read = watched.calls.stream().filter(("get " + TrashLease.PATH)::equals).count();
        until(() -> watched.calls.stream().filter(("get " + TrashLease.PATH)::equals).count() > read + 1);
    }

    @Test
    void anotherDriverIsNotAsked() throws Exception {
        end();
        marks = new BrokerMarks(new MarkSettings("b1:8080", new MarkSettings.Limits(1, 1), 0, 0, 200, 20, 1, 1, 500),
                watched.store);
        marks.wrap(watched.store);
        assertTrue(marks.isNotObeyed());
        Removals.ask(new Removals.Rule() {
            @Override
            public CompletableFuture<Boolean> isLeft(long ledger, LedgerManager manager) {
                return CompletableFuture.completedFuture(true);
            }

            @Override
            public void removed(long ledger) {
            }
        });
        assertTrue(marks.isNotObeyed());
        begin(new MarkSettings.Limits(60_000, 1000), 1 << 20);
    }

    private static CompletableFuture<Optional<?>> get2(CompletableFuture<? extends Optional<?>> answer) {
        return answer.thenApply(found -> found);
    }

    private JsonNode live() throws Exception {
        return new ObjectMapper().readTree(
                watched.value(Forwarder.BROKERS + marks.folder().substring(Outbox.ROOT.length())));
    }

    private MarkSender sender() {
        return new MarkSender(watched.store, () -> {
            throw new IllegalStateException("no client is needed");
        }, "dropped", 500);
    }

    private static String path(long id) {
        return "/ledgers" + StringUtils.getHybridHierarchicalLedgerPath(id);
    }

    private void ledgers(long... ids) throws Exception {
        ledgers(Map.of(), ids);
    }

    private void cursorLedgers(long... ids) throws Exception {
        ledgers(Map.of("pulsar/cursor", "sub".getBytes(UTF_8)), ids);
    }

    private void ledgers(Map<String, byte[]> further, long... ids) throws Exception {
        for (long id : ids) {
            Map<String, byte[]> custom = new HashMap<>(Map.of("component", "managed-ledger".getBytes(UTF_8),
                    "pulsar/managed-ledger", TOPIC.substring("/managed-ledgers/".length()).getBytes(UTF_8)));
            custom.putAll(further);
            LedgerMetadata metadata = LedgerMetadataBuilder.create().withId(id).withEnsembleSize(2)
                    .withWriteQuorumSize(2).withAckQuorumSize(2).withDigestType(DigestType.CRC32C)
                    .withPassword(new byte[0])
                    .newEnsembleEntry(0, List.of(BookieId.parse("b1:3181"), BookieId.parse("b2:3181")))
                    .withCustomMetadata(custom)
                    .withClosedState().withLastEntryId(9).withLength(300).build();
            get(watched.plain.put(path(id), new LedgerMetadataSerDe().serialize(metadata), Optional.empty()));
        }
    }

    private void remove(long... ids) throws Exception {
        for (long id : ids) {
            get(ledgers.removeLedgerMetadata(id, Version.ANY));
        }
    }

    private boolean has(long id) throws Exception {
        return get(watched.plain.get(path(id))).isPresent();
    }

    private void put(String path, byte[] value, long version) throws Exception {
        get(store.put(path, value, Optional.of(version)));
    }

    private static void until(Callable<Boolean> condition) throws Exception {
        long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(40);
        while (!condition.call()) {
            assertTrue(System.nanoTime() < end, "did not come true");
            Thread.sleep(5);
        }
    }
}
