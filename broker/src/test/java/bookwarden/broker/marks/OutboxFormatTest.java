package bookwarden.broker.marks;

import static bookwarden.broker.marks.NamedLedgersTest.text;
import static java.nio.charset.StandardCharsets.UTF_8;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.fasterxml.jackson.databind.JsonNode;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.TreeSet;
import java.util.UUID;
import java.util.stream.IntStream;
import java.util.stream.LongStream;
import org.junit.jupiter.api.Test;

/** Nodes of the outbox: packed, and read back. */
class OutboxFormatTest {
    private static final int LIMIT = 64 * 1024;
    private static final long MADE = 1_600_000_000_000L;
    private static final Driver S3 = new Driver("aws-s3", Map.of("bucket", "b", "region", "eu"));

    @Test
    void dropsShareANode() throws Exception {
        Drop topic = drop("t", null, new NamedLedgers(new long[] {5, 7, 1000}, new long[] {}, List.of(
                new NamedLedgers.Copy(5, new UUID(1, -2), S3), new NamedLedgers.Copy(7, new UUID(3, 4), S3)),
                new long[] {}, new long[] {}));
        Drop cursor = drop("t", "a%2Fb", NamedLedgers.ofCursor(9, new long[] {30, 31}));
        List<OutboxFormat.Encoded> nodes = OutboxFormat.encode(List.of(topic, cursor), LIMIT);
        assertEquals(1, nodes.size());
        assertEquals(List.of(0, 1), nodes.get(0).drops());
        assertEquals("{\"format\":1,\"drops\":[{\"managedLedger\":\"x/y/persistent/t\",\"time\":1700000000000,"
                + "\"data\":[5,2,993],\"copies\":[[5,\"00000000-0000-0001-ffff-fffffffffffe\",0],"
                + "[7,\"00000000-0000-0003-0000-000000000004\",0]]},"
                + "{\"managedLedger\":\"x/y/persistent/t\",\"cursor\":\"a%2Fb\",\"time\":1700000000000,"
                + "\"cursors\":[9],\"buckets\":[30,1]}],"
                + "\"drivers\":[{\"name\":\"aws-s3\",\"metadata\":{\"bucket\":\"b\",\"region\":\"eu\"}}]}",
                new String(nodes.get(0).value(), UTF_8).replace("\"region\":\"eu\",\"bucket\":\"b\"",
                        "\"bucket\":\"b\",\"region\":\"eu\""));
        List<Drop> read = OutboxFormat.decode(nodes.get(0).value());
        assertEquals(List.of(topic.path(), cursor.path()), read.stream().map(Drop::path).toList());
        assertEquals(1_700_000_000_000L, read.get(0).time());
        assertEquals(text(topic.ledgers()), text(read.get(0).ledgers()));
        assertEquals(text(cursor.ledgers()), text(read.get(1).ledgers()));
    }

    @Test
    void theIdsOfEachDropBeginAnew() throws Exception {
        List<Drop> drops = List.of(drop("t", null, NamedLedgers.ofTopic(new long[] {500}, new long[] {}, List.of())),
                drop("u", null, NamedLedgers.ofTopic(new long[] {3, 700}, new long[] {}, List.of())));
        List<Drop> read = OutboxFormat.decode(OutboxFormat.encode(drops, LIMIT).get(0).value());
        assertEquals("data 500", text(read.get(0).ledgers()));
        assertEquals("data 3 data 700", text(read.get(1).ledgers()));
    }

    @Test
    void dropsOfTheSameNodeAreOneUnlessTheirIdsDoNotGrow() throws Exception {
        List<Drop> drops = List.of(single("t", 5, 100), single("u", 6, 101), single("t", 7, 102), single("t", 6, 103),
                single("t", 6, 104), single("t", 9, 105));
        List<OutboxFormat.Encoded> nodes = OutboxFormat.encode(drops, LIMIT);
        assertEquals(List.of(0, 1, 2, 3, 4, 5), nodes.get(0).drops());
        assertEquals(List.of("t 102 data 5 data 7", "u 101 data 6", "t 103 data 6", "t 105 data 6 data 9"),
                OutboxFormat.decode(nodes.get(0).value()).stream().map(each ->
                        each.path().managedLedger().replace("x/y/persistent/", "") + " " + each.time() + " "
                                + text(each.ledgers())).toList());
    }

    @Test
    void manyDropsOfOneLedgerTakeFewNodes() throws Exception {
        List<Drop> drops = LongStream.range(1, 20_000).mapToObj(id -> single("t", id, 100)).toList();
        List<OutboxFormat.Encoded> nodes = OutboxFormat.encode(drops, LIMIT);
        assertEquals(1, nodes.size());
        assertEquals(19_999, nodes.get(0).drops().size());
    }

