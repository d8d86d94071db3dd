package bookwarden.broker.marks;

import static java.nio.charset.StandardCharsets.UTF_8;

import bookwarden.broker.Answers;
import bookwarden.broker.EphemeralNode;
import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.JsonNode;
import java.io.IOException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.function.LongFunction;
import java.util.function.Predicate;
import org.apache.pulsar.metadata.api.GetResult;
import org.apache.pulsar.metadata.api.MetadataStoreException;
import org.apache.pulsar.metadata.api.extended.MetadataStoreExtended;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Empties the outbox. Of the ledgers that the broker deletes by itself most are gone within seconds: what BookKeeper
 * has no more is taken out, what it still has after the last of the broker's tries is sent to the deletion topic.
 * Offloaded copies, whose deletion the broker does not try again, are sent before, and what is left to the sweep at
 * once. What is to be kept goes into the trash, and is sent by the sweep when its time has come. A node is deleted when
 * nothing of it is left.
 *
 * <p>Everything can be done twice: a mark that is sent again is found done by the sweep. For one thread.
 */
final class Forwarder {
    /** Folders of what forwards, each with a node per folder of the outbox. */
    static final String BROKERS = "/bookwarden/broker-marks/brokers";
    private static final String LOCKS = "/bookwarden/broker-marks/locks";
    private static final Logger LOG = LoggerFactory.getLogger(Forwarder.class);
    /** Nodes, and ledgers, that are asked for at the same time. */
    private static final int AT_ONCE = 100;
    /** So many are in memory, and those of one node. */
    private static final int MARKS_AT_ONCE = 50_000;
    /** From one try to send to the next. */
    private static final long RESEND_MILLIS = 30_000;

    private final MarkSettings settings;
    private final MetadataStoreExtended store;
    private final Outbox outbox;
    private final Predicate<NodePath> brokerDeletes;
    private final LongFunction<CompletableFuture<Boolean>> exists;
    private final Sender sender;
    private final Trash trash;
    private final String name;
    /** By folder: when it was first found without a live node, by the monotonic clock. */
    private final Map<String, Long> orphaned = new HashMap<>();
    private final Map<String, Node> nodes = new HashMap<>();
    private String error = "";
    private String reported = "";
    private volatile int count;
    private volatile long oldestMillis;

    /** Sends marks; returns whether all were confirmed. Is also called without any, after each poll. */
    interface Sender {
        boolean send(List<Mark> marks) throws InterruptedException;
    }

    /** A node of the outbox, and what of it is left. */
    private static final class Node {
        private final String path;
        private final String name;
        private final long seen = now();
        private long due;
        private long created = System.currentTimeMillis();
        private List<Drop> rest;
        /** Drops that the trash keeps, of a node that has only such; else null. */
        private List<JsonNode> kept;
        private boolean copiesSent;
        private volatile boolean done;

        private Node(String path, String name, long due) {
            this.path = path;
            this.name = name;
            this.due = due;
        }

        /** Take its value; one that cannot be read is kept. */
        private void read(GetResult found) {
            created = found.getStat().getCreationTimestamp();
            try {
                kept = OutboxFormat.kept(found.getValue());
                rest = kept == null ? OutboxFormat.decode(found.getValue()) : List.of();
            } catch (IOException e) {
                LOG.error("{} is kept, and its marks are not sent: {}", path, e.getMessage());
                due = Long.MAX_VALUE;
            }
        }

        /** Return whether it is so old; else it is due when it will be. */
        private boolean isOlderThan(long millis) {
            due = Math.max(due, now() + millis - age());
            return due <= now();
        }

        /** Return its age: by the store's clock, or if that is behind by how long it is known. */
        private long age() {
            return Math.max(System.currentTimeMillis() - created, now() - seen);
        }
    }

    /**
     * @param brokerDeletes whether the broker deletes by itself what a node drops; all else is sent at once
     * @param exists asks whether BookKeeper has a ledger; without an answer it may have it
     * @param trash takes the drops that are kept
     */
    Forwarder(MarkSettings settings, MetadataStoreExtended store, Outbox outbox, Predicate<NodePath> brokerDeletes,
              LongFunction<CompletableFuture<Boolean>> exists, Sender sender, Trash trash) {
        this.settings = settings;
        this.store = store;
        this.outbox = outbox;
        this.brokerDeletes = brokerDeletes;
        this.exists = exists;
        this.sender = sender;
        this.trash = trash;
        this.name = outbox.folder().substring(Outbox.ROOT.length() + 1);
    }

    /** Return the number of nodes that were there at the last poll. */
    int nodes() {
        return count;
    }

    /** Return the age of the oldest of them; 0 if there is none. */
    long oldestMillis() {
        return oldestMillis;
    }

