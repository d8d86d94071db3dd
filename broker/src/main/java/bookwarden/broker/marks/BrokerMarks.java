package bookwarden.broker.marks;

import bookwarden.broker.Answers;
import bookwarden.broker.EphemeralNode;
import bookwarden.broker.Removals;
import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.UUID;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.function.LongFunction;
import org.apache.bookkeeper.meta.LedgerManager;
import org.apache.bookkeeper.mledger.ManagedLedger;
import org.apache.pulsar.metadata.api.extended.MetadataStoreExtended;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** All that a broker has for its marks: the outbox, what forwards it, and the node that says so. */
final class BrokerMarks {
    private static final Logger LOG = LoggerFactory.getLogger(BrokerMarks.class);
    private static final ObjectMapper JSON = new ObjectMapper();
    /** The counts in the node of this broker are so old at most. */
    private static final long COUNTS_MILLIS = 30_000;
    /** From one look whether marks are on to the next. */
    private static final long LOOK_MILLIS = 3_000;
    /** Ledgers that are held, some 70 bytes each. */
    private static final int HELD = 400_000;
    /** A broker asks for the removal right after the write; its tries go on for three minutes. */
    private static final long HELD_MILLIS = 15 * 60_000;

    private final MarkSettings settings;
    private final MetadataStoreExtended store;
    private final Outbox outbox;
    private final MarksEnabled enabled;
    private final HeldLedgers held;
    private final TrashLease trash;
    /** Null in mode mark. */
    private final LeftToSweep left;
    /** Whose own ledgers are never left to the sweep: each mark would make more of them. */
    private volatile DeletionTopic topic;
    /** Asks BookKeeper, once there is a client of it. */
    private volatile LongFunction<CompletableFuture<Boolean>> exists = id -> CompletableFuture.completedFuture(true);
    /** Null until it wraps a store. */
    private volatile MarkingStore marking;
    /** What BookKeeper's clients of this process ask and tell. */
    final Removals.Rule removals = new Removals.Rule() {
        @Override
        public CompletableFuture<Boolean> isLeft(long ledger, LedgerManager ledgers) {
            return left == null ? CompletableFuture.completedFuture(false) : left.isLeft(ledger, ledgers);
        }

        @Override
        public void removed(long ledger) {
            MarkingStore now = marking;
            if (now != null) {
                now.removed(ledger);
            }
        }
    };
    private final EphemeralNode live;
    private final long started = System.currentTimeMillis();
    /** One forwards, and may wait for the deletion topic; the others look whether marks are on, and at the sweep. */
    private final ScheduledExecutorService threads = Executors.newScheduledThreadPool(3, task -> {
        Thread made = new Thread(task, "bookwarden-marks");
        made.setDaemon(true);
        return made;
    });
    private Forwarder forwarder;
    private MarkSender sender;
    private volatile byte[] counts;
    private long counted;

    BrokerMarks(MarkSettings settings, MetadataStoreExtended store) {
        this.settings = settings;
        this.store = store;
        String folder = settings.broker() + "-" + UUID.randomUUID().toString().substring(0, 8);
        outbox = new Outbox(store, Outbox.ROOT + "/" + folder, settings.maxBytes(), settings.limitMillis());
        enabled = new MarksEnabled(store, settings.limitMillis());
        held = new HeldLedgers(HELD, HELD_MILLIS, () -> TimeUnit.NANOSECONDS.toMillis(System.nanoTime()));
        left = settings.twoPhase() == null ? null : new LeftToSweep(settings, store, enabled::get, held);
        trash = new TrashLease(store, settings.limitMillis(),
                path -> !deletesNow(path), System::currentTimeMillis);
        Removals.ask(removals);
        live = new EphemeralNode(store, Forwarder.BROKERS + "/" + folder, settings.limitMillis());
    }

    /** Return the store that managed ledgers get. */
    MetadataStoreExtended wrap(MetadataStoreExtended wrapped) throws NoSuchMethodException, InterruptedException {
        marking = new MarkingStore(wrapped, new NodeValues(), outbox, held, this::brokerDeletes,
                trash, id -> exists.apply(id), enabled::get, settings.rememberedBytes(), settings.limitMillis());
        enabled.read();
        if (left != null) {
            readTopic();
            trash.read();
            left.start(marking);
        }
        announce();
        try {
            Answers.within(settings.limitMillis(), store.put(outbox.folder(), new byte[] {}, Optional.of(-1L))).get();
        } catch (ExecutionException e) {
            LOG.error("{} cannot be made, so that writes will go on unmarked: {}", outbox.folder(),
                    Answers.cause(e).toString());
        }
        return marking.proxy();
    }

    /**
     * Have the trash keep where the cursors of an open managed ledger are that is about to be deleted, which moves them
     * to its end first. The answer never fails.
     */
    CompletableFuture<Void> deletes(ManagedLedger ledger) {
        MarkingStore now = marking;
        if (now == null) {
            return CompletableFuture.completedFuture(null);
        }
        List<CompletableFuture<?>> kept = new ArrayList<>();
        try {
            ledger.getCursors().forEach(each -> kept.add(now.keepPosition(NodePath.of(ledger.getName(), each.getName()),
                    each.getMarkDeletedPosition().getLedgerId(), each.getMarkDeletedPosition().getEntryId())));
        } catch (Throwable e) {
            kept.add(CompletableFuture.failedFuture(e));
        }
        return CompletableFuture.allOf(kept.toArray(CompletableFuture<?>[]::new)).exceptionally(error -> {
            LOG.error("the subscriptions of {} may come back from the trash at its end", ledger.getName(), error);
            return null;
        });
    }

