package bookwarden.broker.marks;

import static bookwarden.broker.marks.NodeWriter.FIRST;
import static bookwarden.broker.marks.WatchedStore.get;
import static java.nio.charset.StandardCharsets.UTF_8;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.ArrayList;
import java.util.EnumSet;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.function.Predicate;
import java.util.stream.LongStream;
import org.apache.pulsar.metadata.api.GetResult;
import org.apache.pulsar.metadata.api.MetadataStoreException;
import org.apache.pulsar.metadata.api.Stat;
import org.apache.pulsar.metadata.api.extended.CreateOption;
import org.apache.pulsar.metadata.api.extended.MetadataStoreExtended;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;

/** What becomes of the nodes of the outbox. */
class ForwarderTest {
    private static final String BROKER = "b1:8080";
    private static final String FOLDER = Outbox.ROOT + "/" + BROKER + "-own";
    private static final NodePath TOPIC = new NodePath("t/n/persistent/topic", null);
    private final Set<Long> present = new HashSet<>();
    private final Set<Long> unknown = new HashSet<>();
    private final List<String> sent = new ArrayList<>();
    private boolean confirming = true;
    private WatchedStore watched;
    private Outbox outbox;

    @BeforeEach
    void start() throws Exception {
        watched = new WatchedStore();
        outbox = new Outbox(watched.store, FOLDER, 1 << 20, 500);
        put(Forwarder.BROKERS + "/" + BROKER + "-own");
    }

    @AfterEach
    void stop() throws Exception {
        watched.close();
    }

    @Test
    void whatTheBrokerDeletedIsTakenOutAndNotSent() throws Exception {
        drop(1, 2);
        forwarder(0, 60_000).poll();
        assertEquals(List.of(), sent);
        assertEquals(List.of(), watched.nodes(FOLDER));
        assertEquals(0, outbox.bytes());
    }

    @Test
    void eachKindIsTakenOutOrSentByItself() throws Exception {
        NodePath cursor = new NodePath("t/n/persistent/topic", "sub");
        get(outbox.add(new Drop(cursor, 5, NamedLedgers.ofCursor(1, new long[] {2, 3}))));
        present.add(3L);
        forwarder(0, 0).poll();
        assertEquals(List.of("buckets:t/n/persistent/topic/sub LEDGER 3"), sent);
    }

    @Test
    void nothingIsAskedBeforeTheBrokerHadTimeToDelete() throws Exception {
        drop(1);
        Forwarder forwarder = forwarder(200, 60_000);
        forwarder.poll();
        assertEquals(1, watched.nodes(FOLDER).size());
        assertEquals(1, forwarder.nodes());
        assertFalse(watched.calls.contains("get " + FOLDER + "/0/0"));
        Thread.sleep(250);
        forwarder.poll();
        assertEquals(List.of(), watched.nodes(FOLDER));
        assertEquals(0, forwarder.nodes());
    }

    @Test
    void whatIsStillThereAfterTheLastOfTheBrokersTriesIsSent() throws Exception {
        drop(1, 2);
        present.add(2L);
        Forwarder forwarder = forwarder(0, 300);
        forwarder.poll();
        assertEquals(List.of(), sent);
        assertEquals(1, watched.nodes(FOLDER).size());
        Thread.sleep(350);
        forwarder.poll();
        assertEquals(List.of("t/n/persistent/topic LEDGER 2"), sent);
        assertEquals(List.of(), watched.nodes(FOLDER));
        forwarder.poll();
        assertEquals(1, sent.size());
        assertEquals(0, outbox.bytes());
    }

    @Test
    void whatIsLeftToTheSweepIsSentUnasked() throws Exception {
        drop(1, 2);
        AtomicBoolean deletes = new AtomicBoolean();
        Forwarder forwarder = forwarder(settings(new MarkSettings.Limits(1, 1), 0, 60_000), path -> deletes.get());
        forwarder.poll();
        assertEquals(List.of("t/n/persistent/topic LEDGER 1", "t/n/persistent/topic LEDGER 2"), sent);
        assertEquals(List.of(), watched.nodes(FOLDER));
        // As beyond a limit.
        deletes.set(true);
        drop(3, 4);
        present.add(4L);
        forwarder.poll();
        assertEquals(2, sent.size());
        assertEquals(1, watched.nodes(FOLDER).size());
    }

