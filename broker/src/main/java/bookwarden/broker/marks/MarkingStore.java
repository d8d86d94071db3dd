package bookwarden.broker.marks;

import bookwarden.broker.Answers;
import bookwarden.broker.marks.HeldLedgers.State;
import com.github.benmanes.caffeine.cache.Cache;
import com.github.benmanes.caffeine.cache.Caffeine;
import java.lang.reflect.InvocationHandler;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.lang.reflect.Proxy;
import java.time.Duration;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.SortedMap;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.function.BiConsumer;
import java.util.function.BooleanSupplier;
import java.util.function.Function;
import java.util.function.LongFunction;
import java.util.function.Predicate;
import java.util.function.Supplier;
import java.util.stream.Collectors;
import java.util.stream.LongStream;
import org.apache.pulsar.metadata.api.GetResult;
import org.apache.pulsar.metadata.api.MetadataStoreException;
import org.apache.pulsar.metadata.api.Stat;
import org.apache.pulsar.metadata.api.extended.MetadataStoreExtended;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * The metadata store as managed ledgers get it: what a write below /managed-ledgers drops is in the outbox before the
 * write goes on. A proxy, since later releases have methods that 4.0 has not.
 *
 * <p>Values are remembered by version from reads and writes: where the version is the one that a write expects, the
 * store itself proves that the remembered value is the one that the write replaces. All else is read first.
 */
final class MarkingStore implements InvocationHandler {
    private static final Logger LOG = LoggerFactory.getLogger(MarkingStore.class);
    private static final int DELETE_TRIES = 5;
    /** Ledgers of a deleted node that BookKeeper is asked for; more are marked unasked. */
    private static final int ASKED = 20;
    /** For so long the mark of a ledger whose node still named it serves for the node's delete too. */
    private static final Duration FRESH = Duration.ofSeconds(10);
    private static final int MOST_FRESH = 200_000;
    private static final int MOST_OWNERS = 200_000;
    private static final long[] NOTHING = {};
    private static final CompletableFuture<long[]> DONE = CompletableFuture.completedFuture(NOTHING);

    private final MetadataStoreExtended store;
    private final NodeValues values;
    private final Outbox outbox;
    private final HeldLedgers held;
    private final Predicate<NodePath> brokerDeletes;
    private final TrashLease trash;
    private final LongFunction<CompletableFuture<Boolean>> exists;
    private final BooleanSupplier enabled;
    private final long limitMillis;
    private final Cache<String, Known> known;
    /** Ledgers that were marked a moment ago while their node named them. */
    private final Cache<Long, State> fresh =
            Caffeine.newBuilder().maximumSize(MOST_FRESH).expireAfterWrite(FRESH).build();
    private final RemovedLedgers removed = new RemovedLedgers(FRESH.toNanos(), System::nanoTime);
    /** Which node named a ledger when it was read or written last; of a topic that is written its last ledger alone. */
    private final Cache<Long, NodePath> owners = Caffeine.newBuilder().maximumSize(MOST_OWNERS).build();
    /** By path: completed when the newest write of it has left for the store. */
    private final Map<String, CompletableFuture<Void>> leaving = new ConcurrentHashMap<>();

    /**
     * @param held learns what is in the outbox before the write goes on, and is not deleted by the broker
     * @param brokerDeletes whether the broker deletes by itself what a node drops
     * @param trash says of which nodes former values are kept
     * @param exists asks whether BookKeeper has a ledger; without an answer it may have it
     * @param enabled whether to mark; else each write is passed on as it is, after the earlier ones of its path
     */
    MarkingStore(MetadataStoreExtended store, NodeValues values, Outbox outbox, HeldLedgers held,
                 Predicate<NodePath> brokerDeletes, TrashLease trash, LongFunction<CompletableFuture<Boolean>> exists,
                 BooleanSupplier enabled, long rememberedBytes, long limitMillis) {
        this.limitMillis = limitMillis;
        this.enabled = enabled;
        this.store = store;
        this.values = values;
        this.outbox = outbox;
        this.held = held;
        this.brokerDeletes = brokerDeletes;
        this.trash = trash;
        this.exists = exists;
        known = Caffeine.newBuilder().maximumWeight(rememberedBytes)
                .<String, Known>weigher((path, each) -> path.length() + each.value.length + 100).build();
    }