    private static Drop single(String topic, long id, long time) {
        return new Drop(drop(topic, null, NamedLedgers.NONE).path(), time,
                NamedLedgers.ofTopic(new long[] {id}, new long[] {}, List.of()));
    }

    @Test
    void aLargeDropTakesAsManyNodesAsItNeedsAndLosesNothing() throws Exception {
        long[] ids = LongStream.range(0, 100_000).map(id -> id * 12_345 + 1).toArray();
        List<NamedLedgers.Copy> copies = new ArrayList<>();
        for (int number = 0; number < 3000; number++) {
            copies.add(new NamedLedgers.Copy(ids[number], new UUID(number, 1),
                    number % 1000 == 0 ? new Driver("d" + number, Map.of("bucket", "b".repeat(9000))) : S3));
        }
        Drop large = drop("l".repeat(3000), null, NamedLedgers.ofTopic(ids, new long[] {}, copies));
        Drop small = drop("s", "sub", NamedLedgers.ofCursor(4, new long[] {}));
        List<OutboxFormat.Encoded> nodes = OutboxFormat.encode(List.of(small, large, small), LIMIT);
        TreeSet<Long> found = new TreeSet<>();
        TreeSet<UUID> uuids = new TreeSet<>();
        int cursors = 0;
        for (OutboxFormat.Encoded each : nodes) {
            assertTrue(each.value().length <= LIMIT, each.value().length + " bytes");
            for (Drop drop : OutboxFormat.decode(each.value())) {
                LongStream.of(drop.ledgers().data()).forEach(found::add);
                drop.ledgers().copies().forEach(copy -> uuids.add(copy.uuid()));
                cursors += drop.ledgers().cursors().length;
            }
        }
        assertEquals(100_000, found.size());
        assertTrue(found.containsAll(LongStream.of(ids).boxed().toList()));
        assertEquals(3000, uuids.size());
        assertEquals(2, cursors);
        assertTrue(nodes.size() < 20, nodes.size() + " nodes");
        assertEquals(List.of(0, 1), nodes.get(0).drops());
        assertEquals(2, nodes.get(nodes.size() - 1).drops().get(1));
    }

    @Test
    void anotherFormatIsRefusedAndNewFieldsAreIgnored() throws Exception {
        assertThrows(IOException.class, () -> OutboxFormat.decode("{\"format\":2,\"drops\":[]}".getBytes(UTF_8)));
        assertThrows(IOException.class, () -> OutboxFormat.decode("{\"format\":1,\"drops\":[{}]}".getBytes(UTF_8)));
        assertThrows(IOException.class, () -> OutboxFormat.decode("".getBytes(UTF_8)));
        assertThrows(IOException.class, () -> OutboxFormat.decode("no JSON".getBytes(UTF_8)));
        List<Drop> read = OutboxFormat.decode(("{\"format\":1,\"x\":1,\"drops\":[{\"managedLedger\":\"m\",\"time\":3,"
                + "\"former\":\"AA==\",\"data\":[8]}]}").getBytes(UTF_8));
        assertEquals("data 8", text(read.get(0).ledgers()));
    }

