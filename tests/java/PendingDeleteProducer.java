import java.util.LinkedHashMap;
import java.util.Map;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.Schema;

/**
 * Sends pending deletions as a Java program would: a plain class with PIP-186's fields, by reflection, as Avro to one
 * topic and as JSON to another. Run with the jars of Pulsar: service URL, Avro topic, JSON topic.
 */
public class PendingDeleteProducer {

    public enum LedgerComponent { MANAGED_LEDGER, MANAGED_CURSOR, SCHEMA_STORAGE }

    public enum LedgerType { OFFLOAD_LEDGER, LEDGER }

    public static class OffloadContext {
        public long lsb;
        public long msb;
        public String driverName;
        public Map<String, String> metadata;
    }

    public static class PendingDeleteLedgerInfo {
        public String topicName;
        public LedgerComponent ledgerComponent;
        public String cursorName;
        public Long schemaId;
        public LedgerType ledgerType;
        public Long ledgerId;
        public OffloadContext offloadContext;
    }

    public static void main(String[] args) throws Exception {
        try (PulsarClient client = PulsarClient.builder().serviceUrl(args[0]).build()) {
            send(client, Schema.AVRO(PendingDeleteLedgerInfo.class), args[1]);
            send(client, Schema.JSON(PendingDeleteLedgerInfo.class), args[2]);
        }
    }

    private static void send(PulsarClient client, Schema<PendingDeleteLedgerInfo> schema, String topic)
            throws Exception {
        try (Producer<PendingDeleteLedgerInfo> producer = client.newProducer(schema).topic(topic).create()) {
            producer.send(of(LedgerComponent.MANAGED_LEDGER, LedgerType.LEDGER, 11L));
            PendingDeleteLedgerInfo cursor = of(LedgerComponent.MANAGED_CURSOR, LedgerType.LEDGER, 12L);
            cursor.cursorName = "sub/\u00fc";
            producer.send(cursor);
            PendingDeleteLedgerInfo stored = of(LedgerComponent.SCHEMA_STORAGE, LedgerType.LEDGER, 13L);
            stored.schemaId = 99L;
            producer.send(stored);
            PendingDeleteLedgerInfo offloaded = of(LedgerComponent.MANAGED_LEDGER, LedgerType.OFFLOAD_LEDGER, 14L);
            offloaded.offloadContext = new OffloadContext();
            offloaded.offloadContext.lsb = -2L;
            offloaded.offloadContext.msb = Long.MIN_VALUE;
            offloaded.offloadContext.driverName = "aws-s3";
            offloaded.offloadContext.metadata = new LinkedHashMap<>(Map.of("bucket", "b"));
            producer.send(offloaded);
            producer.send(of(LedgerComponent.MANAGED_LEDGER, LedgerType.LEDGER, null));
        }
    }

    private static PendingDeleteLedgerInfo of(LedgerComponent component, LedgerType type, Long ledgerId) {
        PendingDeleteLedgerInfo info = new PendingDeleteLedgerInfo();
        info.topicName = "persistent://public/default/java-topic";
        info.ledgerComponent = component;
        info.ledgerType = type;
        info.ledgerId = ledgerId;
        return info;
    }
}