    /** Return the store that managed ledgers get. */
    MetadataStoreExtended proxy() {
        return (MetadataStoreExtended) Proxy.newProxyInstance(MarkingStore.class.getClassLoader(),
                new Class<?>[] {MetadataStoreExtended.class}, this);
    }

    /** Learn that the broker has removed a ledger: it needs no mark where its node goes next. */
    void removed(long ledger) {
        removed.add(ledger);
    }

    /** Return the node that named a ledger when it was read or written last; null if that is not known. */
    NodePath ownerOf(long ledger) {
        return owners.getIfPresent(ledger);
    }

    /**
     * Mark a ledger that the broker removes while its node still names it, as it does when it deletes a topic: the node
     * goes afterwards. Return what is in the outbox; nothing where the node does not name it, and where the broker
     * deletes.
     */
    CompletableFuture<State> markNamed(NodePath node, Kind kind, long ledger) {
        if (brokerDeletes.test(node)) {
            return CompletableFuture.completedFuture(State.NOTHING);
        }
        boolean keeps = kind == Kind.DATA ? trash.keepsTrimmed(node) : trash.keepsDeleted(node);
        Known remembered = known.getIfPresent(node.path());
        CompletableFuture<Known> value = remembered != null && (!keeps || remembered.created > 0)
                ? CompletableFuture.completedFuture(remembered)
                : read(node.path()).thenApply(found -> {
                    Known now = found.map(Known::new).orElseGet(() -> new Known(new byte[] {}));
                    found.ifPresent(each -> known.put(node.path(), now));
                    return now;
                });
        return value.thenCompose(now -> {
            try {
                if (Arrays.binarySearch(kind.ids(now.ledgers(values, node)), ledger) < 0) {
                    return CompletableFuture.completedFuture(State.NOTHING);
                }
                Former former = !keeps ? null : Former.ofEntries(now.created,
                        kind == Kind.DATA ? now.entry(values, ledger) : Map.of());
                State state = former == null ? State.MARK : State.RECORD;
                return outbox.add(new Drop(node, System.currentTimeMillis(), kind.only(ledger), former))
                        .thenApply(durable -> {
                            if (durable) {
                                fresh.put(ledger, state);
                            }
                            return durable ? state : State.NOTHING;
                        });
            } catch (ReflectiveOperationException e) {
                throw new CompletionException(e);
            }
        });
    }

    /** Have the trash keep a schema's ledger that is removed, with the schema's node, which goes afterwards. */
    CompletableFuture<State> keepSchema(String schema, long ledger) {
        NodePath topic = NodePath.of(schema.substring(0, schema.lastIndexOf('/')) + "/persistent"
                + schema.substring(schema.lastIndexOf('/')), null);
        if (topic == null || !trash.keepsDeleted(topic)) {
            return CompletableFuture.completedFuture(State.NOTHING);
        }
        return read("/schemas/" + schema).thenCompose(found -> found.isEmpty()
                || !NodeValues.isNamedBySchema(found.get().getValue(), ledger)
                ? CompletableFuture.completedFuture(State.NOTHING)
                : keep(topic, Former.ofSchema(schema, Former.Node.of(found.get()), ledger)));
    }

    /**
     * Have the trash keep a compacted ledger that is removed: its topic may be about to be deleted, and not only
     * compacted again.
     */
    CompletableFuture<State> keepCompacted(NodePath topic, long ledger) {
        if (topic == null || !trash.keepsDeleted(topic)) {
            return CompletableFuture.completedFuture(State.NOTHING);
        }
        return read(topic.path()).thenCompose(found -> found.isEmpty()
                ? CompletableFuture.completedFuture(State.NOTHING)
                : keep(topic, Former.ofCompacted(found.get().getStat().getCreationTimestamp(), ledger)));
    }

