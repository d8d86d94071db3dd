import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.locks.LockSupport;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionType;

/**
 * Consumers that acknowledge each message so long after they received it: URL. Orders are lines of the standard input,
 * each answered with a line that begins with "answer".
 *
 * connect SUBSCRIPTION TOPIC...: a client of its own, whose consumers receive nothing yet; the one before is closed;
 * go FROM TO: they receive, one after the other, and acknowledge after so many microseconds; count: acknowledged.
 */
public class TimedAcks {
    private static final ScheduledExecutorService LATER = Executors.newScheduledThreadPool(4);
    private static final List<Consumer<byte[]>> CONSUMERS = new ArrayList<>();
    private static final AtomicInteger ACKNOWLEDGED = new AtomicInteger();
    private static volatile long from;
    private static volatile long to;
    private static PulsarClient client;

    public static void main(String[] arguments) throws Exception {
        BufferedReader orders = new BufferedReader(new InputStreamReader(System.in));
        answer("ready");
        for (String line = orders.readLine(); line != null; line = orders.readLine()) {
            List<String> words = List.of(line.split(" "));
            switch (words.get(0)) {
                case "connect" -> connect(arguments[0], words.get(1), words.subList(2, words.size()));
                case "go" -> go(Long.parseLong(words.get(1)), Long.parseLong(words.get(2)));
                case "count" -> { }
                default -> throw new IllegalArgumentException(words.get(0));
            }
            answer(Integer.toString(ACKNOWLEDGED.get()));
        }
        // A client that hangs must not keep the process.
        Runtime.getRuntime().halt(0);
    }

    private static void answer(String text) {
        System.out.println("answer " + text);
        System.out.flush();
    }

    private static void connect(String url, String subscription, List<String> topics) throws Exception {
        if (client != null) {
            client.closeAsync();
        }
        CONSUMERS.clear();
        client = PulsarClient.builder().serviceUrl(url).ioThreads(2).statsInterval(0, TimeUnit.SECONDS).build();
        List<CompletableFuture<Consumer<byte[]>>> made = new ArrayList<>();
        for (String topic : topics) {
            made.add(client.newConsumer().topic(topic).subscriptionName(subscription)
                    .subscriptionType(SubscriptionType.Shared)
                    .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest)
                    .acknowledgmentGroupTime(0, TimeUnit.MILLISECONDS).startPaused(true)
                    .messageListener((consumer, message) -> LATER.schedule(() -> {
                        consumer.acknowledgeAsync(message);
                        ACKNOWLEDGED.incrementAndGet();
                    }, from == to ? from : ThreadLocalRandom.current().nextLong(from, to), TimeUnit.MICROSECONDS))
                    .subscribeAsync());
        }
        for (CompletableFuture<Consumer<byte[]>> one : made) {
            CONSUMERS.add(one.get(60, TimeUnit.SECONDS));
        }
    }

    private static void go(long least, long most) {
        from = least;
        to = most;
        for (Consumer<byte[]> consumer : CONSUMERS) {
            consumer.resume();
            // All at once they would keep each other from their times.
            LockSupport.parkNanos(TimeUnit.MILLISECONDS.toNanos(5));
        }
    }
}
