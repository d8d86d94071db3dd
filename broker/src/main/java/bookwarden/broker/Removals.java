package bookwarden.broker;

import java.lang.invoke.MethodHandles;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Proxy;
import java.util.concurrent.CompletableFuture;
import org.apache.bookkeeper.meta.LedgerManager;
import org.apache.bookkeeper.meta.LedgerManagerFactory;
import org.apache.bookkeeper.meta.MetadataDrivers;
import org.apache.pulsar.metadata.bookkeeper.AbstractMetadataDriver;
import org.apache.pulsar.metadata.bookkeeper.PulsarMetadataClientDriver;

/**
 * Asks, before a BookKeeper client of this process removes a ledger, whether that is left to the sweep: such a removal
 * is answered, and not done; and tells of those that were done. Holds for the drivers bookwarden: and metadata-store:,
 * and no others.
 */
public final class Removals {
    private static Rule rule;
    private static boolean asked;

    /** Decides about removals. Its answers never fail: what cannot be decided is removed, as without it. */
    public interface Rule {
        /** Return whether the sweep deletes this ledger, which is marked; ``ledgers`` can read its metadata. */
        CompletableFuture<Boolean> isLeft(long ledger, LedgerManager ledgers);

        /** Learn that BookKeeper has removed this ledger, before the broker does. */
        void removed(long ledger);
    }

    /** Pulsar's own driver, which asks; it takes the other's place only where a rule is set. */
    public static final class AskingDriver extends PulsarMetadataClientDriver {
        @Override
        public LedgerManagerFactory getLedgerManagerFactory()
                throws org.apache.bookkeeper.meta.exceptions.MetadataException {
            return asking(super.getLedgerManagerFactory());
        }
    }

    private Removals() {
    }

    /** Have all clients that are made from now on ask this rule. */
    public static synchronized void ask(Rule next) {
        try {
            // Pulsar's own registers itself when its class is initialized: that must not come later.
            MethodHandles.lookup().ensureInitialized(AskingDriver.class);
        } catch (IllegalAccessException e) {
            throw new IllegalStateException(e);
        }
        MetadataDrivers.registerClientDriver(AbstractMetadataDriver.METADATA_STORE_SCHEME, AskingDriver.class, true);
        rule = next;
        asked = false;
    }

    /** Return whether a client was made that asks this rule. */
    public static synchronized boolean isAsked(Rule of) {
        return rule == of && asked;
    }

    /** Have clients that are made from now on ask no more. */
    public static synchronized void end(Rule of) {
        if (rule == of) {
            rule = null;
        }
    }

    /** Return a factory whose ledger managers ask the rule; the same one where there is none. */
    static synchronized LedgerManagerFactory asking(LedgerManagerFactory factory) {
        if (rule == null) {
            return factory;
        }
        asked = true;
        Rule now = rule;
        // Later releases may have methods that 4.0 has not.
        return proxy(LedgerManagerFactory.class, factory, (method, args, answer) ->
                "newLedgerManager".equals(method) ? asking((LedgerManager) answer.get(), now) : answer.get());
    }

    private static LedgerManager asking(LedgerManager ledgers, Rule now) {
        return proxy(LedgerManager.class, ledgers, (method, args, answer) ->
                "removeLedgerMetadata".equals(method) ? remove((long) args[0], ledgers, now, answer) : answer.get());
    }

    @SuppressWarnings("unchecked")
    private static CompletableFuture<Void> remove(long ledger, LedgerManager ledgers, Rule now, Answer removal) {
        CompletableFuture<Void> answer = new CompletableFuture<>();
        now.isLeft(ledger, ledgers).whenComplete((left, undecided) -> {
            if (undecided == null && left) {
                answer.complete(null);
                return;
            }
            try {
                ((CompletableFuture<Void>) removal.get()).whenComplete((done, error) -> {
                    // The client compares errors by class: no future may wrap them.
                    if (error == null) {
                        now.removed(ledger);
                        answer.complete(done);
                    } else {
                        answer.completeExceptionally(Answers.cause(error));
                    }
                });
            } catch (Throwable e) {
                answer.completeExceptionally(e);
            }
        });
        return answer;
    }

    private interface Answer {
        Object get() throws Throwable;
    }

    private interface Handler {
        Object call(String method, Object[] args, Answer answer) throws Throwable;
    }

    private static <T> T proxy(Class<T> type, T target, Handler handler) {
        return type.cast(Proxy.newProxyInstance(Removals.class.getClassLoader(), new Class<?>[] {type},
                (self, method, args) -> handler.call(method.getName(), args, () -> {
                    try {
                        return method.invoke(target, args);
                    } catch (InvocationTargetException e) {
                        throw e.getCause();
                    }
                })));
    }
}