    /** tests/unit/wire/test_trash.py reads the same text. */
    @Test
    void whatIsKeptHasNodesOfItsOwnWithFormerValues() throws Exception {
        NamedLedgers none = NamedLedgers.NONE;
        List<Drop> drops = List.of(
                kept(0, null, NamedLedgers.ofTopic(new long[] {5, 7, 1000}, new long[] {}, List.of()), Former.ofEntries(
                        MADE, Map.of(5L, new byte[] {8, 5}, 7L, new byte[] {8, 7}, 1000L, new byte[] {8, -24, 7}))),
                drop("t", null, NamedLedgers.ofTopic(new long[] {3}, new long[] {}, List.of())),
                kept(1, "a%2Fb", NamedLedgers.ofCursor(9, new long[] {30, 31}),
                        Former.ofNode(new Former.Node(new byte[] {0, 1, 2}, 3, MADE + 1, 1_650_000_000_000L))),
                kept(2, null, none, Former.ofCompacted(MADE, 40)),
                kept(3, null, none, Former.ofSchema("x/y/t",
                        new Former.Node(new byte[] {0}, 0, MADE + 2, MADE + 2), 50)),
                kept(4, "b", none, Former.ofMoved(new Former.Node(new byte[] {1}, 4, MADE, MADE), 5, -1)));
        List<OutboxFormat.Encoded> nodes = OutboxFormat.encode(drops, LIMIT);
        assertEquals(List.of(List.of(1), List.of(0, 2, 3, 4, 5)),
                nodes.stream().map(OutboxFormat.Encoded::drops).toList());
        String text = new String(nodes.get(1).value(), UTF_8);
        assertEquals("{\"format\":2,\"drops\":["
                + "{\"managedLedger\":\"x/y/persistent/t\",\"time\":1700000000000,\"created\":1600000000000,"
                + "\"data\":[5,2,993],\"entries\":[\"CAU=\",\"CAc=\",\"COgH\"]},"
                + "{\"managedLedger\":\"x/y/persistent/t\",\"cursor\":\"a%2Fb\",\"time\":1700000000001,"
                + "\"created\":1600000000001,\"cursors\":[9],\"buckets\":[30,1],"
                + "\"node\":{\"value\":\"AAEC\",\"version\":3,\"created\":1600000000001,\"modified\":1650000000000}},"
                + "{\"managedLedger\":\"x/y/persistent/t\",\"time\":1700000000002,\"created\":1600000000000,"
                + "\"compacted\":[40]},"
                + "{\"managedLedger\":\"x/y/persistent/t\",\"time\":1700000000003,\"created\":1600000000002,"
                + "\"schemas\":[50],\"schema\":{\"id\":\"x/y/t\",\"value\":\"AA==\",\"version\":0,"
                + "\"created\":1600000000002,\"modified\":1600000000002}},"
                + "{\"managedLedger\":\"x/y/persistent/t\",\"cursor\":\"b\",\"time\":1700000000004,"
                + "\"created\":1600000000000,\"node\":{\"value\":\"AQ==\",\"version\":4,"
                + "\"created\":1600000000000,\"modified\":1600000000000},\"position\":[5,-1]}],\"drivers\":[]}", text);
        assertEquals(5, OutboxFormat.kept(nodes.get(1).value()).size());
        assertNull(OutboxFormat.kept(nodes.get(0).value()));
        assertThrows(IOException.class, () -> OutboxFormat.decode(nodes.get(1).value()));
        assertThrows(IOException.class, () -> OutboxFormat.kept("{\"format\":2,\"drops\":[{}]}".getBytes(UTF_8)));
    }

    @Test
    void aLargeNodeIsDividedWithItsLedgers() throws Exception {
        byte[] value = new byte[1_000_000];
        new Random(7).nextBytes(value);
        long[] ids = LongStream.range(0, 30_000).map(id -> id * 12_345 + 1).toArray();
        Map<Long, byte[]> entries = new HashMap<>();
        LongStream.of(ids).forEach(id -> entries.put(id, new byte[25]));
        List<Drop> drops = List.of(
                kept(0, null, NamedLedgers.ofTopic(ids, new long[] {}, List.of()), Former.ofEntries(MADE, entries)),
                kept(1, null, NamedLedgers.ofTopic(ids, new long[] {}, List.of()),
                        Former.ofNode(new Former.Node(value, 7, MADE, MADE))),
                kept(2, "s".repeat(3000), NamedLedgers.ofCursor(9, new long[] {}),
                        Former.ofNode(new Former.Node(new byte[30_000], 7, MADE, MADE))));
        ByteArrayOutputStream read = new ByteArrayOutputStream();
        List<Integer> parts = new ArrayList<>();
        int listed = 0;
        int withEntries = 0;
        for (OutboxFormat.Encoded each : OutboxFormat.encode(drops, LIMIT)) {
            assertTrue(each.value().length <= LIMIT, each.value().length + " bytes");
            for (JsonNode drop : OutboxFormat.kept(each.value())) {
                assertEquals(MADE, drop.get("created").longValue());
                listed += drop.path("data").size();
                withEntries += drop.path("entries").size();
                if (drop.path("node").has("part")) {
                    parts.add(drop.get("node").get("part").get(0).intValue());
                    assertEquals(34, drop.get("node").get("part").get(1).intValue());
                    read.writeBytes(drop.get("node").get("value").binaryValue());
                }
            }
        }
        assertEquals(List.of(60_000, 30_000), List.of(listed, withEntries));
        assertEquals(IntStream.rangeClosed(1, 34).boxed().toList(), parts);
        assertArrayEquals(value, read.toByteArray());
    }

    private static Drop kept(int later, String cursor, NamedLedgers ledgers, Former former) {
        return new Drop(new NodePath("x/y/persistent/t", cursor), 1_700_000_000_000L + later, ledgers, former);
    }

    private static Drop drop(String topic, String cursor, NamedLedgers ledgers) {
        return new Drop(new NodePath("x/y/persistent/" + topic, cursor), 1_700_000_000_000L, ledgers);
    }
}
