package bookwarden.broker.marks;

import bookwarden.broker.Answers;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.NavigableMap;
import java.util.Optional;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.pulsar.metadata.api.MetadataStoreException;
import org.apache.pulsar.metadata.api.extended.MetadataStoreExtended;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * The nodes in which drops are durable before the write that drops them. Each start of a broker has a folder of its
 * own, so that names are unique. In it are blocks of nodes: a store answers a list of names as one message.
 *
 * <p>One round of puts is under way at a time. What comes meanwhile waits for the next one, and shares its nodes.
 */
final class Outbox {
    static final String ROOT = "/bookwarden/outbox";
    /** Less than the limit of a batch of requests, and of a node, in any store. */
    static final int NODE_BYTES = 64 * 1024;
    static final int BLOCK = 1000;
    private static final Logger LOG = LoggerFactory.getLogger(Outbox.class);

    private final MetadataStoreExtended store;
    private final String folder;
    private final long maxBytes;
    private final long limitMillis;
    private final AtomicLong unmarked = new AtomicLong();

    private List<Waiting> waiting = new ArrayList<>();
    private boolean putting;
    private long next;
    private long bytes;
    /** By number: the bytes of each node that is there, or may be. */
    private final NavigableMap<Long, Integer> sizes = new TreeMap<>();
    /** By number: nodes whose put failed, or was not answered in time. */
    private final Map<Long, byte[]> retries = new LinkedHashMap<>();
    private String reported = "";

    private record Waiting(Drop drop, CompletableFuture<Boolean> answer) {
    }

    /**
     * @param folder where the nodes are
     * @param maxBytes beyond these no more are added
     * @param limitMillis a put is waited for so long before the write goes on without it
     */
    Outbox(MetadataStoreExtended store, String folder, long maxBytes, long limitMillis) {
        this.store = store;
        this.folder = folder;
        this.maxBytes = maxBytes;
        this.limitMillis = limitMillis;
    }

    String folder() {
        return folder;
    }

    synchronized long bytes() {
        return bytes;
    }

    /** Return the number of the next node. */
    synchronized long next() {
        return next;
    }

    /** Return the number of writes that went on unmarked. */
    long unmarked() {
        return unmarked.get();
    }

    /**
     * Add a drop. The answer comes when it is durable, or, with false, the write has to go on without that; it never
     * fails.
     */
    CompletableFuture<Boolean> add(Drop drop) {
        CompletableFuture<Boolean> answer = new CompletableFuture<>();
        synchronized (this) {
            waiting.add(new Waiting(drop, answer));
            if (putting) {
                return answer;
            }
            putting = true;
        }
        putWaiting();
        return answer;
    }

    private void putWaiting() {
        List<Waiting> round;
        synchronized (this) {
            round = waiting;
            waiting = new ArrayList<>();
            putting = !round.isEmpty();
        }
        if (round.isEmpty()) {
            return;
        }
        // By drop: why it is not durable.
        String[] reasons = new String[round.size()];
        CompletableFuture<?> done;
        try {
            done = put(round, reasons);
        } catch (Throwable e) {
            Arrays.fill(reasons, "error");
            report(e);
            done = CompletableFuture.completedFuture(null);
        }
        done.whenComplete((x, error) -> {
            try {
                // Ahead of the answers: what they go on with may be the next drop.
                putWaiting();
                for (int index = 0; index < reasons.length; index++) {
                    if (reasons[index] == null) {
                        count(round.get(index).drop.ledgers());
                    } else {
                        countUnmarked(reasons[index]);
                    }
                }
            } finally {
                for (int index = 0; index < reasons.length; index++) {
                    round.get(index).answer.complete(error == null && reasons[index] == null);
                }
            }
        });
    }

