import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.util.Arrays;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.PulsarClientException;
import org.apache.pulsar.client.api.transaction.Transaction;
import org.apache.pulsar.client.api.transaction.TransactionCoordinatorClientException.InvalidTxnStatusException;

/**
 * Transactions until a line comes: SERVICE_URL NAMESPACE. A round uses one of a few topics, and unsubscribes at its end.
 * Each transaction sends, and acknowledges what was committed before; each fifth one is aborted. Any error ends it, but
 * that a message is in another transaction: brokers deliver what is acknowledged again when an aborted one is not over;
 * that a connection was lost on the way, as on a machine that is too busy for keep-alives; and that a transaction was
 * too old in the end, since the client hung: what its threads do is printed then, and another client goes on.
 */
public class LivingTransactions {
    private static final int TOPICS = 3;
    private static final int TRANSACTIONS = 20;
    private static final int MESSAGES = 3;
    private static final int ABORTED = 5;
    private static final byte[] PAYLOAD = new byte[2000];
    private static int conflicts;
    private static int disconnects;
    private static int hung;

    public static void main(String[] arguments) throws Exception {
        BufferedReader orders = new BufferedReader(new InputStreamReader(System.in));
        int rounds = 0;
        PulsarClient client = connected(arguments[0]);
        System.out.println("answer ready");
        while (!orders.ready()) {
            try {
                round(client, "persistent://" + arguments[1] + "/paid-" + rounds % TOPICS);
            } catch (ExecutionException e) {
                if (!(e.getCause() instanceof InvalidTxnStatusException)) {
                    throw e;
                }
                hung++;
                Thread.getAllStackTraces().forEach((thread, stack) -> System.err.println(thread + " "
                        + Arrays.toString(stack)));
                client.closeAsync();
                client = connected(arguments[0]);
            }
            rounds++;
        }
        System.out.printf("answer %d transactions, %d conflicts, %d connections lost, %d clients that hung%n",
                rounds * TRANSACTIONS, conflicts, disconnects, hung);
        // A client that hung does not end.
        System.exit(0);
    }

    private static PulsarClient connected(String serviceUrl) throws PulsarClientException {
        return PulsarClient.builder().serviceUrl(serviceUrl).enableTransaction(true)
                .operationTimeout(2, TimeUnit.MINUTES).build();
    }

    /** What it uses is closed at its end alone: where the client hangs it would not be. */
    private static void round(PulsarClient client, String topic) throws Exception {
        Consumer<byte[]> consumer = client.newConsumer().topic(topic).subscriptionName("s").subscribe();
        Producer<byte[]> producer = client.newProducer().topic(topic).sendTimeout(0, TimeUnit.SECONDS).create();
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
        consumer.close();
        producer.close();
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
