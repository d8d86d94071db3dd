package bookwarden.broker.marks;

import static bookwarden.broker.marks.NodeWriter.TOPIC;
import static bookwarden.broker.marks.NodeWriter.topic;
import static bookwarden.broker.marks.WatchedStore.get;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.File;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.Callable;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.pulsar.metadata.api.MetadataStoreException;
import org.apache.pulsar.metadata.api.extended.MetadataStoreExtended;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;

/** From the write of a managed ledger to the end of its node in the outbox, and what the broker says of itself. */
class BrokerMarksTest {
    private static final MarkSettings SETTINGS =
            new MarkSettings("b1:8080", null, 100, 200, 200, 20, 1 << 20, 1 << 20, 500);
    private WatchedStore watched;

    @BeforeEach
    void start() throws Exception {
        watched = new WatchedStore();
    }

    @AfterEach
    void stop() throws Exception {
        watched.close();
    }

    @Test
    void aBrokerSaysThatItMarksAndStopsToSaySo() throws Exception {
        BrokerMarks marks = new BrokerMarks(SETTINGS, watched.store);
        marks.wrap(watched.store);
        marks.start(id -> CompletableFuture.completedFuture(false), sender());
        String folder = marks.folder().substring(Outbox.ROOT.length());
        assertTrue(folder.startsWith("/b1:8080-"), folder);
        JsonNode said = new ObjectMapper().readTree(watched.value(Forwarder.BROKERS + folder));
        assertEquals("mark", said.get("mode").textValue());
        assertEquals("b1:8080", said.get("broker").textValue());
        assertEquals(0, said.get("unmarkedWrites").intValue());
        assertTrue(get(watched.plain.get(marks.folder())).isPresent());
        // It is written again when it is lost.
        get(watched.plain.delete(Forwarder.BROKERS + folder, Optional.empty()));
        until(() -> get(watched.plain.get(Forwarder.BROKERS + folder)).isPresent());
        marks.close();
        assertEquals(Optional.empty(), get(watched.plain.get(Forwarder.BROKERS + folder)));
    }

    @Test
    void aDropIsInTheOutboxAndGoesWhenTheBrokerHasDeletedIt() throws Exception {
        BrokerMarks marks = new BrokerMarks(SETTINGS, watched.store);
        MetadataStoreExtended store = marks.wrap(watched.store);
        get(store.put(TOPIC, topic(1, 2), Optional.of(-1L)));
        get(store.put(TOPIC, topic(2), Optional.of(0L)));
        assertEquals(1, watched.nodes(marks.folder()).size());
        marks.start(id -> CompletableFuture.completedFuture(false), sender());
        until(() -> watched.nodes(marks.folder()).isEmpty());
        marks.close();
    }

    @Test
    void itIsTurnedOffAndOnAndTheNodeOfTheBrokerSaysSo() throws Exception {
        BrokerMarks marks = new BrokerMarks(SETTINGS, watched.store);
        MetadataStoreExtended store = marks.wrap(watched.store);
        CountDownLatch asked = new CountDownLatch(1);
        marks.start(id -> {
            asked.countDown();
            return stuck();
        }, sender());
        get(store.put(TOPIC, topic(1, 2, 3, 4), Optional.of(-1L)));
        get(store.put(TOPIC, topic(2, 3, 4), Optional.of(0L)));
        assertTrue(live(marks).get("enabled").booleanValue());
        // What forwards may wait for long: that keeps nothing else waiting.
        assertTrue(asked.await(20, TimeUnit.SECONDS));
        watched.put(MarksEnabled.PATH, "{\"format\":1,\"enabled\":false}");
        until(() -> !live(marks).get("enabled").booleanValue());
        get(store.put(TOPIC, topic(3, 4), Optional.of(1L)));
        assertEquals(List.of("t/n/persistent/topic: data 1"), watched.outbox(marks.folder()));
        // One that starts now is off at once, and what cannot be understood changes nothing.
        BrokerMarks later = new BrokerMarks(SETTINGS, watched.store);
        later.wrap(watched.store);
        assertFalse(live(later).get("enabled").booleanValue());
        watched.put(MarksEnabled.PATH, "{\"format\":2,\"enabled\":true}");
        Thread.sleep(100);
        assertFalse(live(marks).get("enabled").booleanValue());
        get(watched.plain.delete(MarksEnabled.PATH, Optional.empty()));
        until(() -> live(marks).get("enabled").booleanValue());
        get(store.put(TOPIC, topic(4), Optional.of(2L)));
        assertEquals(2, watched.outbox(marks.folder()).size());
        assertEquals(0, live(marks).get("unmarkedWrites").intValue());
        later.close();
        marks.close();
    }

