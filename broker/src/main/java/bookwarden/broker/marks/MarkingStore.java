package bookwarden.broker.marks;

import bookwarden.broker.Answers;
import com.github.benmanes.caffeine.cache.Cache;
import com.github.benmanes.caffeine.cache.Caffeine;
import java.lang.reflect.InvocationHandler;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.lang.reflect.Proxy;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
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
import org.apache.pulsar.metadata.api.GetResult;
import org.apache.pulsar.metadata.api.MetadataStoreException;
import org.apache.pulsar.metadata.api.Stat;
import org.apache.pulsar.metadata.api.extended.MetadataStoreExtended;

/**
 * The metadata store as managed ledgers get it: what a write below /managed-ledgers drops is in the outbox before the
 * write goes on. A proxy, since later releases have methods that 4.0 has not.
 *
 * <p>Values are remembered by version from reads and writes: where the version is the one that a write expects, the
 * store itself proves that the remembered value is the one that the write replaces. All else is read first.
 */
final class MarkingStore implements InvocationHandler {
    private static final int DELETE_TRIES = 5;
    /** Ledgers of a deleted node that BookKeeper is asked for; more are marked unasked. */
    private static final int ASKED = 20;
    private static final long[] NOTHING = {};
    private static final CompletableFuture<long[]> DONE = CompletableFuture.completedFuture(NOTHING);

    private final MetadataStoreExtended store;
    private final NodeValues values;
    private final Outbox outbox;
    private final HeldLedgers held;
    private final Predicate<NodePath> brokerDeletes;
    private final LongFunction<CompletableFuture<Boolean>> exists;
    private final BooleanSupplier enabled;
    private final long limitMillis;
    private final Cache<String, Known> known;
    /** By path: completed when the newest write of it has left for the store. */
    private final Map<String, CompletableFuture<Void>> leaving = new ConcurrentHashMap<>();

    /**
     * @param held learns what is in the outbox before the write goes on, and is not deleted by the broker
     * @param brokerDeletes whether the broker deletes by itself what a node drops
     * @param exists asks whether BookKeeper has a ledger; without an answer it may have it
     * @param enabled whether to mark; else each write is passed on as it is, after the earlier ones of its path
     */
    MarkingStore(MetadataStoreExtended store, NodeValues values, Outbox outbox, HeldLedgers held,
                 Predicate<NodePath> brokerDeletes, LongFunction<CompletableFuture<Boolean>> exists,
                 BooleanSupplier enabled, long rememberedBytes, long limitMillis) {
        this.limitMillis = limitMillis;
        this.enabled = enabled;
        this.store = store;
        this.values = values;
        this.outbox = outbox;
        this.held = held;
        this.brokerDeletes = brokerDeletes;
        this.exists = exists;
        known = Caffeine.newBuilder().maximumWeight(rememberedBytes)
                .<String, Known>weigher((path, each) -> path.length() + each.value.length + 100).build();
    }

    /** Return the store that managed ledgers get. */
    MetadataStoreExtended proxy() {
        return (MetadataStoreExtended) Proxy.newProxyInstance(MarkingStore.class.getClassLoader(),
                new Class<?>[] {MetadataStoreExtended.class}, this);
    }

    /**
     * Mark a ledger that the broker removes while its node still names it, as it does when it deletes a topic: the node
     * goes afterwards. Return whether it is in the outbox; false where the node does not name it, and where the broker
     * deletes.
     */
    CompletableFuture<Boolean> markNamed(NodePath node, Kind kind, long ledger) {
        if (brokerDeletes.test(node)) {
            return CompletableFuture.completedFuture(false);
        }
        Known remembered = known.getIfPresent(node.path());
        CompletableFuture<Known> value = remembered != null ? CompletableFuture.completedFuture(remembered)
                : read(node.path()).thenApply(found -> {
                    found.ifPresent(each -> remember(node.path(), each));
                    return found.isEmpty() ? new Known(0, new byte[] {}) : known.getIfPresent(node.path());
                });
        return value.thenCompose(now -> {
            try {
                if (now == null || Arrays.binarySearch(kind.ids(now.ledgers(values, node)), ledger) < 0) {
                    return CompletableFuture.completedFuture(false);
                }
            } catch (ReflectiveOperationException e) {
                throw new CompletionException(e);
            }
            return outbox.add(new Drop(node, System.currentTimeMillis(), kind.only(ledger)));
        });
    }