    /**
     * Have the trash keep where a cursor is, and its node, before a delete of its topic moves it. Nothing in its node or
     * ledger tells it from one that consumed all afterwards, and what it had acknowledged out of order is dropped before
     * its new ledger has an entry.
     */
    CompletableFuture<State> keepPosition(NodePath cursor, long ledger, long entry) {
        if (cursor == null || !trash.keepsDeleted(cursor)) {
            return CompletableFuture.completedFuture(State.NOTHING);
        }
        return read(cursor.path()).thenCompose(found -> found.isEmpty()
                ? CompletableFuture.completedFuture(State.NOTHING)
                : keep(cursor, Former.ofMoved(Former.Node.of(found.get()), ledger, entry)));
    }

    private CompletableFuture<State> keep(NodePath node, Former former) {
        return outbox.add(new Drop(node, System.currentTimeMillis(), NamedLedgers.NONE, former))
                .thenApply(durable -> durable ? State.RECORD : State.NOTHING);
    }

    /** The value of a node, of which most are never needed: it is parsed when it is. */
    private static final class Known {
        private final long version;
        private final byte[] value;
        /** When the node was made; 0 where that is not known. */
        private final long created;
        private NamedLedgers ledgers;
        private SortedMap<Long, byte[]> entries;

        private Known(long version, byte[] value, long created) {
            this.version = version;
            this.value = value;
            this.created = created;
        }

        private Known(GetResult found) {
            this(found.getStat().getVersion(), found.getValue(), found.getStat().getCreationTimestamp());
        }

        /** A value that is to be written. */
        private Known(byte[] value) {
            this(0, value, 0);
        }

        private synchronized NamedLedgers ledgers(NodeValues values, NodePath path)
                throws ReflectiveOperationException {
            if (ledgers == null) {
                ledgers = values.read(path, value);
            }
            return ledgers;
        }

        /** Return the entry of a ledger; a broker that deletes a topic removes one ledger after the other. */
        private synchronized Map<Long, byte[]> entry(NodeValues values, long ledger) throws ReflectiveOperationException {
            if (entries == null) {
                entries = values.entries(value, id -> true);
            }
            byte[] found = entries.get(ledger);
            return found == null ? Map.of() : Map.of(ledger, found);
        }
    }

    @Override
    public Object invoke(Object proxy, Method method, Object[] args) throws Throwable {
        NodePath node = args != null && args[0] instanceof String ? NodePath.of((String) args[0]) : null;
        if (node == null) {
            return "equals".equals(method.getName()) ? proxy == args[0] : call(method, args);
        }
        String path = (String) args[0];
        switch (method.getName()) {
            case "get":
                CompletableFuture<Optional<GetResult>> got = answer(method, args);
                return after(got, (found, error) -> {
                    if (error == null && found.isPresent()) {
                        remember(node, found.get());
                    }
                });
            case "put":
                return put(node, path, (byte[]) args[1], expected(args[2]), () -> answer(method, args));
            case "delete", "deleteIfExists":
                return delete(node, path, expected(args[1]), version -> {
                    Object[] changed = args.clone();
                    changed[1] = version;
                    return answer(method, changed);
                });
            default:
                return call(method, args);
        }
    }

    @SuppressWarnings("unchecked")
    private static Optional<Long> expected(Object argument) {
        return (Optional<Long>) argument;
    }

    private Object call(Method method, Object[] args) throws Throwable {
        try {
            return method.invoke(store, args);
        } catch (InvocationTargetException e) {
            throw e.getCause();
        }
    }

    /** Call the store; what it throws is the answer. */
    @SuppressWarnings("unchecked")
    private <T> CompletableFuture<T> answer(Method method, Object[] args) {
        try {
            return (CompletableFuture<T>) call(method, args);
        } catch (Throwable e) {
            return CompletableFuture.failedFuture(e);
        }
    }

    private CompletableFuture<Stat> put(NodePath node, String path, byte[] value, Optional<Long> expected,
                                        Supplier<CompletableFuture<Stat>> write) {
        return inOrder(node, path, write, left -> {
            Known next = new Known(value);
            CompletableFuture<long[]> marked = markPut(node, path, next, expected);
            Function<long[], CompletableFuture<Stat>> go = dropped -> {
                CompletableFuture<Stat> written = write.get();
                left.complete(null);
                return after(written, (stat, error) -> {
                    remember(node, stat, next);
                    if (error != null) {
                        held.release(dropped);
                    }
                });
            };
            return marked.isDone() ? go.apply(marked.join()) : marked.thenCompose(go);
        });
    }

