package bookwarden.broker.marks;

import static bookwarden.broker.marks.NodeWriter.FIRST;
import static bookwarden.broker.marks.NodeWriter.SECOND;
import static bookwarden.broker.marks.NodeWriter.TOPIC;
import static bookwarden.broker.marks.NodeWriter.cursor;
import static bookwarden.broker.marks.NodeWriter.ledger;
import static bookwarden.broker.marks.NodeWriter.offloaded;
import static bookwarden.broker.marks.NodeWriter.segmented;
import static bookwarden.broker.marks.NodeWriter.shadow;
import static bookwarden.broker.marks.NodeWriter.topic;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.params.provider.Arguments.arguments;

import java.util.Arrays;
import java.util.Map;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import org.apache.bookkeeper.mledger.MetadataCompressionConfig;
import org.apache.bookkeeper.mledger.impl.MetaStoreImpl;
import org.apache.bookkeeper.mledger.proto.MLDataFormats.ManagedLedgerInfo;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.Arguments;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.MethodSource;

/** What a value names, and what the next value of the same node no longer names. */
class NamedLedgersTest {
    private static final byte[] NOTHING = {};
    private static final String CURSOR = TOPIC + "/sub";

    static Stream<Arguments> writes() {
        return Stream.of(
                arguments("a rollover", TOPIC, topic(1, 2), topic(1, 2, 3), ""),
                arguments("a trim", TOPIC, topic(1, 2, 3), topic(2, 3), "data 1"),
                arguments("a truncate", TOPIC, topic(1, 2, 3), topic(3), "data 1 data 2"),
                arguments("an offload wrote the list in another order", TOPIC, topic(3, 1, 2), topic(2, 3), "data 1"),
                arguments("the topic is deleted", TOPIC, topic(1, 2), NOTHING, "data 1 data 2"),
                arguments("a topic without ledgers", TOPIC, NOTHING, topic(1), ""),
                arguments("a shadow topic's ledgers are its source's", TOPIC, shadow(4), NOTHING, ""),
                arguments("an offload begins", TOPIC, topic(1, 2), topic(offloaded(1, FIRST, false, false), ledger(2)),
                        ""),
                arguments("it is completed", TOPIC, topic(offloaded(1, FIRST, false, false)),
                        topic(offloaded(1, FIRST, true, false)), ""),
                arguments("a second attempt for the same ledger", TOPIC, topic(offloaded(1, FIRST, false, false)),
                        topic(offloaded(1, SECOND, false, false)), "copy 1 " + FIRST + " aws-s3{bucket=b}"),
                arguments("an attempt is given up", TOPIC, topic(offloaded(1, FIRST, false, false)), topic(1),
                        "copy 1 " + FIRST + " aws-s3{bucket=b}"),
                arguments("the copy in BookKeeper goes", TOPIC, topic(offloaded(1, FIRST, true, false)),
                        topic(offloaded(1, FIRST, true, true)), "data 1"),
                arguments("nothing more goes", TOPIC, topic(offloaded(1, FIRST, true, true)),
                        topic(offloaded(1, FIRST, true, true), ledger(2)), ""),
                arguments("an offloaded ledger is trimmed", TOPIC, topic(offloaded(1, FIRST, true, false), ledger(2)),
                        topic(2), "data 1 copy 1 " + FIRST + " aws-s3{bucket=b}"),
                arguments("one that BookKeeper may still have", TOPIC,
                        topic(offloaded(1, FIRST, true, true), ledger(2)), topic(2),
                        "data 1 copy 1 " + FIRST + " aws-s3{bucket=b}"),
                arguments("a segment of a streaming offload", TOPIC, topic(segmented(1, SECOND)), NOTHING,
                        "data 1 copy 1 " + SECOND + " S3{bookwarden.legacySegment=true, bucket=b}"),
                arguments("a cursor is created", CURSOR, NOTHING, cursor(5), ""),
                arguments("its ledger is kept", CURSOR, cursor(5), cursor(5), ""),
                arguments("its ledger rolls over", CURSOR, cursor(5), cursor(6), "cursor 5"),
                arguments("it is closed", CURSOR, cursor(5), cursor(-1), "cursor 5"),
                arguments("it is opened again", CURSOR, cursor(-1), cursor(7), ""),
                arguments("a bucket is merged", CURSOR, cursor(5, 30, 31), cursor(5, 32), "bucket 30 bucket 31"),
                arguments("the subscription is deleted", CURSOR, cursor(5, 31, 30), NOTHING,
                        "cursor 5 bucket 30 bucket 31"),
                arguments("the ledger in a property of __compaction is left out", TOPIC + "/__compaction", cursor(5),
                        NOTHING, "cursor 5"));
    }