    /** Wait until the thread is interrupted. */
    private static CompletableFuture<Boolean> stuck() {
        try {
            Thread.sleep(TimeUnit.HOURS.toMillis(1));
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
        return CompletableFuture.completedFuture(true);
    }

    private JsonNode live(BrokerMarks marks) throws Exception {
        return new ObjectMapper().readTree(
                watched.value(Forwarder.BROKERS + marks.folder().substring(Outbox.ROOT.length())));
    }

    /** Without what `bookwarden init` writes, marks are kept and no client is made. */
    @Test
    void withoutADeletionTopicMarksAreKept() throws Exception {
        BrokerMarks marks = new BrokerMarks(SETTINGS, watched.store);
        MetadataStoreExtended store = marks.wrap(watched.store);
        get(store.put(TOPIC, topic(1, 2), Optional.of(-1L)));
        get(store.put(TOPIC, topic(2), Optional.of(0L)));
        marks.start(id -> CompletableFuture.completedFuture(true), sender());
        until(() -> MarkMetrics.WAITING.get() == 1);
        Thread.sleep(100);
        assertEquals(List.of("t/n/persistent/topic: data 1"), watched.outbox(marks.folder()));
        marks.close();
    }

    /** A topic without the sweep's subscription does not keep a mark. */
    @Test
    void nothingIsSentToATopicWithoutTheSubscription() throws Exception {
        String schema = new ObjectMapper().readTree(new File(System.getProperty("marks.samples"))).get("schema")
                .toString();
        watched.put(DeletionTopic.PATH, "{\"format\":1,\"topic\":\"persistent://pulsar/system/x\",\"partitions\":2,"
                + "\"schema\":" + schema + ",\"subscription\":\"a b\"}");
        AtomicInteger clients = new AtomicInteger();
        MarkSender sender = new MarkSender(watched.store, () -> {
            clients.incrementAndGet();
            throw new IllegalStateException("no broker");
        }, "dropped", 500);
        List<Mark> marks = List.of(new Mark(NodePath.of(TOPIC), Kind.DATA, 1, null, 5));
        watched.put("/managed-ledgers/pulsar/system/persistent/x-partition-0/a+b", "");
        assertFalse(sender.send(marks));
        assertEquals(0, clients.get());
        assertEquals(1, MarkMetrics.WAITING.get());
        watched.put("/managed-ledgers/pulsar/system/persistent/x-partition-1/a+b", "");
        assertFalse(sender.send(marks));
        assertEquals(1, clients.get());
        assertEquals(0, MarkMetrics.WAITING.get());
    }

    @Test
    void aStoreThatRefusesOurFoldersDoesNotKeepTheBrokerFromItsWork() throws Exception {
        watched.instead = call -> call.contains("/bookwarden/")
                ? CompletableFuture.failedFuture(new MetadataStoreException("not authorized")) : null;
        BrokerMarks marks = new BrokerMarks(SETTINGS, watched.store);
        MetadataStoreExtended store = marks.wrap(watched.store);
        marks.start(id -> CompletableFuture.completedFuture(false), sender());
        get(store.put(TOPIC, topic(1, 2), Optional.of(-1L)));
        assertEquals(1, get(store.put(TOPIC, topic(2), Optional.of(0L))).getVersion());
        // Tried again once it is allowed, by its own thread.
        watched.instead = call -> null;
        until(() -> get(watched.plain.getChildren(Forwarder.BROKERS)).size() == 1);
        marks.close();
    }

    private MarkSender sender() {
        return new MarkSender(watched.store, () -> {
            throw new IllegalStateException("no client is needed");
        }, "dropped", 500);
    }

    private static void until(Callable<Boolean> condition) throws Exception {
        long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(20);
        while (!condition.call()) {
            assertTrue(System.nanoTime() < end, "did not come true");
            Thread.sleep(5);
        }
    }
}
