package bookwarden.broker.marks;

import static bookwarden.broker.marks.NodeWriter.TOPIC;
import static bookwarden.broker.marks.NodeWriter.cursor;
import static bookwarden.broker.marks.NodeWriter.topic;
import static bookwarden.broker.marks.WatchedStore.get;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.lang.reflect.Proxy;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.stream.LongStream;
import org.apache.pulsar.metadata.api.MetadataStoreException;
import org.apache.pulsar.metadata.api.MetadataStoreException.BadVersionException;
import org.apache.pulsar.metadata.api.MetadataStoreException.NotFoundException;
import org.apache.pulsar.metadata.api.Stat;
import org.apache.pulsar.metadata.api.extended.MetadataStoreExtended;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;

/** What is in the outbox before a write goes on, and that each write goes on whatever becomes of that. */
class MarkingStoreTest {
    private static final String FOLDER = Outbox.ROOT + "/b:8080-1";
    private static final String NODE = "t/n/persistent/topic: ";
    private static final String CURSOR = TOPIC + "/sub";
    private WatchedStore watched;
    private Outbox outbox;
    private MarkingStore marks;
    private MetadataStoreExtended marking;
    private final HeldLedgers held = new HeldLedgers(1000, 60_000, System::currentTimeMillis);
    private boolean enabled = true;
    private final Set<Long> gone = new HashSet<>();
    private boolean answering = true;
    private boolean brokerDeletes;

    @BeforeEach
    void start() throws Exception {
        watched = new WatchedStore();
        marking = marking(1 << 20, 500);
    }

    @AfterEach
    void stop() throws Exception {
        watched.close();
    }

    private CompletableFuture<Boolean> exists(long ledger) {
        return answering ? CompletableFuture.completedFuture(!gone.contains(ledger)) : new CompletableFuture<>();
    }

    private MetadataStoreExtended marking(long maxBytes, long limitMillis) throws Exception {
        outbox = new Outbox(watched.store, FOLDER, maxBytes, limitMillis);
        marks = new MarkingStore(watched.store, new NodeValues(), outbox, held, path -> brokerDeletes, trash(),
                this::exists, () -> enabled, 1 << 20, limitMillis);
        return marks.proxy();
    }

    private TrashLease trash() {
        return new TrashLease(watched.store, 500, path -> false, System::currentTimeMillis);
    }

    @Test
    void aDropIsInTheOutboxBeforeTheWrite() throws Exception {
        long version = created(1, 2, 3);
        watched.calls.clear();
        put(TOPIC, topic(3), version);
        assertEquals(List.of("put " + FOLDER + "/0/0", "put " + TOPIC), watched.calls);
        assertEquals(List.of(NODE + "data 1 data 2"), watched.outbox(FOLDER));
    }

    @Test
    void theWriteWaitsForTheOutbox() throws Exception {
        long version = created(1, 2);
        CompletableFuture<Stat> held = hold("put " + FOLDER);
        watched.calls.clear();
        CompletableFuture<Stat> written = marking.put(TOPIC, topic(2), Optional.of(version));
        assertEquals(List.of("put " + FOLDER + "/0/0"), watched.calls);
        assertFalse(written.isDone());
        held.complete(null);
        assertEquals(version + 1, get(written).getVersion());
        assertEquals(0, outbox.unmarked());
    }

    @Test
    void aWriteThatDropsNothingIsPassedStraightOn() throws Exception {
        long version = created(1, 2);
        watched.calls.clear();
        put(TOPIC, topic(1, 2, 3), version);
        assertEquals(List.of("put " + TOPIC), watched.calls);
    }

    @Test
    void valuesAreRememberedFromReadsAndReadWhereTheVersionIsAnother() throws Exception {
        long version = get(watched.plain.put(TOPIC, topic(1, 2), Optional.empty())).getVersion();
        get(marking.get(TOPIC));
        watched.calls.clear();
        put(TOPIC, topic(2), version);
        assertEquals(List.of("put " + FOLDER + "/0/0", "put " + TOPIC), watched.calls);
        // Another broker writes it.
        long other = get(watched.plain.put(TOPIC, topic(2, 8), Optional.empty())).getVersion();
        watched.calls.clear();
        put(TOPIC, topic(8), other);
        assertEquals(List.of("get " + TOPIC, "put " + FOLDER + "/0/1", "put " + TOPIC), watched.calls);
        assertEquals(List.of(NODE + "data 1", NODE + "data 2"), watched.outbox(FOLDER));
    }