    @ParameterizedTest(name = "{0}")
    @MethodSource("writes")
    void whatAWriteDrops(String name, String path, byte[] before, byte[] after, String expected) throws Exception {
        NodePath node = NodePath.of(path);
        NodeValues values = new NodeValues();
        assertEquals(expected, text(values.read(node, before).without(values.read(node, after))));
    }

    @Test
    void aCompressedValueIsRead() throws Exception {
        ManagedLedgerInfo info = ManagedLedgerInfo.parseFrom(topic(offloaded(1, FIRST, true, false), ledger(200)));
        byte[] compressed = new MetaStoreImpl(null, null, new MetadataCompressionConfig("LZ4", 0),
                MetadataCompressionConfig.noCompression).compressLedgerInfo(info);
        assertEquals(0x47, compressed[0]);
        assertEquals("data 1 data 200 copy 1 " + FIRST + " aws-s3{bucket=b}",
                text(new NodeValues().read(NodePath.of(TOPIC), compressed)));
    }

    @Test
    void aValueThatIsNoneIsAnError() throws Exception {
        assertThrows(IllegalArgumentException.class,
                () -> new NodeValues().read(NodePath.of(TOPIC), "{\"no\": \"list\"}".getBytes()));
    }

    @ParameterizedTest
    @CsvSource({"t/n/persistent/topic, t/n/persistent/topic,",
        "t/n/persistent/topic/a%2Fb, t/n/persistent/topic, a%2Fb",
        "t/c/n/persistent/topic, t/c/n/persistent/topic,", "t/c/n/persistent/topic/sub, t/c/n/persistent/topic, sub",
        "t/n/persistent/persistent/sub, t/n/persistent/persistent, sub",
        "pulsar/system/persistent/__transaction_log_0, pulsar/system/persistent/__transaction_log_0,"})
    void pathsThatNameLedgers(String path, String managedLedger, String cursor) {
        assertEquals(new NodePath(managedLedger, cursor), NodePath.of("/managed-ledgers/" + path));
    }

    @ParameterizedTest
    @CsvSource({"/managed-ledgers/t", "/managed-ledgers/t/n", "/managed-ledgers/t/n/persistent",
        "/managed-ledgers/t/n/persistent/topic/sub/more", "/managed-ledgers/t/n/other/topic", "/ledgers/00/0000/L0001",
        "/managed-ledgers-x/t/n/persistent/topic", "/managed-ledgers/t/c/n/persistent"})
    void pathsThatNameNone(String path) {
        assertNull(NodePath.of(path));
    }

    /** Return what is named: kind and id of each, copies with UUID and place. */
    static String text(NamedLedgers ledgers) {
        Stream<String> ids = Arrays.stream(Kind.values()).flatMap(kind -> Arrays.stream(kind.ids(ledgers))
                .mapToObj(id -> kind.name().toLowerCase() + " " + id));
        Stream<String> copies = ledgers.copies().stream().map(
                each -> "copy " + each.ledger() + " " + each.uuid() + " " + each.driver().name()
                        + Map.copyOf(each.driver().metadata()).entrySet().stream().sorted(Map.Entry.comparingByKey())
                                .map(Object::toString).collect(Collectors.joining(", ", "{", "}")));
        return Stream.concat(ids, copies).collect(Collectors.joining(" "));
    }
}