    /**
     * Mark what a put drops, and return what of it is in BookKeeper; the answer never fails, and is there at once if
     * that is nothing.
     */
    private CompletableFuture<long[]> markPut(NodePath node, String path, Known next, Optional<Long> expected) {
        if (!enabled.getAsBoolean() || expected.isPresent() && expected.get() < 0) {
            return DONE;
        }
        try {
            Known before = known.getIfPresent(path);
            if (before != null && expected.isPresent() && before.version == expected.get()) {
                return mark(node, before, next);
            }
            return safely(node, read(path).thenCompose(found -> found.isEmpty() ? DONE
                    : mark(node, new Known(found.get()), next)));
        } catch (Throwable e) {
            countUnmarked("error", node, e);
            return DONE;
        }
    }

    private CompletableFuture<long[]> mark(NodePath node, Known before, Known next) {
        try {
            NamedLedgers named = next.ledgers(values, node);
            NamedLedgers dropped = before.ledgers(values, node).without(named);
            if (dropped.data().length == 0 || !trash.keepsTrimmed(node)) {
                return mark(node, dropped);
            }
            // What stays in the list was removed from BookKeeper only, since it has a copy.
            SortedMap<Long, byte[]> entries = values.entries(before.value,
                    id -> Arrays.binarySearch(dropped.data(), id) >= 0 && Arrays.binarySearch(named.data(), id) < 0);
            if (entries.isEmpty()) {
                return mark(node, dropped);
            }
            CompletableFuture<Long> created = before.created > 0 ? CompletableFuture.completedFuture(before.created)
                    : read(node.path()).thenApply(found -> found.orElseThrow().getStat().getCreationTimestamp());
            NamedLedgers kept = NamedLedgers.ofTopic(entries.keySet().stream().mapToLong(Long::longValue).toArray(),
                    NOTHING, List.of());
            return created.handle((at, error) -> error != null ? mark(node, dropped)
                    : mark(node, kept, Former.ofEntries(at, entries), dropped.withoutInBookKeeper(entries::containsKey)))
                    .thenCompose(marked -> marked);
        } catch (Throwable e) {
            countUnmarked("error", node, e);
            return DONE;
        }
    }

    private CompletableFuture<long[]> mark(NodePath node, NamedLedgers dropped) {
        return dropped.isEmpty() ? DONE : add(node, dropped, null);
    }

    /** Have the trash keep some of what a node drops, and mark the rest. */
    private CompletableFuture<long[]> mark(NodePath node, NamedLedgers kept, Former former, NamedLedgers rest) {
        return add(node, kept, former).thenCombine(mark(node, rest), MarkingStore::joined);
    }

    private static long[] joined(long[] first, long[] second) {
        return LongStream.concat(Arrays.stream(first), Arrays.stream(second)).toArray();
    }

    private CompletableFuture<long[]> add(NodePath node, NamedLedgers dropped, Former former) {
        long[] ledgers = dropped.inBookKeeper().toArray();
        return outbox.add(new Drop(node, System.currentTimeMillis(), dropped, former)).thenApply(durable -> {
            if (durable && !brokerDeletes.test(node)) {
                held.add(ledgers, former == null ? State.MARK : State.RECORD);
            } else {
                held.release(ledgers);
            }
            return ledgers;
        });
    }