    /** Values go on to be remembered, and writes of one path leave in their order, so that it can be turned on again. */
    @Test
    void turnedOffEachWriteIsPassedOnAsItIs() throws Exception {
        long version = created(1, 2, 3);
        enabled = false;
        watched.calls.clear();
        put(TOPIC, topic(2, 3), version);
        put(CURSOR, cursor(5, 30), -1);
        get(marking.delete(CURSOR, Optional.empty()));
        assertEquals(List.of("put " + TOPIC, "put " + CURSOR, "delete " + CURSOR), watched.calls);
        assertEquals(0, outbox.unmarked());
        enabled = true;
        watched.calls.clear();
        put(TOPIC, topic(3), version + 1);
        assertEquals(List.of("put " + FOLDER + "/0/0", "put " + TOPIC), watched.calls);
        assertEquals(List.of(NODE + "data 2"), watched.outbox(FOLDER));
    }

    @Test
    void aWriteAfterItWasTurnedOffLeavesAfterAnEarlierOneOfItsPath() throws Exception {
        long version = created(1, 2, 3);
        CompletableFuture<Stat> held = hold("put " + FOLDER);
        CompletableFuture<Stat> first = marking.put(TOPIC, topic(2, 3), Optional.of(version));
        enabled = false;
        CompletableFuture<Stat> second = marking.put(TOPIC, topic(3), Optional.of(version + 1));
        CompletableFuture<Void> third = marking.delete(TOPIC, Optional.of(version + 2));
        held.complete(null);
        assertEquals(version + 1, get(first).getVersion());
        assertEquals(version + 2, get(second).getVersion());
        get(third);
    }

    @Test
    void aDeletedNodeDropsAllThatItNamesByTheVersionThatWasRead() throws Exception {
        created(1, 2);
        put(CURSOR, cursor(5, 30), -1);
        watched.calls.clear();
        get(marking.delete(CURSOR, Optional.empty()));
        get(marking.deleteIfExists(TOPIC, Optional.empty()));
        assertEquals(List.of(NODE.replace(":", "/sub:") + "cursor 5 bucket 30", NODE + "data 1 data 2"),
                watched.outbox(FOLDER));
        // What is remembered is proved by its version.
        assertEquals(List.of("put " + FOLDER + "/0/0", "delete " + CURSOR), watched.calls.subList(0, 2));
        assertEquals(Optional.empty(), get(watched.plain.get(TOPIC)));
    }

    /** The broker deletes the last ledgers of a topic before its node. */
    @Test
    void whatBookKeeperHasNoMoreNeedsNoMarkWhenItsNodeIsDeleted() throws Exception {
        brokerDeletes = true;
        created(1, 2, 3);
        gone.addAll(List.of(1L, 3L));
        get(marking.delete(TOPIC, Optional.empty()));
        assertEquals(List.of(NODE + "data 2"), watched.outbox(FOLDER));
        put(CURSOR, cursor(5), -1);
        gone.add(5L);
        get(marking.delete(CURSOR, Optional.empty()));
        assertEquals(1, watched.outbox(FOLDER).size());
        // A write that drops it is made before the delete.
        created(6, 7);
        gone.add(6L);
        put(TOPIC, topic(7), 0);
        assertEquals(NODE + "data 6", watched.outbox(FOLDER).get(1));
        // Where BookKeeper does not answer it may be there.
        answering = false;
        get(marking.delete(TOPIC, Optional.empty()));
        assertEquals(NODE + "data 7", watched.outbox(FOLDER).get(2));
    }

