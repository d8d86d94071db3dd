package bookwarden.broker.marks;

import bookwarden.broker.Answers;
import bookwarden.broker.marks.HeldLedgers.State;
import com.fasterxml.jackson.core.JsonProcessingException;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.function.BooleanSupplier;
import java.util.function.LongPredicate;
import org.apache.bookkeeper.client.api.LedgerMetadata;
import org.apache.bookkeeper.meta.LedgerManager;
import org.apache.pulsar.common.naming.TopicName;
import org.apache.pulsar.common.util.Codec;
import org.apache.pulsar.metadata.api.GetResult;
import org.apache.pulsar.metadata.api.extended.MetadataStoreExtended;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Mode two-phase: what is in the outbox is not removed by the broker, but by the sweep. A ledger is left to it only if
 * a mark of it is durable; in each doubt it is removed, as it would be without this.
 */
final class LeftToSweep {
    private static final Logger LOG = LoggerFactory.getLogger(LeftToSweep.class);
    private static final String FOLDER = "/bookwarden/broker-marks/left-to-sweep";
    private static final String MANAGED_LEDGER = "managed-ledger";
    private static final String BUCKET = "delayed-index-bucket";
    private static final String SCHEMA = "schema";
    private static final String COMPACTED = "compacted-ledger";

    private final MetadataStoreExtended store;
    private final String path;
    private final long limitMillis;
    private final BooleanSupplier enabled;
    private final HeldLedgers held;
    private final SweepProgress progress;
    private volatile MarkingStore marking;
    private volatile String exceeded = "";
    private volatile boolean writable;
    private byte[] written;
    /** Ledgers that were left and are not counted yet, the newest of them, and whether one is being read. */
    private long uncounted;
    private long newest;
    private boolean counting;

    LeftToSweep(MarkSettings settings, MetadataStoreExtended store, BooleanSupplier enabled, HeldLedgers held) {
        this.store = store;
        this.enabled = enabled;
        this.held = held;
        path = FOLDER + "/" + settings.broker();
        limitMillis = settings.limitMillis();
        progress = new SweepProgress(settings.twoPhase(), System::currentTimeMillis);
    }

    SweepProgress progress() {
        return progress;
    }

    /** Return the limit for which the broker deletes by itself now; empty if it does not. */
    String exceeded() {
        return exceeded;
    }

    /** Begin, with the store that knows what nodes name, and go on from what a former start left. */
    void start(MarkingStore markingStore) throws InterruptedException {
        try {
            Optional<GetResult> found = Answers.within(limitMillis, store.get(path)).get();
            if (found.isPresent()) {
                written = found.get().getValue();
                progress.decode(written);
            }
            writable = true;
            exceeded = progress.exceeded();
        } catch (ExecutionException | IOException e) {
            LOG.error("{} is kept, and what a former start of this broker left to the sweep is not counted: {}", path,
                    Answers.cause(e).toString());
        }
        marking = markingStore;
    }

    /** Return whether the sweep deletes a ledger of which the removal is asked for. */
    CompletableFuture<Boolean> isLeft(long ledger, LedgerManager ledgers) {
        MarkingStore now = marking;
        // What is kept in the trash does not count for the limits, and its record must not lose its ledgers to them.
        State known = held.state(ledger);
        if (now == null || !enabled.getAsBoolean() || !exceeded.isEmpty() && known != State.RECORD) {
            return CompletableFuture.completedFuture(false);
        }
        try {
            return state(now, known, ledger, ledgers).thenApply(state -> {
                if (state == State.RECORD) {
                    MarkMetrics.KEPT.inc();
                } else if (state == State.MARK) {
                    MarkMetrics.LEFT.inc();
                    count(ledger, ledgers);
                }
                return state != State.NOTHING;
            }).exceptionally(error -> {
                LOG.debug("ledger {} is removed by the broker", ledger, error);
                return false;
            });
        } catch (RuntimeException e) {
            LOG.error("ledger {} is removed by the broker", ledger, e);
            return CompletableFuture.completedFuture(false);
        }
    }

    /** Return what is in the outbox for a ledger; its metadata is read only where its owner is not known. */
    private static CompletableFuture<State> state(MarkingStore marking, State known, long ledger,
                                                  LedgerManager ledgers) {
        if (known != State.NOTHING) {
            return CompletableFuture.completedFuture(known);
        }
        NodePath owner = marking.ownerOf(ledger);
        return owner != null
                ? marking.markNamed(owner, owner.cursor() == null ? Kind.DATA : Kind.CURSOR, ledger)
                : ledgers.readLedgerMetadata(ledger)
                        .thenCompose(found -> markNamed(marking, ledger, found.getValue()));
    }