    @Test
    void aLedgerThatIsMarkedTwiceIsSentOnceAndEachNodeGoes() throws Exception {
        drop(1);
        drop(1, 2);
        confirming = false;
        Forwarder forwarder = forwarder(settings(new MarkSettings.Limits(1, 1), 0, 0), path -> false);
        forwarder.poll();
        assertEquals(2, watched.nodes(FOLDER).size());
        confirming = true;
        sent.clear();
        forwarder(settings(new MarkSettings.Limits(1, 1), 0, 0), path -> false).poll();
        assertEquals(List.of("t/n/persistent/topic LEDGER 1", "t/n/persistent/topic LEDGER 2"), sent);
        assertEquals(List.of(), watched.nodes(FOLDER));
    }

    @Test
    void marksOfManyLedgersAreSentAFewNodesAtATime() throws Exception {
        for (int number = 0; number < 3; number++) {
            drop(LongStream.range(number * 30_000L, (number + 1) * 30_000L).toArray());
        }
        List<Integer> sends = new ArrayList<>();
        new Forwarder(settings(new MarkSettings.Limits(1, 1), 0, 0), watched.store, outbox, path -> false,
                id -> CompletableFuture.completedFuture(true), marks -> sends.add(marks.size()),
                new Trash(watched.store, "own", 500)).poll();
        assertEquals(List.of(30_000, 30_000, 30_000, 0), sends);
        assertEquals(List.of(), watched.nodes(FOLDER));
    }

    @Test
    void whatAnotherStartLeftIsAskedFor() throws Exception {
        get(new Outbox(watched.store, Outbox.ROOT + "/" + BROKER + "-former", 1 << 20, 500)
                .add(new Drop(TOPIC, 5, NamedLedgers.ofTopic(new long[] {1, 2}, new long[] {}, List.of()))));
        present.add(2L);
        forwarder(settings(new MarkSettings.Limits(1, 1), 0, 0), path -> false).poll();
        assertEquals(List.of("t/n/persistent/topic LEDGER 2"), sent);
    }

    @Test
    void whatBookKeeperDoesNotSayIsSent() throws Exception {
        drop(1);
        unknown.add(1L);
        forwarder(0, 0).poll();
        assertEquals(List.of("t/n/persistent/topic LEDGER 1"), sent);
    }

    @Test
    void aLedgerThatCannotBeAskedForIsSent() throws Exception {
        drop(1, 2);
        present.add(2L);
        new Forwarder(settings(0, 0), watched.store, outbox, path -> true,
                id -> CompletableFuture.failedFuture(new IllegalStateException("no bookies")), this::send,
                new Trash(watched.store, "own", 500)).poll();
        assertEquals(2, sent.size());
    }

    /** Drops that were made at the same time share a node. */
    @Test
    void whatIsLeftToTheSweepIsSentAtOnceAndWhatTheBrokerDeletesLater() throws Exception {
        NodePath deletions = new NodePath("pulsar/system/persistent/deletions", null);
        CompletableFuture<Stat> first = new CompletableFuture<>();
        watched.instead = call -> call.startsWith("put " + FOLDER) ? first : null;
        outbox.add(new Drop(TOPIC, 5, NamedLedgers.ofCursor(9, new long[] {})));
        watched.instead = call -> null;
        CompletableFuture<?> shared = CompletableFuture.allOf(
                outbox.add(new Drop(TOPIC, 5, NamedLedgers.ofTopic(new long[] {1}, new long[] {}, List.of()))),
                outbox.add(new Drop(deletions, 5, NamedLedgers.ofTopic(new long[] {2}, new long[] {}, List.of()))));
        first.complete(null);
        get(shared);
        drop(3);
        assertEquals(2, watched.nodes(FOLDER).size());
        present.addAll(List.of(1L, 2L, 3L));
        Forwarder forwarder = forwarder(settings(new MarkSettings.Limits(1, 1), 100, 300), deletions::equals);
        forwarder.poll();
        assertEquals(List.of("t/n/persistent/topic LEDGER 1", "t/n/persistent/topic LEDGER 3"), sent);
        assertEquals(1, watched.nodes(FOLDER).size());
        Thread.sleep(350);
        forwarder.poll();
        assertEquals("pulsar/system/persistent/deletions LEDGER 2", sent.get(2));
        assertEquals(List.of(3, List.of()), List.of(sent.size(), watched.nodes(FOLDER)));
    }