    @Test
    void aLedgerThatWasMarkedAMomentBeforeItsNodeIsDeletedIsNotMarkedAgain() throws Exception {
        created(1, 2);
        assertEquals(HeldLedgers.State.MARK, get(marks.markNamed(NodePath.of(TOPIC), Kind.DATA, 2)));
        get(marking.delete(TOPIC, Optional.empty()));
        assertEquals(List.of(NODE + "data 2", NODE + "data 1"), watched.outbox(FOLDER));
        // Its mark was not durable.
        created(3);
        hold("put " + FOLDER);
        assertEquals(HeldLedgers.State.NOTHING, get(marks.markNamed(NodePath.of(TOPIC), Kind.DATA, 3)));
        watched.instead = call -> null;
        get(marking.delete(TOPIC, Optional.empty()));
        assertTrue(watched.outbox(FOLDER).contains(NODE + "data 3"));
        assertEquals(0, outbox.unmarked() - 1);
    }

    @Test
    void whatTheBrokerLeavesToTheSweepIsMarkedUnaskedWhenItsNodeIsDeleted() throws Exception {
        created(1, 2);
        gone.add(1L);
        get(marking.delete(TOPIC, Optional.empty()));
        assertEquals(List.of(NODE + "data 1 data 2"), watched.outbox(FOLDER));
    }

    @Test
    void whatIsMadeAgainUnderTheNameHasTheSameVersionsAndIsNotTakenForWhatWasThere() throws Exception {
        created(1, 2);
        get(marking.delete(TOPIC, Optional.empty()));
        // By another broker.
        get(watched.plain.put(TOPIC, topic(8, 9), Optional.of(-1L)));
        put(TOPIC, topic(9), 0);
        assertEquals(List.of(NODE + "data 1 data 2", NODE + "data 8"), watched.outbox(FOLDER));
    }

    @Test
    void whatIsWrittenWhileADeleteIsMarkedIsMarkedToo() throws Exception {
        created(1);
        CompletableFuture<Stat> held = hold("put " + FOLDER);
        CompletableFuture<Void> deleted = marking.delete(TOPIC, Optional.empty());
        get(watched.plain.put(TOPIC, topic(1, 9), Optional.empty()));
        held.complete(null);
        get(deleted);
        // The held put was answered by the test: only the second try is there.
        assertEquals(List.of(NODE + "data 1 data 9"), watched.outbox(FOLDER));
        assertEquals(Optional.empty(), get(watched.plain.get(TOPIC)));
    }

    @Test
    void aDeleteOfWhatAlwaysChangesGoesOnAsTheBrokerAskedForAfterFiveTries() throws Exception {
        created(1);
        AtomicInteger deletes = new AtomicInteger();
        watched.instead = call -> {
            boolean contended = call.equals("delete " + TOPIC) && deletes.incrementAndGet() <= 5;
            return contended ? CompletableFuture.failedFuture(new BadVersionException("changed")) : null;
        };
        get(marking.delete(TOPIC, Optional.empty()));
        assertEquals(6, deletes.get());
        assertEquals(Optional.empty(), get(watched.plain.get(TOPIC)));
    }

    @Test
    void theStoresOwnErrorsReachTheBrokerUnwrapped() throws Exception {
        created(1, 2);
        assertInstanceOf(BadVersionException.class, errorOf(marking.put(TOPIC, topic(2), Optional.of(77L))));
        assertInstanceOf(NotFoundException.class, errorOf(marking.delete(TOPIC + "x", Optional.empty())));
        assertInstanceOf(BadVersionException.class, errorOf(marking.delete(TOPIC, Optional.of(77L))));
        watched.instead = call -> call.startsWith("put " + TOPIC)
                ? CompletableFuture.failedFuture(new MetadataStoreException("connection lost")) : null;
        assertInstanceOf(MetadataStoreException.class, errorOf(marking.put(TOPIC, topic(1, 2, 3), Optional.of(0L))));
        assertEquals(0, outbox.unmarked());
    }

