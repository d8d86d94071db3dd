import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintWriter;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.MessageIdAdv;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.ProducerBuilder;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.PulsarClientException;
import org.apache.pulsar.client.api.Reader;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionType;
import org.apache.pulsar.client.api.TypedMessageBuilder;
import org.apache.pulsar.client.api.transaction.Transaction;

/**
 * Producers, consumers and readers that go on while their topics move: FOLDER. Orders are lines of the standard input,
 * each answered with a line that begins with "answer"; options are words with an equals sign.
 *
 * client NAME URL [transactions]; produce NAME TOPIC client= [rate= batch= keys= delay= transactions=];
 * consume NAME TOPIC SUBSCRIPTION client= [type= from= pause= queue= restart= owed=]; read NAME TOPIC client=;
 * count NAME: messages that it sent and had confirmed, or received, -1 before it is connected;
 * hold NAME: a producer sends nothing until it is told to go; go NAME;
 * hurry: no pauses any more; steady on|off: no restarts; quiet: producers end once all is answered; close NAME.
 *
 * A message is PRODUCER:NUMBER. A receipt is a line "ledger message" of FOLDER/NAME.sent, what was received one of
 * FOLDER/NAME.received, written before it is acknowledged, and what went wrong one of FOLDER/NAME.failed.
 * With owed= FOLDER/NAME.owed has the number of the first message that this producer sent once NAME was subscribed.
 */
public class Traffic {
    private static final Map<String, PulsarClient> CLIENTS = new HashMap<>();
    private static final Map<String, Worker> WORKERS = new ConcurrentHashMap<>();
    private static volatile boolean hurry;
    private static volatile boolean steady;
    private static Path folder;

    public static void main(String[] arguments) throws Exception {
        folder = Path.of(arguments[0]);
        BufferedReader orders = new BufferedReader(new InputStreamReader(System.in));
        answer("ready");
        for (String line = orders.readLine(); line != null; line = orders.readLine()) {
            answer(obey(List.of(line.split(" "))));
        }
        // A client that hangs must not keep the process.
        Runtime.getRuntime().halt(0);
    }

    private static void answer(String text) {
        System.out.println("answer " + text);
        System.out.flush();
    }

    private static String obey(List<String> words) throws Exception {
        switch (words.get(0)) {
            case "client" -> CLIENTS.put(words.get(1), connect(words));
            case "produce" -> begin(new Sender(words));
            case "consume" -> begin(new Receiver(words));
            case "read" -> begin(new Looker(words));
            case "count" -> {
                return Long.toString(WORKERS.get(words.get(1)).count.get());
            }
            case "hold" -> WORKERS.get(words.get(1)).held = true;
            case "go" -> WORKERS.get(words.get(1)).held = false;
            case "hurry" -> hurry = true;
            case "steady" -> steady = words.get(1).equals("on");
            case "quiet" -> end(WORKERS.values().stream().filter(one -> one instanceof Sender).toList());
            case "close" -> end(List.of(WORKERS.get(words.get(1))));
            default -> throw new IllegalArgumentException(words.get(0));
        }
        return "done";
    }

    private static PulsarClient connect(List<String> words) throws Exception {
        // Brokers take snapshots for transactions as soon as a client could begin one.
        return PulsarClient.builder().serviceUrl(words.get(2)).enableTransaction(words.contains("transactions"))
                .statsInterval(0, TimeUnit.SECONDS).build();
    }

    private static void begin(Worker worker) {
        WORKERS.put(worker.getName(), worker);
        worker.start();
    }

    private static void end(List<Worker> workers) throws Exception {
        workers.forEach(one -> one.ended = true);
        for (Worker worker : workers) {
            worker.join(60_000);
        }
    }

    /** A client of one topic, in a thread of its own; one that cannot connect tries again, as an application does. */
    abstract static class Worker extends Thread {
        final AtomicLong count = new AtomicLong(-1);
        final String topic;
        final List<String> words;
        final Map<String, String> options = new HashMap<>();
        final PulsarClient client;
        private final PrintWriter log;
        private final PrintWriter failures;
        volatile boolean ended;
        volatile boolean held;

        Worker(List<String> words, String kind) throws Exception {
            super(words.get(1));
            setDaemon(true);
            this.words = words;
            topic = words.get(2);
            words.stream().filter(one -> one.contains("=")).map(one -> one.split("=", 2))
                    .forEach(one -> options.put(one[0], one[1]));
            client = CLIENTS.get(options.get("client"));
            log = new PrintWriter(Files.newBufferedWriter(folder.resolve(getName() + kind)), true);
            failures = new PrintWriter(Files.newBufferedWriter(folder.resolve(getName() + ".failed")), true);
        }

        abstract void work() throws Exception;

        long number(String name, long otherwise) {
            return Long.parseLong(options.getOrDefault(name, Long.toString(otherwise)));
        }

        void connected() {
            count.compareAndSet(-1, 0);
        }