    @Test
    void copiesOfObjectStoresAreAlwaysSentAndLedgersWait() throws Exception {
        present.add(1L);
        get(outbox.add(new Drop(TOPIC, 5, new NamedLedgers(new long[] {1}, new long[] {}, List.of(
                new NamedLedgers.Copy(1, FIRST, new Driver("aws-s3", Map.of()))), new long[] {}, new long[] {}))));
        Forwarder forwarder = forwarder(0, 300);
        forwarder.poll();
        assertEquals(List.of("t/n/persistent/topic OFFLOAD_LEDGER 1"), sent);
        assertEquals(1, watched.nodes(FOLDER).size());
        Thread.sleep(350);
        forwarder.poll();
        assertEquals(List.of("t/n/persistent/topic OFFLOAD_LEDGER 1", "t/n/persistent/topic LEDGER 1"), sent);
        assertEquals(List.of(), watched.nodes(FOLDER));
    }

    @Test
    void whatIsNotConfirmedStays() throws Exception {
        drop(1);
        present.add(1L);
        confirming = false;
        forwarder(0, 0).poll();
        assertEquals(1, sent.size());
        assertEquals(1, watched.nodes(FOLDER).size());
        assertTrue(outbox.bytes() > 0);
        confirming = true;
        forwarder(0, 0).poll();
        assertEquals(List.of(), watched.nodes(FOLDER));
    }

    @Test
    void aSendThatFailsHoldsUpNoNodeThatNeedsNone() throws Exception {
        drop(1);
        drop(2);
        present.add(2L);
        confirming = false;
        forwarder(0, 0).poll();
        assertEquals(List.of(FOLDER + "/0/1"), watched.nodes(FOLDER));
    }

    @Test
    void theFolderOfAFormerStartIsTakenOverAtOnce() throws Exception {
        String former = Outbox.ROOT + "/" + BROKER + "-former";
        get(new Outbox(watched.store, former, 1 << 20, 500)
                .add(new Drop(TOPIC, 5, NamedLedgers.ofCursor(7, new long[] {}))));
        // Its session has not ended yet.
        live(watched.plain, BROKER + "-former");
        present.add(7L);
        forwarder(0, 0).poll();
        assertEquals(List.of("t/n/persistent/topic LEDGER 7"), sent);
        assertEquals(List.of(), watched.nodes(former));
        assertEquals(Optional.empty(), get(watched.plain.get("/bookwarden/broker-marks/locks/" + BROKER + "-former")));
    }

    /** The broker that is gone may have deleted it a moment before, and its answer may not be seen yet. */
    @Test
    void aFreshNodeOfAFormerStartWaitsToo() throws Exception {
        String former = Outbox.ROOT + "/" + BROKER + "-former";
        get(new Outbox(watched.store, former, 1 << 20, 500)
                .add(new Drop(TOPIC, 5, NamedLedgers.ofCursor(7, new long[] {}))));
        present.add(7L);
        Forwarder forwarder = forwarder(300, 0);
        forwarder.poll();
        assertEquals(List.of(), sent);
        Thread.sleep(350);
        forwarder.poll();
        assertEquals(1, sent.size());
    }

