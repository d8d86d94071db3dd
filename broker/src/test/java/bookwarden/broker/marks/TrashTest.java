package bookwarden.broker.marks;

import static bookwarden.broker.marks.NodeWriter.TOPIC;
import static bookwarden.broker.marks.NodeWriter.cursor;
import static bookwarden.broker.marks.NodeWriter.ledger;
import static bookwarden.broker.marks.NodeWriter.topic;
import static bookwarden.broker.marks.WatchedStore.get;
import static java.nio.charset.StandardCharsets.UTF_8;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import bookwarden.broker.marks.HeldLedgers.State;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashSet;
import java.util.List;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.stream.IntStream;
import org.apache.bookkeeper.mledger.proto.MLDataFormats.ManagedLedgerInfo.LedgerInfo;
import org.apache.pulsar.metadata.api.MetadataStoreException;
import org.apache.pulsar.metadata.api.Stat;
import org.apache.pulsar.metadata.api.extended.MetadataStoreExtended;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;

/** What the trash keeps of what nodes drop, while the lease says so, and the nodes that it is written into. */
class TrashTest {
    private static final String FOLDER = Outbox.ROOT + "/b:8080-1";
    private static final String CURSOR = TOPIC + "/sub";
    private static final ObjectMapper JSON = new ObjectMapper();
    private WatchedStore watched;
    private Outbox outbox;
    private TrashLease lease;
    private MarkingStore marks;
    private MetadataStoreExtended store;
    private final HeldLedgers held = new HeldLedgers(1000, 60_000, System::currentTimeMillis);
    private final Set<Long> gone = new HashSet<>();
    private boolean keeping = true;
    private long now = 1000;

    @BeforeEach
    void start() throws Exception {
        watched = new WatchedStore();
        outbox = new Outbox(watched.store, FOLDER, 1 << 20, 500);
        lease = new TrashLease(watched.store, 500, path -> keeping, () -> now);
        marks = new MarkingStore(watched.store, new NodeValues(), outbox, held, path -> false, lease,
                id -> CompletableFuture.completedFuture(!gone.contains(id)), () -> true, 1 << 20, 500);
        store = marks.proxy();
        lease("t/n", 60, 0);
    }

    @AfterEach
    void stop() throws Exception {
        watched.close();
    }

    private void lease(String namespaces, int deleted, int trimmed) throws Exception {
        watched.put(TrashLease.PATH, "{\"format\":1,\"deferUntil\":2000,\"keep\":[{\"namespaces\":\"" + namespaces
                + "\",\"deletedSeconds\":" + deleted + ",\"trimmedSeconds\":" + trimmed + "}]}");
        lease.read();
    }

    @Test
    void aDeletedNodeIsKeptAsItWasBeforeTheDelete() throws Exception {
        put(TOPIC, topic(1, 2), -1);
        put(TOPIC, topic(1, 2, 3), 0);
        put(CURSOR, cursor(7, 30), -1);
        Stat written = get(watched.plain.get(TOPIC)).orElseThrow().getStat();
        watched.calls.clear();
        get(store.delete(CURSOR, Optional.empty()));
        gone.add(1L);
        get(store.delete(TOPIC, Optional.empty()));
        assertEquals(List.of("get " + CURSOR, "put " + FOLDER + "/0/0", "delete " + CURSOR, "get " + TOPIC,
                "put " + FOLDER + "/0/1", "delete " + TOPIC), watched.calls);
        JsonNode subscription = kept().get(0);
        assertEquals("sub", subscription.get("cursor").textValue());
        assertEquals("[7] [30]", subscription.get("cursors") + " " + subscription.get("buckets"));
        assertArrayEquals(cursor(7, 30), subscription.get("node").get("value").binaryValue());
        JsonNode deleted = kept().get(1);
        assertEquals("[2,1]", deleted.get("data").toString());
        assertFalse(deleted.has("entries"));
        assertArrayEquals(topic(1, 2, 3), deleted.get("node").get("value").binaryValue());
        assertEquals(List.of(1L, written.getCreationTimestamp(), written.getModificationTimestamp()),
                List.of(deleted.get("node").get("version").longValue(), deleted.get("node").get("created").longValue(),
                        deleted.get("node").get("modified").longValue()));
        assertEquals(written.getCreationTimestamp(), deleted.get("created").longValue());
        assertEquals(List.of(State.NOTHING, State.RECORD, State.RECORD, State.RECORD),
                List.of(held.state(1), held.state(2), held.state(7), held.state(30)));
    }