    /** Mark a ledger which its topic, or its cursor, still names: some nodes are changed after their ledgers. */
    private static CompletableFuture<State> markNamed(MarkingStore marking, long ledger, LedgerMetadata metadata) {
        Map<String, byte[]> custom = metadata.getCustomMetadata();
        NodePath node = null;
        Kind kind = Kind.DATA;
        if (MANAGED_LEDGER.equals(text(custom, "component"))) {
            kind = custom.containsKey("pulsar/cursor") ? Kind.CURSOR : Kind.DATA;
            node = NodePath.of(text(custom, "pulsar/managed-ledger"),
                    kind == Kind.CURSOR ? text(custom, "pulsar/cursor") : null);
        } else if (BUCKET.equals(text(custom, "component"))) {
            // These names are not encoded.
            kind = Kind.BUCKET;
            node = NodePath.of(TopicName.get(text(custom, "pulsar/delayedIndexTopic")).getPersistenceNamingEncoding(),
                    Codec.encode(text(custom, "pulsar/delayedIndexCursor")));
        } else if (SCHEMA.equals(text(custom, "component"))) {
            return marking.keepSchema(text(custom, "pulsar/schemaId"), ledger);
        } else if (COMPACTED.equals(text(custom, "component"))) {
            return marking.keepCompacted(NodePath.of(
                    TopicName.get(text(custom, "pulsar/compactedTopic")).getPersistenceNamingEncoding(), null), ledger);
        }
        return node == null ? CompletableFuture.completedFuture(State.NOTHING) : marking.markNamed(node, kind, ledger);
    }

    private static String text(Map<String, byte[]> custom, String key) {
        return new String(custom.getOrDefault(key, new byte[] {}), StandardCharsets.UTF_8);
    }

    private void count(long ledger, LedgerManager ledgers) {
        synchronized (this) {
            uncounted++;
            newest = ledger;
            if (counting) {
                return;
            }
            counting = true;
        }
        countNewest(ledgers);
    }

    /** One is read at a time, and stands for all that were left meanwhile: there may be very many. */
    private void countNewest(LedgerManager ledgers) {
        long ledger;
        long count;
        synchronized (this) {
            counting = uncounted > 0;
            if (!counting) {
                return;
            }
            ledger = newest;
            count = uncounted;
            uncounted = 0;
        }
        Answers.within(limitMillis, ledgers.readLedgerMetadata(ledger)).whenComplete((found, error) -> {
            if (error == null) {
                LedgerMetadata metadata = found.getValue();
                // The length of one that is open is not known.
                progress.add(ledger, count,
                        metadata.isClosed() ? metadata.getLength() * metadata.getWriteQuorumSize() : 0);
                countNewest(ledgers);
                return;
            }
            LOG.debug("ledger {} is not counted", ledger, error);
            synchronized (this) {
                // The others are counted with the next one.
                uncounted += count - 1;
                counting = false;
            }
        });
    }

    /**
     * Look how far the sweep is; return whether the broker began, or ended, to delete by itself.
     *
     * @param gone asks whether BookKeeper has a ledger no more
     */
    boolean look(LongPredicate gone) {
        progress.look(gone);
        MarkMetrics.LEFT_LEDGERS.set(progress.ledgers());
        MarkMetrics.LEFT_BYTES.set(progress.bytes());
        MarkMetrics.LEFT_OLDEST.set(progress.oldestMillis() / 1000.0);
        String before = exceeded;
        exceeded = progress.exceeded();
        for (String limit : new String[] {"age", "bytes"}) {
            MarkMetrics.EXCEEDED.labels(limit).set(limit.equals(exceeded) ? 1 : 0);
        }
        if (before.equals(exceeded)) {
            return false;
        }
        if (exceeded.isEmpty()) {
            LOG.warn("the sweep is within the limits again, and ledgers are left to it");
        } else {
            LOG.error("the sweep is behind by more than the limit of {}: the oldest ledger left to it is {} s old, all "
                    + "have {} bytes. This broker deletes ledgers by itself until the sweep has caught up", exceeded,
                    progress.oldestMillis() / 1000, progress.bytes());
        }
        return true;
    }

    /** Write what is left, for the next start of this broker. */
    void save() throws InterruptedException {
        if (!writable) {
            return;
        }
        try {
            byte[] value = progress.encode();
            if (!Arrays.equals(value, written)) {
                Answers.within(limitMillis, store.put(path, value, Optional.empty())).get();
                written = value;
            }
        } catch (ExecutionException | JsonProcessingException e) {
            LOG.warn("{} cannot be written, so that a restart would not count what is left to the sweep: {}", path,
                    Answers.cause(e).toString());
        }
    }
}