    /** The value of a node, of which most are never needed: it is parsed when it is. */
    private static final class Known {
        private final long version;
        private final byte[] value;
        private NamedLedgers ledgers;

        private Known(long version, byte[] value) {
            this.version = version;
            this.value = value;
        }

        private synchronized NamedLedgers ledgers(NodeValues values, NodePath path)
                throws ReflectiveOperationException {
            if (ledgers == null) {
                ledgers = values.read(path, value);
            }
            return ledgers;
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
                        remember(path, found.get());
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
            Known next = new Known(0, value);
            CompletableFuture<long[]> marked = markPut(node, path, next, expected);
            Function<long[], CompletableFuture<Stat>> go = dropped -> {
                CompletableFuture<Stat> written = write.get();
                left.complete(null);
                return after(written, (stat, error) -> {
                    remember(path, stat, next);
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
                    : mark(node, new Known(0, found.get().getValue()), next)));
        } catch (Throwable e) {
            countUnmarked("error", node, e);
            return DONE;
        }
    }

    private CompletableFuture<long[]> mark(NodePath node, Known before, Known next) {
        try {
            return mark(node, before.ledgers(values, node).without(next.ledgers(values, node)));
        } catch (Throwable e) {
            countUnmarked("error", node, e);
            return DONE;
        }
    }

    private CompletableFuture<long[]> mark(NodePath node, NamedLedgers dropped) {
        if (dropped.isEmpty()) {
            return DONE;
        }
        long[] ledgers = dropped.inBookKeeper().toArray();
        return outbox.add(new Drop(node, System.currentTimeMillis(), dropped)).thenApply(durable -> {
            if (durable && !brokerDeletes.test(node)) {
                held.add(ledgers);
            } else {
                held.release(ledgers);
            }
            return ledgers;
        });
    }

    /**
     * Mark what a node names that is to be deleted. The broker deletes the last ledgers of a topic before its node:
     * what BookKeeper has no more needs no mark.
     */
    private CompletableFuture<long[]> markDelete(NodePath node, Known before) {
        try {
            NamedLedgers dropped = before.ledgers(values, node).without(NamedLedgers.NONE);
            long[] ids = dropped.inBookKeeper().toArray();
            if (ids.length == 0 || ids.length > ASKED) {
                return mark(node, dropped);
            }
            Set<Long> gone = ConcurrentHashMap.newKeySet();
            CompletableFuture<?>[] answers = Arrays.stream(ids).mapToObj(id -> exists.apply(id).thenAccept(present -> {
                if (!present) {
                    gone.add(id);
                }
            })).toArray(CompletableFuture<?>[]::new);
            return Answers.within(limitMillis, CompletableFuture.allOf(answers))
                    .handle((x, error) -> mark(node, dropped.withoutInBookKeeper(Set.copyOf(gone))))
                    .thenCompose(marked -> marked);
        } catch (Throwable e) {
            countUnmarked("error", node, e);
            return DONE;
        }
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
        // Each open of a topic, and each delete of one that is not open, has read its nodes before.
        Known remembered = attempt == 1 && expected.isEmpty() ? known.getIfPresent(path) : null;
        CompletableFuture<Optional<Known>> value = remembered != null
                ? CompletableFuture.completedFuture(Optional.of(remembered))
                : read(path).thenApply(found -> found.map(
                        each -> new Known(each.getStat().getVersion(), each.getValue()))).exceptionally(error -> {
                            countUnmarked("read", node, error);
                            return Optional.empty();
                        });
        CompletableFuture<Optional<Long>> version = value.thenCompose(found -> {
            if (found.isEmpty()) {
                return CompletableFuture.completedFuture(expected);
            }
            return markDelete(node, found.get()).thenApply(ledgers -> {
                dropped.add(ledgers);
                return expected.isPresent() || attempt > DELETE_TRIES ? expected : Optional.of(found.get().version);
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

    private CompletableFuture<Optional<GetResult>> read(String path) {
        return Answers.within(limitMillis, store.get(path));
    }

    private void remember(String path, GetResult found) {
        known.put(path, new Known(found.getStat().getVersion(), found.getValue()));
    }

    /** Remember what was written; of a failed write nothing, since another version is the one that is there then. */
    private void remember(String path, Stat stat, Known written) {
        if (stat == null) {
            return;
        }
        Known now = new Known(stat.getVersion(), written.value);
        synchronized (written) {
            now.ledgers = written.ledgers;
        }
        known.put(path, now);
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