    /**
     * Mark what a node names that is to be deleted. Before that the broker deletes the last ledgers of a topic: what
     * BookKeeper has no more needs no mark, and is asked for where no client of this process told that it removed it;
     * what was left to the sweep a moment ago has one, which waits for this write as each mark does.
     *
     * @param former what the trash keeps of it; null: nothing
     */
    private CompletableFuture<long[]> markDelete(NodePath node, Known before, Former former) {
        try {
            NamedLedgers dropped = before.ledgers(values, node).without(NamedLedgers.NONE)
                    .withoutInBookKeeper(removed::has);
            if (former == null && !brokerDeletes.test(node)) {
                long[] marked = dropped.inBookKeeper().filter(id -> fresh.getIfPresent(id) == State.MARK).toArray();
                held.add(marked, State.MARK);
                return mark(node, dropped.withoutInBookKeeper(LongStream.of(marked).boxed()
                        .collect(Collectors.toSet())::contains)).thenApply(rest -> joined(marked, rest));
            }
            long[] ids = dropped.inBookKeeper().toArray();
            if (ids.length == 0 || ids.length > ASKED) {
                return markDeleted(node, dropped, former);
            }
            Set<Long> gone = ConcurrentHashMap.newKeySet();
            CompletableFuture<?>[] answers = Arrays.stream(ids).mapToObj(id -> exists.apply(id).thenAccept(present -> {
                if (!present) {
                    gone.add(id);
                }
            })).toArray(CompletableFuture<?>[]::new);
            return Answers.within(limitMillis, CompletableFuture.allOf(answers))
                    .handle((x, error) -> markDeleted(node, dropped.withoutInBookKeeper(Set.copyOf(gone)::contains), former))
                    .thenCompose(marked -> marked);
        } catch (Throwable e) {
            countUnmarked("error", node, e);
            return DONE;
        }
    }

    private CompletableFuture<long[]> markDeleted(NodePath node, NamedLedgers dropped, Former former) {
        return former == null ? mark(node, dropped)
                : mark(node, dropped.withoutCopies(), former, dropped.onlyCopies());
    }

    private CompletableFuture<long[]> safely(NodePath node, CompletableFuture<long[]> marked) {
        return marked.exceptionally(error -> {
            countUnmarked("read", node, error);
            return NOTHING;
        });
    }

    /** Count a write that drops ledgers which are not known: any that is held may be among them. */
    private void countUnmarked(String reason, NodePath node, Throwable error) {
        held.clear();
        outbox.countUnmarked(reason, node, error);
    }

    /**
     * Delete a node by the version that was read, so that nothing is deleted that was not marked. After some tries, in
     * which somebody else wrote it, as the broker asked for.
     */
    private CompletableFuture<Void> delete(NodePath node, String path, Optional<Long> expected,
                                           Function<Optional<Long>, CompletableFuture<Void>> write) {
        List<long[]> dropped = new CopyOnWriteArrayList<>();
        return inOrder(node, path, () -> write.apply(expected), left -> after(
                enabled.getAsBoolean() ? delete(node, path, expected, write, dropped, 1) : write.apply(expected),
                (x, error) -> {
                    if (error != null) {
                        dropped.forEach(held::release);
                    }
                    // What is created next begins with the first version again.
                    known.invalidate(path);
                    left.complete(null);
                }));
    }

    private CompletableFuture<Void> delete(NodePath node, String path, Optional<Long> expected,
                                           Function<Optional<Long>, CompletableFuture<Void>> write,
                                           List<long[]> dropped, int attempt) {
        boolean keeps = trash.keepsDeleted(node);
        // Each open of a topic, and each delete of one that is not open, has read its nodes before.
        Known remembered = attempt == 1 && expected.isEmpty() && !keeps ? known.getIfPresent(path) : null;
        CompletableFuture<Optional<Long>> version = remembered != null
                ? markDelete(node, remembered, null).thenApply(ledgers -> {
                    dropped.add(ledgers);
                    return Optional.of(remembered.version);
                })
                : read(path).exceptionally(error -> {
                    countUnmarked("read", node, error);
                    return Optional.empty();
                }).thenCompose(found -> {
                    if (found.isEmpty()) {
                        return CompletableFuture.completedFuture(expected);
                    }
                    Known now = new Known(found.get());
                    CompletableFuture<Former> former = keeps ? former(node, found.get())
                            : CompletableFuture.completedFuture(null);
                    return former.thenCompose(each -> markDelete(node, now, each)).thenApply(ledgers -> {
                        dropped.add(ledgers);
                        return expected.isPresent() || attempt > DELETE_TRIES ? expected : Optional.of(now.version);
                    });
                });
        return version.thenCompose(write).handle((x, error) -> {
            boolean again = Answers.cause(error) instanceof MetadataStoreException.BadVersionException
                    && expected.isEmpty() && attempt <= DELETE_TRIES;
            return again ? delete(node, path, expected, write, dropped, attempt + 1)
                    : error == null ? CompletableFuture.<Void>completedFuture(null)
                            : CompletableFuture.<Void>failedFuture(Answers.cause(error));
        }).thenCompose(answer -> answer);
    }