    /** A delete of a topic whose managed ledger is open without it moves cursors to the end, in ledgers made for that. */
    @Test
    void whereACursorIsIsKeptWithItsNodeBeforeADeleteMovesIt() throws Exception {
        put(CURSOR, cursor(7, 30), -1);
        get(marks.keepPosition(NodePath.of(CURSOR), 5, -1));
        get(marks.keepPosition(NodePath.of(TOPIC + "/none"), 5, 2));
        JsonNode before = kept().get(0);
        assertEquals("[5,-1]", before.get("position").toString());
        assertArrayEquals(cursor(7, 30), before.get("node").get("value").binaryValue());
        assertFalse(before.has("cursors"));
        assertEquals(State.NOTHING, held.state(7));
        get(store.delete(CURSOR, Optional.empty()));
        assertFalse(kept().get(1).has("position"));
        assertEquals("[7]", kept().get(1).get("cursors").toString());
        assertEquals(2, kept().size());
    }

    @Test
    void whereACursorIsIsNotKeptWithoutALease() throws Exception {
        put(CURSOR, cursor(7), -1);
        now = 3000;
        get(marks.keepPosition(NodePath.of(CURSOR), 5, 2));
        now = 1000;
        assertEquals(List.of(), kept());
    }

    @Test
    void withADeletedPartitionTheNodeOfItsTopicIsKept() throws Exception {
        String partition = TOPIC + "-partition-12";
        byte[] partitioned = "{\"partitions\":13,\"deleted\":true,\"properties\":{\"a\":\"b\"}}".getBytes(UTF_8);
        watched.put("/admin/partitioned-topics/" + TOPIC.substring("/managed-ledgers/".length()),
                new String(partitioned, UTF_8));
        put(partition, topic(1), -1);
        put(partition + "/sub", cursor(7), -1);
        get(store.delete(partition + "/sub", Optional.empty()));
        get(store.delete(partition, Optional.empty()));
        assertFalse(kept().get(0).has("partitioned"));
        assertArrayEquals(partitioned, kept().get(1).get("partitioned").binaryValue());
        // One that has no such node, or whose store does not answer, is kept as any topic.
        put("/managed-ledgers/t/n/persistent/x-partition-0", topic(2), -1);
        get(store.delete("/managed-ledgers/t/n/persistent/x-partition-0", Optional.empty()));
        put(partition, topic(3), -1);
        watched.instead = call -> call.startsWith("get /admin")
                ? CompletableFuture.failedFuture(new MetadataStoreException("no")) : null;
        get(store.delete(partition, Optional.empty()));
        assertEquals(4, kept().size());
        assertFalse(kept().get(2).has("partitioned") || kept().get(3).has("partitioned"));
    }

    /** The position of an idle subscription is in its node alone. */
    @Test
    void aNodeThatNamesNoLedgerIsKeptToo() throws Exception {
        put(TOPIC, topic(new long[] {}), -1);
        put(CURSOR, cursor(-1), -1);
        get(store.delete(CURSOR, Optional.empty()));
        get(store.delete(TOPIC, Optional.empty()));
        assertArrayEquals(cursor(-1), kept().get(0).get("node").get("value").binaryValue());
        assertEquals(0, kept().get(1).get("node").get("value").binaryValue().length);
    }