    @Test
    void theFolderOfABrokerThatIsGoneIsTakenOverLaterAndByOneOnly() throws Exception {
        String other = "b2:8080-x";
        get(new Outbox(watched.store, Outbox.ROOT + "/" + other, 1 << 20, 500)
                .add(new Drop(TOPIC, 5, NamedLedgers.ofCursor(7, new long[] {}))));
        live(watched.plain, other);
        present.add(7L);
        Forwarder forwarder = forwarder(0, 0);
        forwarder.poll();
        Thread.sleep(250);
        forwarder.poll();
        assertEquals(List.of(), sent);
        get(watched.plain.delete(Forwarder.BROKERS + "/" + other, Optional.empty()));
        String lock = "/bookwarden/broker-marks/locks/" + other;
        // A store in memory takes the nodes of each session for its own.
        GetResult locked = new GetResult(new byte[] {}, new Stat(lock, 0, 0, 0, true, false));
        watched.instead = call -> call.equals("get " + lock)
                ? CompletableFuture.completedFuture(Optional.of(locked)) : null;
        forwarder.poll();
        Thread.sleep(250);
        forwarder.poll();
        assertEquals(List.of(), sent);
        watched.instead = call -> null;
        forwarder.poll();
        assertEquals(List.of("t/n/persistent/topic LEDGER 7"), sent);
        assertEquals(List.of(), watched.nodes(Outbox.ROOT + "/" + other));
    }

    @Test
    void aBrokerWhoseNodeComesBackKeepsItsFolder() throws Exception {
        String other = "b2:8080-x";
        get(new Outbox(watched.store, Outbox.ROOT + "/" + other, 1 << 20, 500)
                .add(new Drop(TOPIC, 5, NamedLedgers.ofCursor(7, new long[] {}))));
        present.add(7L);
        Forwarder forwarder = forwarder(0, 0);
        forwarder.poll();
        live(watched.plain, other);
        forwarder.poll();
        get(watched.plain.delete(Forwarder.BROKERS + "/" + other, Optional.empty()));
        Thread.sleep(250);
        // Gone from now on, not from the first time.
        forwarder.poll();
        assertEquals(List.of(), sent);
    }

    @Test
    void aNodeThatCannotBeReadIsKeptAndHoldsUpNoOther() throws Exception {
        watched.put(FOLDER + "/0/999", "{\"format\":9}");
        drop(1);
        present.add(1L);
        Forwarder forwarder = forwarder(0, 0);
        forwarder.poll();
        assertEquals(1, sent.size());
        assertEquals(List.of(FOLDER + "/0/999"), watched.nodes(FOLDER));
        forwarder.poll();
        assertEquals(List.of(FOLDER + "/0/999"), watched.nodes(FOLDER));
    }

    @Test
    void anErrorOfTheStoreEndsThisPollOnly() throws Exception {
        drop(1);
        present.add(1L);
        watched.instead = call -> call.startsWith("get " + FOLDER)
                ? CompletableFuture.failedFuture(new MetadataStoreException("connection lost")) : null;
        Forwarder forwarder = forwarder(0, 0);
        forwarder.poll();
        assertEquals(List.of(), sent);
        watched.instead = call -> null;
        forwarder.poll();
        assertEquals(1, sent.size());
    }

    @Test
    void eachFilledBlockGoesWhenItIsEmpty() throws Exception {
        for (int number = 0; number < Outbox.BLOCK + 1; number++) {
            drop(number);
        }
        // ZooKeeper has nodes for folders, a store in memory has not.
        put(FOLDER + "/0");
        put(FOLDER + "/1");
        Forwarder forwarder = forwarder(0, 60_000);
        forwarder.poll();
        forwarder.poll();
        assertEquals(List.of(), watched.nodes(FOLDER));
        assertEquals(0, outbox.bytes());
        assertEquals(List.of("1"), get(watched.plain.getChildrenFromStore(FOLDER)));
        drop(5);
        assertEquals(List.of(FOLDER + "/1/1001"), watched.nodes(FOLDER));
    }

    @Test
    void aNodeThatIsStillToBePutIsCounted() throws Exception {
        watched.instead = call -> call.startsWith("put " + FOLDER)
                ? CompletableFuture.failedFuture(new MetadataStoreException("connection lost")) : null;
        drop(1);
        long bytes = outbox.bytes();
        forwarder(0, 0).poll();
        assertEquals(bytes, outbox.bytes());
        assertTrue(bytes > 0);
    }

