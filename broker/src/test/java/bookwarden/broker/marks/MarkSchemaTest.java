package bookwarden.broker.marks;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.File;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.HexFormat;
import java.util.Map;
import java.util.TreeMap;
import java.util.UUID;
import org.apache.pulsar.common.schema.SchemaType;
import org.junit.jupiter.api.Test;

/** Marks are what Python would send: tests/unit/wire/test_broker_marks.py has the same samples. */
class MarkSchemaTest {
    private static final ObjectMapper JSON = new ObjectMapper();

    private static JsonNode samples() throws IOException {
        return JSON.readTree(new File(System.getProperty("marks.samples")));
    }

    @Test
    void payloadKeyAndPartitionArePythons() throws Exception {
        JsonNode samples = samples();
        MarkSchema schema = new MarkSchema(samples.get("schema").textValue());
        for (JsonNode each : samples.get("marks")) {
            Mark mark = mark(each);
            String payload = HexFormat.of().formatHex(schema.encode(mark, samples.get("reason").textValue()));
            assertEquals(each.get("payload").textValue(), payload, each.toString());
            assertEquals(each.get("key").textValue(), mark.key());
            assertEquals(each.get("partition").intValue(), mark.partition(samples.get("partitions").intValue()));
        }
    }

    private static Mark mark(JsonNode fields) {
        String component = fields.get("component").textValue();
        Kind kind = Arrays.stream(Kind.values()).filter(each -> each.component.equals(component)).findFirst()
                .orElseThrow();
        NamedLedgers.Copy copy = null;
        if (!fields.get("copy").isNull()) {
            Map<String, String> metadata = new TreeMap<>();
            fields.get("copy").get("metadata").fields().forEachRemaining(
                    each -> metadata.put(each.getKey(), each.getValue().textValue()));
            copy = new NamedLedgers.Copy(fields.get("ledger").longValue(),
                    UUID.fromString(fields.get("copy").get("uuid").textValue()),
                    new Driver(fields.get("copy").get("driver").textValue(), metadata));
        }
        return new Mark(new NodePath(fields.get("managedLedger").textValue(), fields.get("cursor").textValue()), kind,
                fields.get("ledger").longValue(), copy, fields.get("markedAt").longValue());
    }

    @Test
    void theSchemaIsRegisteredAsItIs() throws Exception {
        String text = samples().get("schema").textValue();
        assertEquals(SchemaType.AVRO, new MarkSchema(text).getSchemaInfo().getType());
        assertEquals(text, new String(new MarkSchema(text).getSchemaInfo().getSchema(), StandardCharsets.UTF_8));
    }

    @Test
    void aLaterSchemaWithOneMoreFieldWorks() throws Exception {
        JsonNode samples = samples();
        String later = samples.get("schema").textValue().replaceFirst("\\]}$",
                ",{\"name\":\"more\",\"type\":\"long\",\"default\":3}]}");
        String payload = HexFormat.of().formatHex(new MarkSchema(later).encode(mark(samples.get("marks").get(0)),
                samples.get("reason").textValue()));
        assertEquals(samples.get("marks").get(0).get("payload").textValue() + "06", payload);
    }

    @Test
    void whatInitWroteIsRead() throws Exception {
        String node = JSON.createObjectNode().put("format", 1).put("topic", "persistent://pulsar/system/__x")
                .put("partitions", 2).put("schema", samples().get("schema").textValue()).put("subscription", "s")
                .toString();
        DeletionTopic topic = DeletionTopic.parse(node.getBytes(StandardCharsets.UTF_8));
        assertEquals("[persistent://pulsar/system/__x-partition-0, persistent://pulsar/system/__x-partition-1]",
                topic.names().toString());
        String single = node.replace("\"partitions\":2", "\"partitions\":0");
        assertEquals("[persistent://pulsar/system/__x]",
                DeletionTopic.parse(single.getBytes(StandardCharsets.UTF_8)).names().toString());
        for (String broken : new String[] {"", "{}", node.replace("\"format\":1", "\"format\":2"),
            node.replace("bookwarden.deletion", "").replace("offloadContext", "x"), node.replace("topic", "tropic")}) {
            assertThrows(IOException.class, () -> DeletionTopic.parse(broken.getBytes(StandardCharsets.UTF_8)));
        }
    }
}
