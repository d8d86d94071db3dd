package bookwarden.broker.marks;

import io.opentelemetry.api.OpenTelemetry;
import java.util.concurrent.CompletableFuture;
import java.util.function.Function;
import org.apache.bookkeeper.mledger.AsyncCallbacks.DeleteLedgerCallback;
import org.apache.bookkeeper.mledger.ManagedLedger;
import org.apache.bookkeeper.mledger.ManagedLedgerConfig;
import org.apache.bookkeeper.mledger.ManagedLedgerException;
import org.apache.bookkeeper.mledger.ManagedLedgerFactoryConfig;
import org.apache.bookkeeper.mledger.impl.ManagedLedgerFactoryImpl;
import org.apache.bookkeeper.mledger.impl.ManagedLedgerImpl;
import org.apache.bookkeeper.stats.StatsLogger;
import org.apache.pulsar.metadata.api.extended.MetadataStoreExtended;

/**
 * The broker's managed ledgers. Brokers ask it to delete those of topics that are not loaded. Where one is open all the
 * same, as within a load, it truncates itself first: it clears the backlog of each cursor, which moves them to its end.
 * Where they are is kept before that.
 */
final class MarkingManagedLedgerFactory extends ManagedLedgerFactoryImpl {
    private final Function<ManagedLedger, CompletableFuture<Void>> deletes;

    /**
     * @param deletes learns which open managed ledger is about to be deleted, which waits for its answer; it never fails
     */
    MarkingManagedLedgerFactory(MetadataStoreExtended store, BookkeeperFactoryForCustomEnsemblePlacementPolicy bookkeeper,
                                ManagedLedgerFactoryConfig config, StatsLogger stats, OpenTelemetry telemetry,
                                Function<ManagedLedger, CompletableFuture<Void>> deletes) throws Exception {
        super(store, bookkeeper, config, stats, telemetry);
        this.deletes = deletes;
    }

    @Override
    public void asyncDelete(String name, CompletableFuture<ManagedLedgerConfig> config, DeleteLedgerCallback callback,
                            Object context) {
        CompletableFuture<ManagedLedgerImpl> open = ledgers.get(name);
        if (open == null) {
            super.asyncDelete(name, config, callback, context);
            return;
        }
        open.whenComplete((ledger, error) -> {
            if (error != null) {
                callback.deleteLedgerFailed(ManagedLedgerException.getManagedLedgerException(error), context);
            } else {
                deletes.apply(ledger).thenRun(() -> super.asyncDelete(name, config, callback, context));
            }
        });
    }
}
