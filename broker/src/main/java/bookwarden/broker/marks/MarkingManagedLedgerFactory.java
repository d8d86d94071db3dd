package bookwarden.broker.marks;

import io.opentelemetry.api.OpenTelemetry;
import java.util.concurrent.CompletableFuture;
import java.util.function.Consumer;
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
 * The broker's managed ledgers. Brokers ask it to delete those of topics that are not loaded; where one is open all the
 * same, as within a load, its cursors are learnt before the delete clears them.
 */
final class MarkingManagedLedgerFactory extends ManagedLedgerFactoryImpl {
    private final Consumer<ManagedLedger> deletes;

    /**
     * @param deletes learns which open managed ledger is about to be deleted; it does not throw
     */
    MarkingManagedLedgerFactory(MetadataStoreExtended store, BookkeeperFactoryForCustomEnsemblePlacementPolicy bookkeeper,
                                ManagedLedgerFactoryConfig config, StatsLogger stats, OpenTelemetry telemetry,
                                Consumer<ManagedLedger> deletes) throws Exception {
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
                deletes.accept(ledger);
                super.asyncDelete(name, config, callback, context);
            }
        });
    }
}
