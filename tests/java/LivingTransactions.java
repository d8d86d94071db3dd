import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.PulsarClientException;
import org.apache.pulsar.client.api.transaction.Transaction;

/**
 * Transactions until a line comes: SERVICE_URL NAMESPACE. A round uses one of a few topics, and unsubscribes at its end.
 * Each transaction sends, and acknowledges what was committed before; each fifth one is aborted. Any error ends it, but
 * that a message is in another transaction: brokers deliver what is acknowledged again when an aborted one is not over;
 * and that a connection was lost on the way, as on a machine that is too busy for keep-alives.
 */
public class LivingTransactions {
    private static final int TOPICS = 3;
    private static final int TRANSACTIONS = 20;
    private static final int MESSAGES = 3;
    private static final int ABORTED = 5;
    private static final byte[] PAYLOAD = new byte[2000];
    private static int conflicts;
    private static int disconnects;

    public static void main(String[] arguments) throws Exception {
        BufferedReader orders = new BufferedReader(new InputStreamReader(System.in));
        int rounds = 0;
        try (PulsarClient client = PulsarClient.builder().serviceUrl(arguments[0]).enableTransaction(true)
                .operationTimeout(2, TimeUnit.MINUTES).build()) {
            System.out.println("answer ready");
            while (!orders.ready()) {
                round(client, "persistent://" + arguments[1] + "/paid-" + rounds % TOPICS);
                rounds++;
            }
        }
        System.out.printf("answer %d transactions, %d conflicts, %d connections lost%n", rounds * TRANSACTIONS, conflicts,
                disconnects);
    }

    private static void round(PulsarClient client, String topic) throws Exception {
        try (Consumer<byte[]> consumer = client.newConsumer().topic(topic).subscriptionName("s").subscribe();
                Producer<byte[]> producer =
                        client.newProducer().topic(topic).sendTimeout(0, TimeUnit.SECONDS).create()) {
            for (int number = 1; number <= TRANSACTIONS; number++) {
                Transaction transaction = client.newTransaction()
                        .withTransactionTimeout(5, TimeUnit.MINUTES).build().get();
                for (int message = 0; message < MESSAGES; message++) {
                    producer.newMessage(transaction).value(PAYLOAD).send();
                }
                boolean commits = number % ABORTED != 0;
                Message<byte[]> received = consumer.receive(200, TimeUnit.MILLISECONDS);
                while (received != null) {
                    commits &= acknowledge(consumer, received, transaction);
                    received = consumer.receive(20, TimeUnit.MILLISECONDS);
                }
                if (commits) {
                    transaction.commit().get();
                } else {
                    transaction.abort().get();
                }
            }
            consumer.unsubscribe();
        }
    }

    /** Return whether it is acknowledged; if not the transaction can only be aborted. */
    private static boolean acknowledge(Consumer<byte[]> consumer, Message<byte[]> received, Transaction transaction)
            throws Exception {
        try {
            consumer.acknowledgeAsync(received.getMessageId(), transaction).get();
            return true;
        } catch (ExecutionException e) {
            if (e.getCause() instanceof PulsarClientException.TransactionConflictException) {
                conflicts++;
            } else if (e.getCause() instanceof PulsarClientException.ConnectException
                    || e.getCause() instanceof IOException) {
                disconnects++;
            } else {
                throw e;
            }
            return false;
        }
    }
}