    @Test
    void theOutcomeOfAFailedWriteIsReadAgain() throws Exception {
        long version = created(1, 2);
        watched.instead = call -> {
            if (!call.equals("put " + TOPIC)) {
                return null;
            }
            watched.instead = other -> null;
            // It was done, and the answer was lost.
            return watched.plain.put(TOPIC, topic(2), Optional.of(version)).thenCompose(
                    x -> CompletableFuture.failedFuture(new MetadataStoreException("connection lost")));
        };
        assertInstanceOf(MetadataStoreException.class, errorOf(marking.put(TOPIC, topic(2), Optional.of(version))));
        watched.calls.clear();
        put(TOPIC, topic(2, 3), version + 1);
        assertEquals(List.of("get " + TOPIC, "put " + TOPIC), watched.calls);
    }

    @Test
    void writesOfOnePathLeaveInTheirOrder() throws Exception {
        long version = created(1, 2);
        put(TOPIC + "2", topic(1), -1);
        CompletableFuture<Stat> held = hold("put " + FOLDER);
        CompletableFuture<Stat> first = marking.put(TOPIC, topic(2), Optional.of(version));
        CompletableFuture<Stat> second = marking.put(TOPIC, topic(2, 3), Optional.of(version + 1));
        get(marking.put(TOPIC + "2", topic(1, 2), Optional.of(0L)));
        assertFalse(second.isDone());
        held.complete(null);
        assertEquals(version + 1, get(first).getVersion());
        assertEquals(version + 2, get(second).getVersion());
    }

    @Test
    void dropsThatWaitAtTheSameTimeShareANode() throws Exception {
        for (int number = 0; number < 50; number++) {
            put(TOPIC + number, topic(number, 1000), -1);
        }
        CompletableFuture<Stat> held = hold("put " + FOLDER + "/0/0");
        List<CompletableFuture<?>> writes = new ArrayList<>();
        for (int number = 0; number < 50; number++) {
            writes.add(marking.put(TOPIC + number, topic(1000), Optional.of(0L)));
        }
        assertTrue(writes.stream().noneMatch(CompletableFuture::isDone));
        held.complete(null);
        for (CompletableFuture<?> each : writes) {
            get(each);
        }
        assertEquals(List.of(FOLDER + "/0/1"), watched.nodes(FOLDER));
        assertEquals(49, watched.outbox(FOLDER).size());
    }

    @Test
    void anOutboxThatRefusesLetsTheWriteGoOnAndIsTriedAgain() throws Exception {
        long version = created(1, 2);
        watched.instead = call -> call.startsWith("put " + FOLDER)
                ? CompletableFuture.failedFuture(new MetadataStoreException("not authorized")) : null;
        put(TOPIC, topic(2), version);
        assertEquals(1, outbox.unmarked());
        outbox.retry();
        assertTrue(watched.nodes(FOLDER).isEmpty());
        watched.instead = call -> null;
        outbox.retry();
        assertEquals(List.of(NODE + "data 1"), watched.outbox(FOLDER));
        watched.calls.clear();
        outbox.retry();
        assertTrue(watched.calls.isEmpty());
    }

    @Test
    void anOutboxThatHangsHoldsAWriteNoLongerThanItsLimit() throws Exception {
        long version = created(1, 2);
        hold("put " + FOLDER);
        put(TOPIC, topic(2), version);
        assertEquals(1, outbox.unmarked());
    }

    @Test
    void aNodeThatIsThereAlreadyIsOurOwnRepeatedPut() throws Exception {
        long version = created(1, 2);
        outbox = new Outbox(lost(), FOLDER, 1 << 20, 500);
        marking = new MarkingStore(watched.store, new NodeValues(), outbox, held, path -> false, trash(),
                this::exists, () -> enabled, 1 << 20, 500).proxy();
        put(TOPIC, topic(2), version);
        assertEquals(0, outbox.unmarked());
        assertEquals(List.of(NODE + "data 1"), watched.outbox(FOLDER));
    }

    /** Return a session whose puts are done, and answered as ZooKeeper's client does when it repeats one. */
    private MetadataStoreExtended lost() {
        return (MetadataStoreExtended) Proxy.newProxyInstance(getClass().getClassLoader(),
                new Class<?>[] {MetadataStoreExtended.class}, (proxy, method, args) -> {
                    Object answer = method.invoke(watched.plain, args);
                    return method.getName().equals("put") ? ((CompletableFuture<?>) answer).thenCompose(
                            x -> CompletableFuture.failedFuture(new BadVersionException("it is there"))) : answer;
                });
    }