    /** Look once at all that is due; an error is logged, and the next poll tries again. */
    void poll() throws InterruptedException {
        error = "";
        try {
            outbox.retry();
            List<String> folders = new ArrayList<>(List.of(name));
            folders.addAll(abandoned());
            Set<String> listed = new HashSet<>();
            for (String folder : folders) {
                forward(folder, listed);
            }
            nodes.keySet().retainAll(listed);
            count = nodes.size();
            oldestMillis = nodes.values().stream().mapToLong(Node::age).max().orElse(0);
            MarkMetrics.NODES.set(count);
            MarkMetrics.BYTES.set(outbox.bytes());
            MarkMetrics.OLDEST.set(oldestMillis / 1000.0);
            sender.send(List.of());
            report(error);
        } catch (ExecutionException | RuntimeException e) {
            report(Answers.cause(e).toString());
        }
    }

    /** Forward a folder; one of another start of a broker is deleted when it is empty. */
    private void forward(String folder, Set<String> listed) throws ExecutionException, InterruptedException {
        boolean own = folder.equals(name);
        String root = Outbox.ROOT + "/" + folder;
        long next = outbox.next();
        Set<String> left = new HashSet<>();
        List<String> blocks = children(root);
        for (String block : blocks) {
            List<String> names = children(root + "/" + block);
            long due = own && settings.twoPhase() == null ? now() + settings.checkAfterMillis() : 0;
            List<Node> found = names.stream().map(each -> nodes.computeIfAbsent(root + "/" + block + "/" + each,
                    path -> new Node(path, each, due))).toList();
            List<Node> ready = found.stream().filter(each -> each.due <= now()).toList();
            for (int start = 0; start < ready.size(); start += AT_ONCE) {
                forward(ready.subList(start, Math.min(ready.size(), start + AT_ONCE)), own);
            }
            found.stream().filter(each -> !each.done).forEach(each -> {
                listed.add(each.path);
                left.add(each.name);
            });
            if (names.isEmpty() && !(own && block.equals(Long.toString(next / Outbox.BLOCK)))) {
                deleteFolder(root + "/" + block);
            }
        }
        if (own) {
            outbox.keepOnly(left, next);
        } else if (left.isEmpty()) {
            blocks.forEach(each -> deleteFolder(root + "/" + each));
            deleteFolder(root);
            deleteFolder(LOCKS + "/" + folder);
            LOG.info("the outbox {} was taken over, and is empty", folder);
        }
    }

    /** Do what can be done now for some nodes; those of which nothing is left are done, and deleted. */
    private void forward(List<Node> batch, boolean own) throws ExecutionException, InterruptedException {
        read(batch.stream().filter(each -> each.rest == null).toList());
        keep(batch.stream().filter(each -> !each.done && each.kept != null).toList());
        List<Node> ready = batch.stream().filter(each -> !each.done && each.rest != null && each.kept == null
                && each.isOlderThan(each.rest.stream().allMatch(drop -> brokerDeletes.test(drop.path()))
                        ? settings.checkAfterMillis() : 0)).toList();
        removeGone(ready, own);
        List<Node> group = new ArrayList<>();
        long ledgers = 0;
        for (Node node : ready) {
            long more = node.rest.stream().mapToLong(each -> each.ledgers().inBookKeeper().count()).sum();
            if (ledgers + more > MARKS_AT_ONCE) {
                send(group);
                group.clear();
                ledgers = 0;
            }
            group.add(node);
            ledgers += more;
        }
        send(group);
    }

    /** Send the marks of nodes that are due; delete those of which nothing is left. */
    private void send(List<Node> ready) throws ExecutionException, InterruptedException {
        Map<Node, List<Mark>> marks = new LinkedHashMap<>();
        Map<Node, List<Drop>> early = new HashMap<>();
        for (Node node : ready) {
            boolean late = node.age() >= settings.sendAfterMillis();
            List<Mark> of = new ArrayList<>();
            List<Drop> rest = new ArrayList<>();
            for (Drop each : node.rest) {
                boolean waits = !late && brokerDeletes.test(each.path());
                of.addAll(Mark.of(each, !waits, !node.copiesSent));
                if (waits && !each.ledgers().isInObjectStoresOnly()) {
                    rest.add(each);
                }
            }
            marks.put(node, of);
            early.put(node, rest);
        }
        // The last ledgers of a topic are marked again when its node goes: the later mark serves for both.
        Map<Mark, Mark> all = new LinkedHashMap<>();
        marks.values().stream().flatMap(List::stream).forEach(each -> all.put(each.at(0), each));
        boolean sent = all.isEmpty() || sender.send(List.copyOf(all.values()));
        List<CompletableFuture<?>> deletes = new ArrayList<>();
        for (Node node : ready) {
            if (!sent && !marks.get(node).isEmpty()) {
                node.due = now() + RESEND_MILLIS;
                continue;
            }
            node.copiesSent = true;
            node.rest = early.get(node);
            if (node.rest.isEmpty()) {
                deletes.add(delete(node.path).thenRun(() -> node.done = true));
            } else {
                long age = node.age();
                node.due = now() + Math.min(Math.max(age, settings.pollMillis()), settings.sendAfterMillis() - age);
            }
        }
        get(CompletableFuture.allOf(deletes.toArray(CompletableFuture<?>[]::new)));
    }

