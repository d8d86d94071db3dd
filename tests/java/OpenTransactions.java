import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.transaction.Transaction;

/**
 * Transactions that are open while something happens to the brokers, on each topic: SERVICE_URL SUBSCRIPTION TOPIC...
 * The first phase commits "first", and leaves open a transaction that sends "second", one that acknowledges "first", and
 * one that sends "never". The second phase ends them: the last is aborted. The third commits "third", then has to receive
 * "second" and "third". Prints "phase N ended" for each, and begins the next with a line of the standard input.
 */
public class OpenTransactions {
    private static final String SUBSCRIPTION_END = "the subscription of %s received %s";

    /** One topic's producer and consumer, and its open transactions. */
    record Topic(String name, Producer<byte[]> producer, Consumer<byte[]> consumer, List<Transaction> open) {
    }

    public static void main(String[] arguments) throws Exception {
        BufferedReader orders = new BufferedReader(new InputStreamReader(System.in));
        try (PulsarClient client = connect(arguments[0])) {
            List<Topic> topics = new ArrayList<>();
            for (String name : List.of(arguments).subList(2, arguments.length)) {
                topics.add(open(client, name, arguments[1]));
            }
            for (Topic topic : topics) {
                send(client, topic, "first").commit().get();
                Message<byte[]> first = topic.consumer().receive(2, TimeUnit.MINUTES);
                topic.open().add(send(client, topic, "second"));
                topic.open().add(acknowledge(client, topic, first));
                topic.open().add(send(client, topic, "never"));
            }
            end(1, orders);
            for (Topic topic : topics) {
                topic.open().get(0).commit().get();
                topic.open().get(1).commit().get();
                topic.open().get(2).abort().get();
            }
            end(2, orders);
        }
        try (PulsarClient client = connect(arguments[0])) {
            for (String name : List.of(arguments).subList(2, arguments.length)) {
                Topic topic = open(client, name, arguments[1]);
                send(client, topic, "third").commit().get();
                for (String expected : List.of("second", "third")) {
                    Message<byte[]> received = topic.consumer().receive(2, TimeUnit.MINUTES);
                    String found = received == null ? "nothing" : new String(received.getValue());
                    if (!found.equals(expected)) {
                        throw new AssertionError(String.format(SUBSCRIPTION_END, name, found));
                    }
                    acknowledge(client, topic, received).commit().get();
                }
            }
        }
        System.out.println("phase 3 ended");
    }

    private static PulsarClient connect(String url) throws Exception {
        return PulsarClient.builder().serviceUrl(url).enableTransaction(true)
                .operationTimeout(2, TimeUnit.MINUTES).build();
    }

    private static Topic open(PulsarClient client, String name, String subscription) throws Exception {
        Consumer<byte[]> consumer = client.newConsumer().topic(name).subscriptionName(subscription).subscribe();
        Producer<byte[]> producer = client.newProducer().topic(name).sendTimeout(0, TimeUnit.SECONDS).create();
        return new Topic(name, producer, consumer, new ArrayList<>());
    }

    private static Transaction begin(PulsarClient client) throws Exception {
        return client.newTransaction().withTransactionTimeout(10, TimeUnit.MINUTES).build().get();
    }

    private static Transaction send(PulsarClient client, Topic topic, String value) throws Exception {
        Transaction transaction = begin(client);
        topic.producer().newMessage(transaction).value(value.getBytes()).send();
        return transaction;
    }

    private static Transaction acknowledge(PulsarClient client, Topic topic, Message<byte[]> message) throws Exception {
        Transaction transaction = begin(client);
        topic.consumer().acknowledgeAsync(message.getMessageId(), transaction).get();
        return transaction;
    }

    private static void end(int phase, BufferedReader orders) throws Exception {
        System.out.println("phase " + phase + " ended");
        orders.readLine();
    }
}