    @Test
    void ofAShortenedListTheEntriesAreKeptButThoseOfEmptyLedgers() throws Exception {
        LedgerInfo empty = ledger(2).toBuilder().setEntries(0).setSize(0).build();
        LedgerInfo open = LedgerInfo.newBuilder().setLedgerId(4).build();
        put(TOPIC, topic(ledger(1), empty, ledger(3), open, ledger(5)), -1);
        put(TOPIC, topic(5), 0);
        JsonNode dropped = kept().get(0);
        assertEquals("[1,2,1]", dropped.get("data").toString());
        assertArrayEquals(ledger(1).toByteArray(), dropped.get("entries").get(0).binaryValue());
        assertArrayEquals(ledger(3).toByteArray(), dropped.get("entries").get(1).binaryValue());
        assertArrayEquals(open.toByteArray(), dropped.get("entries").get(2).binaryValue());
        assertEquals(get(watched.plain.get(TOPIC)).orElseThrow().getStat().getCreationTimestamp(),
                dropped.get("created").longValue());
        assertEquals(List.of("t/n/persistent/topic: data 2"), marked());
        assertEquals(List.of(State.RECORD, State.MARK, State.RECORD),
                List.of(held.state(1), held.state(2), held.state(4)));
    }

    @Test
    void whatIsSupersededIsMarked() throws Exception {
        put(CURSOR, cursor(5), -1);
        put(CURSOR, cursor(6), 0);
        // Only the copy in BookKeeper goes; the ledger stays in the list.
        put(TOPIC, topic(NodeWriter.offloaded(1, NodeWriter.FIRST, true, false)), -1);
        put(TOPIC, topic(NodeWriter.offloaded(1, NodeWriter.FIRST, true, true)), 0);
        assertEquals(List.of("t/n/persistent/topic/sub: cursor 5", "t/n/persistent/topic: data 1"), marked());
        assertEquals(List.of(), kept());
    }

    /** The broker deletes these by itself. */
    @Test
    void offloadedCopiesAreMarkedAndNotKept() throws Exception {
        put(TOPIC, topic(NodeWriter.offloaded(1, NodeWriter.FIRST, true, false)), -1);
        get(store.delete(TOPIC, Optional.empty()));
        assertEquals("[1]", kept().get(0).get("data").toString());
        assertFalse(kept().get(0).has("copies"));
        assertEquals(1, marked().size());
        assertTrue(marked().get(0).contains(NodeWriter.FIRST.toString()), marked().get(0));
    }

    @Test
    void whatANodeStillNamesIsKeptWithItsEntry() throws Exception {
        put(TOPIC, topic(1, 2), -1);
        put(CURSOR, cursor(7), -1);
        NodePath path = NodePath.of(TOPIC);
        assertEquals(List.of(State.RECORD, State.NOTHING, State.RECORD), List.of(
                get(marks.markNamed(path, Kind.DATA, 2)), get(marks.markNamed(path, Kind.DATA, 9)),
                get(marks.markNamed(NodePath.of(CURSOR), Kind.CURSOR, 7))));
        assertArrayEquals(ledger(2).toByteArray(), kept().get(0).get("entries").get(0).binaryValue());
        assertTrue(kept().get(0).get("created").longValue() > 0);
        assertEquals("[7]", kept().get(1).get("cursors").toString());
        assertTrue(kept().get(1).get("created").longValue() > 0);
    }

    @Test
    void aSchemasLedgerIsKeptWithItsNodeAndACompactedOneWithItsTopic() throws Exception {
        // SchemaLocator: info and an entry of the index, at ledgers 300 and 5.
        byte[] locator = {10, 13, 8, 1, 18, 5, 8, -84, 2, 16, 0, 26, 2, 1, 1,
            18, 12, 8, 0, 18, 4, 8, 5, 16, 0, 26, 2, 1, 1};
        get(watched.plain.put("/schemas/t/n/topic", locator, Optional.empty()));
        assertEquals(List.of(State.RECORD, State.RECORD, State.NOTHING), List.of(
                get(marks.keepSchema("t/n/topic", 300)), get(marks.keepSchema("t/n/topic", 5)),
                get(marks.keepSchema("t/n/topic", 2))));
        assertEquals(State.NOTHING, get(marks.keepSchema("t/n/other", 5)));
        assertEquals("[300]", kept().get(0).get("schemas").toString());
        assertEquals("t/n/persistent/topic", kept().get(0).get("managedLedger").textValue());
        assertEquals("t/n/topic", kept().get(0).get("schema").get("id").textValue());
        assertArrayEquals(locator, kept().get(0).get("schema").get("value").binaryValue());
        assertEquals(State.NOTHING, get(marks.keepCompacted(NodePath.of(TOPIC), 8)));
        put(TOPIC, topic(1), -1);
        assertEquals(State.RECORD, get(marks.keepCompacted(NodePath.of(TOPIC), 8)));
        assertEquals("[8]", kept().get(2).get("compacted").toString());
        lease("t/n", 0, 60);
        assertEquals(List.of(State.NOTHING, State.NOTHING), List.of(get(marks.keepSchema("t/n/topic", 5)),
                get(marks.keepCompacted(NodePath.of(TOPIC), 8))));
    }