    /** Return whether the broker deletes by itself what a node drops, as it does with all in mode mark. */
    private boolean brokerDeletes(NodePath path) {
        DeletionTopic now = topic;
        return left == null || now != null && now.owns(path);
    }

    /** Return whether the broker deletes by itself now what a node drops, as it does with all beyond a limit. */
    private boolean deletesNow(NodePath path) {
        return brokerDeletes(path) || !left.exceeded().isEmpty();
    }

    /** Read which the deletion topics are; a node that is not there, or cannot be read, changes nothing. */
    private void readTopic() throws InterruptedException {
        try {
            topic = DeletionTopic.find(store, settings.limitMillis()).orElse(topic);
        } catch (IOException e) {
            LOG.debug("the deletion topics are the former ones: {}", e.toString());
        }
    }

    /** Return whether the mode asks BookKeeper's clients to leave ledgers to the sweep, and none of them does. */
    boolean isNotObeyed() {
        return left != null && !Removals.isAsked(removals);
    }

    String folder() {
        return outbox.folder();
    }

    /** Begin to forward. */
    void start(LongFunction<CompletableFuture<Boolean>> asked, MarkSender markSender) {
        exists = asked;
        sender = markSender;
        forwarder = new Forwarder(settings, store, outbox, this::deletesNow, asked, sender::send,
                new Trash(store, outbox.folder().substring(Outbox.ROOT.length() + 1), settings.limitMillis()));
        schedule(forwarder::poll, settings.pollMillis());
        schedule(this::look, Math.min(LOOK_MILLIS, settings.pollMillis()));
        if (left != null) {
            schedule(this::readTopic, settings.pollMillis());
            schedule(() -> lookAtSweep(asked), settings.pollMillis());
        }
        LOG.info("ledgers that leave the metadata are marked, in {}; {}", outbox.folder(), left == null
                ? "the broker deletes them" : "the sweep alone deletes them");
    }

    private void lookAtSweep(LongFunction<CompletableFuture<Boolean>> asked) throws InterruptedException {
        if (left.look(ledger -> !Answers.within(settings.limitMillis(), asked.apply(ledger))
                .exceptionally(error -> true).join())) {
            counts = null;
        }
        left.save();
    }

    /** What is done from time to time; an error is logged, and does not end it. */
    private interface Task {
        void run() throws InterruptedException;
    }

    private void schedule(Task task, long millis) {
        threads.scheduleWithFixedDelay(() -> {
            try {
                task.run();
            } catch (InterruptedException e) {
                Thread.currentThread().interrupt();
            } catch (Throwable e) {
                LOG.error("tried again in {} ms", millis, e);
            }
        }, 0, millis, TimeUnit.MILLISECONDS);
    }

    private void look() throws InterruptedException {
        if (enabled.read()) {
            counts = null;
        }
        if (left != null) {
            trash.read();
        }
        if (!enabled.get()) {
            // What is dropped now is in no outbox.
            held.clear();
        }
        announce();
    }

    /** Say in a node of this broker that it marks. */
    private void announce() throws InterruptedException {
        try {
            if (counts == null || System.nanoTime() - counted > TimeUnit.MILLISECONDS.toNanos(COUNTS_MILLIS)) {
                counts = value();
                counted = System.nanoTime();
            }
            if (!live.write(counts)) {
                LOG.info("the node of this broker is of its former session, and is written when that has ended");
            }
        } catch (ExecutionException | TimeoutException | JsonProcessingException e) {
            LOG.warn("cannot say that this broker marks: {}", Answers.cause(e).toString());
        }
    }

    private byte[] value() throws JsonProcessingException {
        ObjectNode fields = JSON.createObjectNode();
        fields.put("format", 1).put("broker", settings.broker()).put("mode", settings.mode());
        fields.put("enabled", enabled.get());
        fields.put("host", EphemeralNode.host()).put("pid", ProcessHandle.current().pid());
        fields.put("jar", EphemeralNode.jar()).put("started", started).put("time", System.currentTimeMillis());
        fields.put("outboxNodes", forwarder == null ? 0 : forwarder.nodes());
        fields.put("outboxBytes", outbox.bytes());
        fields.put("oldestSeconds", forwarder == null ? 0 : forwarder.oldestMillis() / 1000);
        fields.put("unmarkedWrites", outbox.unmarked());
        if (left != null) {
            fields.putObject("leftToSweep").put("ledgers", left.progress().ledgers())
                    .put("bytes", left.progress().bytes()).put("oldestSeconds", left.progress().oldestMillis() / 1000)
                    .put("maxSeconds", settings.twoPhase().maxAgeMillis() / 1000)
                    .put("maxBytes", settings.twoPhase().maxBytes()).put("exceeded", left.exceeded());
        }
        ObjectNode stored = fields.putObject("stored");
        for (Kind each : Kind.values()) {
            stored.put(each.component, (long) MarkMetrics.STORED.labels(each.component).get());
        }
        stored.put(MarkMetrics.COPY, (long) MarkMetrics.STORED.labels(MarkMetrics.COPY).get());
        fields.put("gone", (long) MarkMetrics.GONE.get());
        ObjectNode sent = fields.putObject("sent");
        ObjectNode failed = fields.putObject("failed");
        for (String type : MarkMetrics.LEDGER_TYPES) {
            sent.put(type, (long) MarkMetrics.SENT.labels(type, MarkMetrics.DELETION).get());
            failed.put(type, (long) MarkMetrics.FAILED.labels(type).get());
        }
        return JSON.writeValueAsBytes(fields);
    }

    /** Stop to forward; what is in the outbox is forwarded after the next start. */
    void close() {
        threads.shutdownNow();
        Removals.end(removals);
        if (sender != null) {
            sender.close();
        }
        live.remove();
    }
}