    /** Its ledgers are not asked for, its marks are not sent: the trash has it before the outbox loses it. */
    @Test
    void whatIsKeptGoesIntoTheTrashAndTheRestIsSent() throws Exception {
        kept(7);
        drop(1);
        kept(8);
        present.add(1L);
        watched.calls.clear();
        Forwarder forwarder = forwarder(0, 0);
        forwarder.poll();
        assertEquals(List.of("t/n/persistent/topic LEDGER 1"), sent);
        assertEquals(List.of(), watched.nodes(FOLDER));
        assertEquals("{\"format\":2,\"drops\":[{\"managedLedger\":\"t/n/persistent/topic\",\"time\":5,\"created\":3,"
                + "\"data\":[7],\"entries\":[\"AAE=\"]},{\"managedLedger\":\"t/n/persistent/topic\",\"time\":5,"
                + "\"created\":3,\"data\":[8],\"entries\":[\"AAE=\"]}],\"drivers\":[]}",
                new String(watched.value(Trash.ROOT + "/own/0/0"), java.nio.charset.StandardCharsets.UTF_8));
        List<String> writes = watched.calls.stream().filter(each -> !each.startsWith("get")).toList();
        assertTrue(writes.indexOf("put " + Trash.ROOT + "/own/0/0") < writes.indexOf("delete " + FOLDER + "/0/0"));
    }

    @Test
    void whatTheTrashDoesNotTakeStaysInTheOutboxAndHoldsUpNoOther() throws Exception {
        kept(7);
        drop(1);
        present.add(1L);
        watched.instead = call -> call.startsWith("put " + Trash.ROOT)
                ? CompletableFuture.failedFuture(new MetadataStoreException("no")) : null;
        forwarder(0, 0).poll();
        assertEquals(1, sent.size());
        assertEquals(List.of(FOLDER + "/0/0"), watched.nodes(FOLDER));
        watched.instead = call -> null;
        forwarder(0, 0).poll();
        assertEquals(List.of(), watched.nodes(FOLDER));
        assertEquals(1, sent.size());
    }

    private void kept(long id) throws Exception {
        get(outbox.add(new Drop(TOPIC, 5, NamedLedgers.ofTopic(new long[] {id}, new long[] {}, List.of()),
                Former.ofEntries(3, Map.of(id, new byte[] {0, 1})))));
    }

    private Forwarder forwarder(long checkAfterMillis, long sendAfterMillis) {
        return forwarder(settings(checkAfterMillis, sendAfterMillis), path -> true);
    }

    private Forwarder forwarder(MarkSettings settings, Predicate<NodePath> brokerDeletes) {
        return new Forwarder(settings, watched.store, outbox, brokerDeletes, id -> unknown.contains(
                id) ? CompletableFuture.failedFuture(new IllegalStateException("unknown"))
                : CompletableFuture.completedFuture(present.contains(id)), this::send,
                new Trash(watched.store, "own", 500));
    }

    private static MarkSettings settings(long checkAfterMillis, long sendAfterMillis) {
        return settings(null, checkAfterMillis, sendAfterMillis);
    }

    private static MarkSettings settings(MarkSettings.Limits twoPhase, long checkAfterMillis, long sendAfterMillis) {
        return new MarkSettings(BROKER, twoPhase, checkAfterMillis, sendAfterMillis, 200, 50, 1 << 20, 1 << 20, 500);
    }

    private boolean send(List<Mark> marks) {
        marks.forEach(each -> sent.add(each.key() + " " + each.ledgerType() + " " + each.ledger()));
        return confirming;
    }

    private void drop(long... ids) throws Exception {
        get(outbox.add(new Drop(TOPIC, 5, NamedLedgers.ofTopic(ids, new long[] {}, List.of()))));
    }

    private void put(String path) throws Exception {
        get(watched.plain.put(path, new byte[] {}, Optional.empty()));
    }

    private static void live(MetadataStoreExtended session, String folder) throws Exception {
        get(session.put(Forwarder.BROKERS + "/" + folder, new byte[] {}, Optional.of(-1L),
                EnumSet.of(CreateOption.Ephemeral)));
    }
}