    /** Have the trash take the drops of nodes, and delete these; where it does not, they wait, and hold up no other. */
    private void keep(List<Node> batch) throws ExecutionException, InterruptedException {
        try {
            trash.add(batch.stream().flatMap(each -> each.kept.stream()).toList());
        } catch (ExecutionException | JsonProcessingException e) {
            error = "the trash: " + Answers.cause(e);
            batch.forEach(each -> each.due = now() + RESEND_MILLIS);
            return;
        }
        get(CompletableFuture.allOf(batch.stream().map(each -> delete(each.path).thenRun(() -> each.done = true))
                .toArray(CompletableFuture<?>[]::new)));
    }

    /** Read nodes; one that is not there any more is done. */
    private void read(List<Node> batch) throws ExecutionException, InterruptedException {
        List<CompletableFuture<Optional<GetResult>>> reads = batch.stream().map(each -> store.get(each.path)).toList();
        for (int index = 0; index < batch.size(); index++) {
            Optional<GetResult> found = get(reads.get(index));
            if (found.isPresent()) {
                batch.get(index).read(found.get());
            } else {
                batch.get(index).done = true;
            }
        }
    }

    /** Take out of nodes what BookKeeper says that it has not; what this broker leaves to the sweep is there. */
    private void removeGone(List<Node> batch, boolean own) throws InterruptedException {
        Set<Long> gone = gone(batch.stream().flatMap(each -> each.rest.stream())
                .filter(each -> !own || brokerDeletes.test(each.path()))
                .flatMapToLong(each -> each.ledgers().inBookKeeper()).distinct().toArray());
        for (Node node : batch) {
            node.rest = node.rest.stream().map(each -> new Drop(each.path(), each.time(),
                    each.ledgers().withoutInBookKeeper(gone::contains))).filter(each -> !each.ledgers().isEmpty()).toList();
        }
        MarkMetrics.GONE.inc(gone.size());
    }

    private Set<Long> gone(long[] ids) throws InterruptedException {
        Set<Long> gone = ConcurrentHashMap.newKeySet();
        for (int start = 0; start < ids.length; start += AT_ONCE) {
            CompletableFuture<?>[] answers = Arrays.stream(ids, start, Math.min(ids.length, start + AT_ONCE))
                    .mapToObj(id -> exists.apply(id).thenAccept(present -> {
                        if (!present) {
                            gone.add(id);
                        }
                    })).toArray(CompletableFuture<?>[]::new);
            try {
                get(CompletableFuture.allOf(answers));
            } catch (ExecutionException e) {
                error = "BookKeeper: " + Answers.cause(e);
            }
        }
        return Set.copyOf(gone);
    }

    /**
     * Return the folders that this broker forwards besides its own: those of its own former starts at once, those of
     * other brokers when their live node has been gone for a time, each by the first that locks it.
     */
    private List<String> abandoned() throws ExecutionException, InterruptedException {
        List<String> found = new ArrayList<>();
        List<String> folders = children(Outbox.ROOT);
        Set<String> live = new HashSet<>(children(BROKERS));
        orphaned.keySet().retainAll(folders);
        orphaned.keySet().removeAll(live);
        for (String folder : folders) {
            if (folder.equals(name)) {
                continue;
            }
            boolean former = folder.startsWith(settings.broker() + "-");
            boolean gone = !live.contains(folder)
                    && now() - orphaned.computeIfAbsent(folder, x -> now()) >= settings.takeOverAfterMillis();
            if ((former || gone) && lock(folder)) {
                found.add(folder);
            }
        }
        return found;
    }

    private boolean lock(String folder) throws InterruptedException {
        try {
            return new EphemeralNode(store, LOCKS + "/" + folder, settings.limitMillis()).write(name.getBytes(UTF_8));
        } catch (ExecutionException | TimeoutException e) {
            LOG.info("the outbox {} is not taken over now: {}", folder, Answers.cause(e).toString());
            return false;
        }
    }

    private List<String> children(String path) throws ExecutionException, InterruptedException {
        return get(store.getChildrenFromStore(path));
    }

    private CompletableFuture<Void> delete(String path) {
        return store.delete(path, Optional.empty()).exceptionally(error -> {
            if (Answers.cause(error) instanceof MetadataStoreException.NotFoundException) {
                return null;
            }
            throw new CompletionException(Answers.cause(error));
        });
    }

    /** Delete a folder that was empty; if it is not any more it stays. */
    private void deleteFolder(String path) {
        store.delete(path, Optional.empty()).exceptionally(error -> {
            LOG.debug("{} stays: {}", path, error.toString());
            return null;
        });
    }

    private <T> T get(CompletableFuture<T> answer) throws ExecutionException, InterruptedException {
        return Answers.within(settings.limitMillis(), answer).get();
    }

    /** Log an error once, until there is another one. */
    private void report(String error) {
        if (!error.equals(reported)) {
            reported = error;
            if (!error.isEmpty()) {
                LOG.error("the outbox is not emptied, which is tried again: {}", error);
            }
        }
    }

    /** Return the monotonic clock in milliseconds. */
    private static long now() {
        return TimeUnit.NANOSECONDS.toMillis(System.nanoTime());
    }
}
