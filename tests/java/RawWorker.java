import java.util.Map;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.DeadLetterPolicy;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionType;

/**
 * A worker that knows no schema: it takes pending deletions as bytes and sends them to a retry topic. Then it reads one
 * of our own as PIP-186's class, with its enums, and prints "read" or what Avro says. Run with the jars of Pulsar:
 * service URL, topic, retry topic, number of messages, topic of ours, subscription.
 */
public class RawWorker {

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
            sendAgain(client, args[1], args[2], Integer.parseInt(args[3]), args[5]);
            System.out.println(readOurs(client, args[4]));
        }
    }

    private static void sendAgain(
            PulsarClient client, String topic, String retryTopic, int count, String subscription) throws Exception {
        DeadLetterPolicy policy = DeadLetterPolicy.builder()
                .maxRedeliverCount(10).retryLetterTopic(retryTopic).deadLetterTopic(retryTopic + "-dead").build();
        try (Consumer<byte[]> consumer = client.newConsumer().topic(topic).subscriptionName(subscription)
                .subscriptionType(SubscriptionType.Shared)
                .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest)
                .enableRetry(true).deadLetterPolicy(policy).subscribe()) {
            for (int index = 0; index < count; index++) {
                consumer.reconsumeLater(consumer.receive(60, TimeUnit.SECONDS), 600, TimeUnit.SECONDS);
            }
        }
    }

    private static String readOurs(PulsarClient client, String topic) throws Exception {
        try (Consumer<PendingDeleteLedgerInfo> consumer = client.newConsumer(Schema.AVRO(PendingDeleteLedgerInfo.class))
                .topic(topic).subscriptionName("java-reader")
                .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest).subscribe()) {
            Message<PendingDeleteLedgerInfo> message = consumer.receive(60, TimeUnit.SECONDS);
            return "read " + message.getValue().ledgerId;
        } catch (Exception failure) {
            Throwable cause = failure;
            while (cause.getCause() != null) {
                cause = cause.getCause();
            }
            return cause.getClass().getSimpleName() + ": " + cause.getMessage();
        }
    }
}
