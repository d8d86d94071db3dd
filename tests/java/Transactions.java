import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.transaction.Transaction;

/** Sends a message in one transaction and acknowledges it in another: SERVICE_URL TOPIC SUBSCRIPTION. */
public class Transactions {
    public static void main(String[] arguments) throws Exception {
        String topic = arguments[1];
        try (PulsarClient client =
                        PulsarClient.builder().serviceUrl(arguments[0]).enableTransaction(true).build();
                Consumer<byte[]> consumer =
                        client.newConsumer().topic(topic).subscriptionName(arguments[2]).subscribe();
                Producer<byte[]> producer =
                        client.newProducer().topic(topic).sendTimeout(0, TimeUnit.SECONDS).create()) {
            Transaction sending = begin(client);
            producer.newMessage(sending).value("sent in a transaction".getBytes()).send();
            sending.commit().get();
            Message<byte[]> message = consumer.receive(60, TimeUnit.SECONDS);
            Transaction acknowledging = begin(client);
            consumer.acknowledgeAsync(message.getMessageId(), acknowledging).get();
            acknowledging.commit().get();
        }
    }

    private static Transaction begin(PulsarClient client) throws Exception {
        return client.newTransaction().withTransactionTimeout(2, TimeUnit.MINUTES).build().get();
    }
}