    @Test
    void withoutALeaseThatHoldsEverythingIsMarked() throws Exception {
        List<Runner> none = List.of(() -> lease("t/other*", 60, 60), () -> lease("t/n", 0, 0), () -> keeping = false,
                () -> now = 2000, () -> {
                    watched.put(TrashLease.PATH, "{\"format\":2,\"deferUntil\":9000,\"keep\":[]}");
                    lease.read();
                }, () -> {
                    watched.put(TrashLease.PATH, "no JSON");
                    lease.read();
                }, () -> {
                    get(watched.plain.delete(TrashLease.PATH, Optional.empty()));
                    lease.read();
                });
        for (int index = 0; index < none.size(); index++) {
            keeping = true;
            now = 1000;
            lease("t/n", 60, 60);
            put(TOPIC, topic(1, 2, 3), -1);
            put(CURSOR, cursor(7), -1);
            none.get(index).run();
            put(TOPIC, topic(2, 3), 0);
            get(marks.markNamed(NodePath.of(TOPIC), Kind.DATA, 2));
            get(store.delete(CURSOR, Optional.empty()));
            get(store.delete(TOPIC, Optional.empty()));
            assertEquals(List.of(), kept(), "case " + index);
            assertEquals(4 * (index + 1), marked().size());
            assertEquals(State.MARK, held.state(1));
        }
    }

    /** Trims alone are kept: a deleted node is not. */
    @Test
    void aRuleForTrimsKeepsNoDeletedNode() throws Exception {
        lease("?/*", 0, 60);
        put(TOPIC, topic(1, 2), -1);
        put(TOPIC, topic(2), 0);
        get(store.delete(TOPIC, Optional.empty()));
        assertEquals(1, kept().size());
        assertEquals(List.of("t/n/persistent/topic: data 2"), marked());
    }

    @Test
    void aStoreThatDoesNotAnswerLeavesTheLeaseUntilItsEnd() throws Exception {
        watched.instead = call -> call.equals("get " + TrashLease.PATH)
                ? CompletableFuture.failedFuture(new MetadataStoreException("no")) : null;
        lease.read();
        assertTrue(lease.keepsDeleted(NodePath.of(CURSOR)));
        assertTrue(lease.keepsTrimmed(NodePath.of(TOPIC)));
        assertFalse(lease.keepsTrimmed(NodePath.of(CURSOR)));
        now = 2000;
        assertFalse(lease.keepsDeleted(NodePath.of(CURSOR)));
    }

    @Test
    void whatIsNotDurableIsLeftToTheBroker() throws Exception {
        put(TOPIC, topic(1, 2), -1);
        watched.instead = call -> call.startsWith("put " + FOLDER)
                ? CompletableFuture.failedFuture(new MetadataStoreException("no")) : null;
        assertEquals(State.NOTHING, get(marks.markNamed(NodePath.of(TOPIC), Kind.DATA, 2)));
        put(TOPIC, topic(2), 0);
        get(store.delete(TOPIC, Optional.empty()));
        assertEquals(List.of(State.NOTHING, State.NOTHING), List.of(held.state(1), held.state(2)));
        assertFalse(get(watched.plain.exists(TOPIC)));
    }