    private CompletableFuture<?> put(List<Waiting> round, String[] reasons) throws Exception {
        List<CompletableFuture<?>> puts = new ArrayList<>();
        for (OutboxFormat.Encoded each : OutboxFormat.encode(round.stream().map(Waiting::drop).toList(), NODE_BYTES)) {
            long number = reserve(each.value().length);
            if (number < 0) {
                each.drops().forEach(index -> reasons[index] = "full");
                report(new IllegalStateException("the outbox is full, at " + maxBytes + " bytes"));
                continue;
            }
            String path = path(number);
            puts.add(Answers.within(limitMillis, putNode(path, each.value())).handle((x, error) -> {
                if (error != null) {
                    each.drops().forEach(index -> reasons[index] = "store");
                    report(error);
                    synchronized (this) {
                        retries.put(number, each.value());
                    }
                }
                return null;
            }));
        }
        return CompletableFuture.allOf(puts.toArray(CompletableFuture<?>[]::new));
    }

    /** Return the number of the next node; negative if there is no room for it. */
    private synchronized long reserve(int size) {
        if (bytes + size > maxBytes) {
            return -1;
        }
        bytes += size;
        sizes.put(next, size);
        return next++;
    }

    private String path(long number) {
        return folder + "/" + number / BLOCK + "/" + number;
    }

    /** Put a node. That it is there already is our own put, repeated by the client after a lost answer. */
    private CompletableFuture<Void> putNode(String path, byte[] value) {
        return store.put(path, value, Optional.of(-1L)).handle((stat, error) -> {
            if (error == null) {
                return CompletableFuture.<Void>completedFuture(null);
            }
            if (!(Answers.cause(error) instanceof MetadataStoreException.BadVersionException)) {
                return CompletableFuture.<Void>failedFuture(Answers.cause(error));
            }
            return store.get(path).thenAccept(found -> {
                if (found.isEmpty() || !Arrays.equals(found.get().getValue(), value)) {
                    throw new IllegalStateException(path + " is there with another value");
                }
            });
        }).thenCompose(answer -> answer);
    }

    /** Try again what could not be put; blocks. */
    void retry() throws InterruptedException {
        Map<Long, byte[]> nodes;
        synchronized (this) {
            nodes = new LinkedHashMap<>(retries);
        }
        for (Map.Entry<Long, byte[]> each : nodes.entrySet()) {
            try {
                Answers.within(limitMillis, putNode(path(each.getKey()), each.getValue())).get();
            } catch (ExecutionException e) {
                report(e);
                if (!(Answers.cause(e) instanceof IllegalStateException)) {
                    return;
                }
                // That is never going to be ours.
            }
            synchronized (this) {
                retries.remove(each.getKey());
            }
        }
    }

    /** Take note of which nodes with numbers below ``limit`` are there: the others were forwarded. */
    synchronized void keepOnly(Set<String> names, long limit) {
        sizes.headMap(limit).keySet().removeIf(
                number -> !names.contains(number.toString()) && !retries.containsKey(number));
        bytes = sizes.values().stream().mapToLong(Integer::longValue).sum();
    }

    /** Count a write that goes on although it is not known what it drops. */
    void countUnmarked(String reason, NodePath path, Throwable error) {
        countUnmarked(reason);
        report(new IllegalStateException(path + ": " + Answers.cause(error), error));
    }

    private void countUnmarked(String reason) {
        unmarked.incrementAndGet();
        MarkMetrics.UNMARKED.labels(reason).inc();
    }

    private static void count(NamedLedgers ledgers) {
        for (Kind kind : Kind.values()) {
            MarkMetrics.STORED.labels(kind.component).inc(kind.ids(ledgers).length);
        }
        MarkMetrics.STORED.labels(MarkMetrics.COPY).inc(ledgers.copies().size());
    }

    /** Log an error once, until there is another one. */
    private void report(Throwable error) {
        String text = Answers.cause(error).toString();
        synchronized (this) {
            if (text.equals(reported)) {
                return;
            }
            reported = text;
        }
        LOG.error("a write went on unmarked, see bookwarden_unmarked_writes_total: what it dropped may stay in "
                + "BookKeeper or an object store until `follow` or a scan finds it: {}", text);
    }
}