        void note(MessageId id, String text) {
            log.println(((MessageIdAdv) id).getLedgerId() + " " + text);
            count.incrementAndGet();
        }

        void failed(Throwable error) {
            failures.println(error.toString().lines().findFirst().orElse(""));
        }

        @Override
        public void run() {
            while (!ended) {
                try {
                    work();
                } catch (Exception error) {
                    failed(error);
                    pause(500);
                }
            }
        }

        static void pause(long milliseconds) {
            try {
                Thread.sleep(milliseconds);
            } catch (InterruptedException interrupted) {
                throw new IllegalStateException(interrupted);
            }
        }
    }

    static class Sender extends Worker {
        /** Of the message that is sent next. */
        volatile long next;
        /** A producer that met its topic terminated, and not marked yet, never sends again. */
        private volatile boolean dead;

        Sender(List<String> words) throws Exception {
            super(words, ".sent");
        }

        @Override
        void work() throws Exception {
            long period = 1_000_000_000L / number("rate", 20);
            ProducerBuilder<byte[]> builder = client.newProducer().topic(topic).producerName(getName())
                    .sendTimeout(0, TimeUnit.SECONDS).maxPendingMessages(100_000)
                    .enableBatching(options.containsKey("batch"))
                    .batchingMaxPublishDelay(50, TimeUnit.MILLISECONDS);
            try (Producer<byte[]> producer = builder.create()) {
                connected();
                dead = false;
                for (long due = System.nanoTime(); !ended && !dead; due = Math.max(due + period, System.nanoTime() - period)) {
                    pause(Math.max(0, (due - System.nanoTime()) / 1_000_000));
                    if (!held) {
                        send(producer, getName() + ":" + next++);
                    }
                }
                producer.flush();
            }
        }

        private void send(Producer<byte[]> producer, String text) throws Exception {
            if (options.containsKey("transactions")) {
                sendInTransaction(producer, text);
                return;
            }
            TypedMessageBuilder<byte[]> message = producer.newMessage().value(text.getBytes());
            if (options.containsKey("keys")) {
                message.key("key-" + next % number("keys", 1));
            }
            if (options.containsKey("delay")) {
                message.deliverAfter(number("delay", 0), TimeUnit.MILLISECONDS);
            }
            message.sendAsync().whenComplete((id, error) -> {
                if (error == null) {
                    note(id, text);
                } else {
                    dead |= PulsarClientException.unwrap(error) instanceof PulsarClientException.TopicTerminatedException;
                    failed(error);
                }
            });
        }

        private void sendInTransaction(Producer<byte[]> producer, String text) throws Exception {
            Transaction transaction =
                    client.newTransaction().withTransactionTimeout(1, TimeUnit.MINUTES).build().get();
            MessageId id = producer.newMessage(transaction).value(text.getBytes()).send();
            transaction.commit().get();
            note(id, text);
        }
    }

    static class Receiver extends Worker {
        Receiver(List<String> words) throws Exception {
            super(words, ".received");
        }

        @Override
        void work() throws Exception {
            SubscriptionInitialPosition from =
                    SubscriptionInitialPosition.valueOf(options.getOrDefault("from", "Latest"));
            try (Consumer<byte[]> consumer = client.newConsumer().topic(topic).subscriptionName(words.get(3))
                    .subscriptionType(SubscriptionType.valueOf(options.getOrDefault("type", "Exclusive")))
                    .subscriptionInitialPosition(from).consumerName(getName())
                    .receiverQueueSize((int) number("queue", 1000)).subscribe()) {
                noteOwed();
                connected();
                // As an application that is started again and again, with the URL that it always had.
                long end = System.nanoTime() + number("restart", Integer.MAX_VALUE) * 1_000_000;
                while (!ended && (steady || System.nanoTime() < end)) {
                    Message<byte[]> message = consumer.receive(200, TimeUnit.MILLISECONDS);
                    if (message != null) {
                        note(message.getMessageId(), new String(message.getValue()));
                        consumer.acknowledge(message);
                        pause(hurry ? 0 : number("pause", 0));
                    }
                }
            }
        }

        /** Only for the first time: its subscription is there from then on. */
        private void noteOwed() throws Exception {
            if (count.get() < 0 && options.containsKey("owed")) {
                long next = ((Sender) WORKERS.get(options.get("owed"))).next;
                Files.writeString(folder.resolve(getName() + ".owed"), Long.toString(next));
            }
        }
    }

    static class Looker extends Worker {
        Looker(List<String> words) throws Exception {
            super(words, ".received");
        }

        @Override
        void work() throws Exception {
            try (Reader<byte[]> reader = client.newReader().topic(topic).startMessageId(MessageId.earliest).create()) {
                connected();
                while (!ended) {
                    Message<byte[]> message = reader.readNext(200, TimeUnit.MILLISECONDS);
                    if (message != null) {
                        note(message.getMessageId(), new String(message.getValue()));
                    }
                }
            }
        }
    }
}