    @Test
    void whenTheTimeOfTheNodeCannotBeReadItsLedgersAreMarked() throws Exception {
        Stat unknown = new Stat(TOPIC, 0, 0, 0, false, true);
        watched.instead = call -> {
            if (call.equals("get " + TOPIC)) {
                return CompletableFuture.failedFuture(new MetadataStoreException("no"));
            }
            return call.equals("put " + TOPIC) ? CompletableFuture.completedFuture(unknown) : null;
        };
        put(TOPIC, topic(1, 2), -1);
        put(TOPIC, topic(2), 0);
        assertEquals(List.of("t/n/persistent/topic: data 1"), marked());
        assertEquals(State.MARK, held.state(1));
    }

    @Test
    void dropsShareANodeUntilItIsFullOrWasChanged() throws Exception {
        Trash trash = new Trash(watched.store, "own", 500);
        trash.add(drops(0, 2));
        trash.add(drops(2, 4));
        assertEquals(List.of(0, 1, 2, 3), numbers("/0/0"));
        // As the sweep takes some out.
        get(watched.plain.put(Trash.ROOT + "/own/0/0", "changed".getBytes(UTF_8), Optional.empty()));
        trash.add(drops(4, 5));
        assertEquals(List.of(4), numbers("/0/1"));
        watched.instead = call -> call.startsWith("put")
                ? CompletableFuture.failedFuture(new MetadataStoreException("no")) : null;
        assertThrows(ExecutionException.class, () -> trash.add(drops(5, 6)));
        watched.instead = call -> null;
        trash.add(drops(5, 6));
        assertEquals(List.of(5), numbers("/0/2"));
        trash.add(drops(6, 3000));
        List<Integer> all = new ArrayList<>();
        for (String path : watched.nodes(Trash.ROOT + "/own")) {
            assertTrue(watched.value(path).length <= Outbox.NODE_BYTES);
            if (!path.endsWith("/0/0")) {
                all.addAll(numbers(path.substring(path.indexOf("/own") + 4)));
            }
        }
        Collections.sort(all);
        assertEquals(IntStream.range(4, 3000).boxed().toList(), all);
        assertTrue(watched.nodes(Trash.ROOT + "/own").size() < 10);
    }

    /** A put whose answer was lost is there: the next one does not fail for ever. */
    @Test
    void aNodeThatIsThereAlreadyIsPassedOver() throws Exception {
        watched.put(Trash.ROOT + "/own/0/0", "ours, unanswered");
        Trash trash = new Trash(watched.store, "own", 500);
        assertThrows(ExecutionException.class, () -> trash.add(drops(0, 1)));
        trash.add(drops(0, 1));
        assertEquals(List.of(0), numbers("/0/1"));
    }

    private List<Integer> numbers(String path) throws Exception {
        List<Integer> found = new ArrayList<>();
        OutboxFormat.kept(watched.value(Trash.ROOT + "/own" + path)).forEach(
                each -> found.add(each.get("time").intValue()));
        return found;
    }

    private static List<JsonNode> drops(int from, int to) {
        String topic = "t/n/persistent/" + "x".repeat(60);
        return IntStream.range(from, to).<JsonNode>mapToObj(number -> JSON.createObjectNode()
                .put("managedLedger", topic).put("time", number).put("created", 1)).toList();
    }

    private interface Runner {
        void run() throws Exception;
    }

    private List<JsonNode> kept() throws Exception {
        List<JsonNode> found = new ArrayList<>();
        for (String path : watched.nodes(FOLDER)) {
            List<JsonNode> drops = OutboxFormat.kept(watched.value(path));
            found.addAll(drops == null ? List.of() : drops);
        }
        return found;
    }

    private List<String> marked() throws Exception {
        List<String> found = new ArrayList<>();
        for (String path : watched.nodes(FOLDER)) {
            if (OutboxFormat.kept(watched.value(path)) == null) {
                for (Drop each : OutboxFormat.decode(watched.value(path))) {
                    found.add(each.path() + ": " + NamedLedgersTest.text(each.ledgers()));
                }
            }
        }
        return found;
    }

    private void put(String path, byte[] value, long version) throws Exception {
        get(store.put(path, value, Optional.of(version)));
    }
}