    /** The broker deletes the node of a partitioned topic after those of its partitions. */
    private CompletableFuture<Former> former(NodePath node, GetResult found) {
        Former.Node own = Former.Node.of(found);
        if (node.cursor() != null) {
            return CompletableFuture.completedFuture(Former.ofNode(own));
        }
        String partitioned = node.partitionedTopic();
        if (partitioned == null) {
            return CompletableFuture.completedFuture(Former.ofNode(own));
        }
        // A separate configuration store has it elsewhere.
        return read(partitioned).handle((of, error) -> error != null || of.isEmpty() ? Former.ofNode(own)
                : Former.ofPartition(own, of.get().getValue()));
    }

    private CompletableFuture<Optional<GetResult>> read(String path) {
        return Answers.within(limitMillis, store.get(path));
    }

    private void remember(NodePath node, GetResult found) {
        Known now = new Known(found);
        known.put(node.path(), now);
        learnOwner(node, now, true);
    }

    /** Remember what was written; of a failed write nothing, since another version is the one that is there then. */
    private void remember(NodePath node, Stat stat, Known written) {
        if (stat == null) {
            return;
        }
        Known now = new Known(stat.getVersion(), written.value, stat.getCreationTimestamp());
        synchronized (written) {
            now.ledgers = written.ledgers;
        }
        known.put(node.path(), now);
        learnOwner(node, now, false);
    }

    /** Learn whose ledgers these are, or the last of them, should the broker remove them before the node. */
    private void learnOwner(NodePath node, Known now, boolean all) {
        if (brokerDeletes.test(node)) {
            return;
        }
        try {
            long[] ids = (node.cursor() == null ? Kind.DATA : Kind.CURSOR).ids(now.ledgers(values, node));
            Arrays.stream(ids).skip(all ? 0 : Math.max(0, ids.length - 1)).forEach(id -> owners.put(id, node));
        } catch (ReflectiveOperationException | RuntimeException e) {
            LOG.debug("{} cannot be read, which its next write says", node, e);
        }
    }

    /**
     * Do a write once all earlier ones of its path have left; it completes ``left`` when it has left itself. An error
     * of ours lets it go on as the broker made it.
     */
    private <T> CompletableFuture<T> inOrder(NodePath node, String path, Supplier<CompletableFuture<T>> unchanged,
                                             Function<CompletableFuture<Void>, CompletableFuture<T>> write) {
        CompletableFuture<Void> left = new CompletableFuture<>();
        CompletableFuture<Void> before = leaving.put(path, left);
        left.whenComplete((x, error) -> leaving.remove(path, left));
        Supplier<CompletableFuture<T>> guarded = () -> {
            try {
                return write.apply(left);
            } catch (Throwable e) {
                if (left.isDone()) {
                    throw e;
                }
                countUnmarked("error", node, e);
                CompletableFuture<T> written = unchanged.get();
                left.complete(null);
                return written;
            }
        };
        return before == null ? guarded.get() : after(before.thenCompose(x -> guarded.get()), (x, error) -> { });
    }

    /** Return the same answer, unwrapped, after something was done with it that cannot change it. */
    private static <T> CompletableFuture<T> after(CompletableFuture<T> answer, BiConsumer<T, Throwable> action) {
        CompletableFuture<T> relayed = new CompletableFuture<>();
        answer.whenComplete((value, error) -> {
            try {
                action.accept(value, error);
            } finally {
                if (error == null) {
                    relayed.complete(value);
                } else {
                    relayed.completeExceptionally(Answers.cause(error));
                }
            }
        });
        return relayed;
    }
}