    @Test
    void aNodeOfThatNameWithAnotherValueIsNotOurs() throws Exception {
        long version = created(1, 2);
        watched.put(FOLDER + "/0/0", "somebody else's");
        put(TOPIC, topic(2), version);
        assertEquals(1, outbox.unmarked());
    }

    @Test
    void aFullOutboxLetsWritesGoOn() throws Exception {
        marking = marking(100, 500);
        long version = created(1, 2);
        put(TOPIC, topic(2), version);
        assertEquals(1, outbox.unmarked());
        assertTrue(watched.nodes(FOLDER).isEmpty());
        assertEquals(0, outbox.bytes());
    }

    @Test
    void aValueThatCannotBeReadLetsTheWriteGoOn() throws Exception {
        get(watched.plain.put(TOPIC, "no list".getBytes(), Optional.empty()));
        put(TOPIC, topic(2), 0);
        assertEquals(1, outbox.unmarked());
        get(watched.plain.put(CURSOR, "no cursor".getBytes(), Optional.empty()));
        get(marking.delete(CURSOR, Optional.empty()));
        assertEquals(2, outbox.unmarked());
        assertEquals(Optional.empty(), get(watched.plain.get(CURSOR)));
    }

    @Test
    void aFormerValueThatCannotBeReadFromTheStoreLetsTheWriteGoOn() throws Exception {
        get(watched.plain.put(TOPIC, topic(1, 2), Optional.empty()));
        get(watched.plain.put(CURSOR, cursor(5), Optional.empty()));
        watched.instead = call -> call.startsWith("get ")
                ? CompletableFuture.failedFuture(new MetadataStoreException("connection lost")) : null;
        put(TOPIC, topic(2), 0);
        get(marking.delete(CURSOR, Optional.empty()));
        assertEquals(2, outbox.unmarked());
    }

    @Test
    void aVeryLargeTopicTakesSeveralNodesAllOfThemBeforeTheWrite() throws Exception {
        put(TOPIC, topic(LongStream.range(0, 100_000).map(id -> id * 100_000).toArray()), -1);
        watched.calls.clear();
        get(marking.delete(TOPIC, Optional.empty()));
        int nodes = watched.nodes(FOLDER).size();
        assertTrue(nodes > 5, nodes + " nodes");
        assertEquals("delete " + TOPIC, watched.calls.get(watched.calls.size() - 1));
        assertEquals(0, outbox.unmarked());
    }

    @Test
    void otherPathsAndMethodsArePassedOn() throws Exception {
        get(marking.put("/other", new byte[] {1}, Optional.empty()));
        assertEquals(1, get(marking.get("/other")).orElseThrow().getValue().length);
        assertEquals(List.of("other"), get(marking.getChildren("/")));
        assertTrue(get(marking.exists("/other")));
        assertEquals(marking, marking);
        assertThrows(ExecutionException.class, () -> get(marking.delete("/nothing", Optional.empty())));
    }

    /** Make the topic, and return its version. */
    private long created(long... ids) throws Exception {
        return get(marking.put(TOPIC, topic(ids), Optional.of(-1L))).getVersion();
    }

    private void put(String path, byte[] value, long version) throws Exception {
        get(marking.put(path, value, Optional.of(version)));
    }

    /** Hold the first call that begins so, until the answer is completed. */
    private CompletableFuture<Stat> hold(String call) {
        CompletableFuture<Stat> held = new CompletableFuture<>();
        AtomicInteger count = new AtomicInteger();
        watched.instead = each -> each.startsWith(call) && count.getAndIncrement() == 0 ? held : null;
        return held;
    }

    /** Return what the broker's code gets: the exception itself, not one that wraps it. */
    private static Throwable errorOf(CompletableFuture<?> answer) throws Exception {
        Throwable[] found = new Throwable[1];
        get(answer.handle((x, error) -> found[0] = error));
        return found[0];
    }
}
