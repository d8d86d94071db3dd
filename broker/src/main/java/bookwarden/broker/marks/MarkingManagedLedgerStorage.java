package bookwarden.broker.marks;

import bookwarden.broker.Answers;
import bookwarden.broker.EphemeralNode;
import io.netty.channel.EventLoopGroup;
import io.opentelemetry.api.OpenTelemetry;
import java.io.IOException;
import java.util.Arrays;
import java.util.concurrent.CompletableFuture;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.mledger.ManagedLedgerFactoryConfig;
import org.apache.bookkeeper.mledger.impl.ManagedLedgerFactoryImpl;
import org.apache.bookkeeper.mledger.impl.ManagedLedgerFactoryImpl.BookkeeperFactoryForCustomEnsemblePlacementPolicy;
import org.apache.bookkeeper.stats.StatsLogger;
import org.apache.pulsar.broker.BookKeeperClientFactory;
import org.apache.pulsar.broker.ManagedLedgerClientFactory;
import org.apache.pulsar.broker.ServiceConfiguration;
import org.apache.pulsar.broker.storage.BookkeeperManagedLedgerStorageClass;
import org.apache.pulsar.metadata.api.extended.MetadataStoreExtended;

/**
 * The broker's managed ledger storage, with a metadata store that marks what leaves it. broker.conf names this class by
 * managedLedgerStorageClassName; docs/broker-marks.md has the other settings.
 */
public final class MarkingManagedLedgerStorage extends ManagedLedgerClientFactory {
    private static final String RELEASES = "broker marks need Pulsar 4.0.4 or later: take the line "
            + "managedLedgerStorageClassName out of broker.conf of this broker";
    private static final String HOOK = "createManagedLedgerFactory";
    private static final String DRIVER = "bookwardenMarks=two-phase leaves deletes to the sweep, and this broker would "
            + "delete ledgers all the same: it needs a bookkeeperMetadataServiceUri that is empty, or begins with "
            + "metadata-store: or bookwarden:, and is '";
    private BrokerMarks marks;

    @Override
    public void initialize(ServiceConfiguration conf, MetadataStoreExtended store, BookKeeperClientFactory bookkeeper,
                           EventLoopGroup eventLoops, OpenTelemetry telemetry) throws Exception {
        requireHook(ManagedLedgerClientFactory.class);
        MarkSettings settings = MarkSettings.of(conf);
        marks = new BrokerMarks(settings, store);
        super.initialize(conf, store, bookkeeper, eventLoops, telemetry);
        if (marks.isNotObeyed()) {
            close();
            throw new IllegalArgumentException(DRIVER + conf.getBookkeeperMetadataStoreUrl() + "'");
        }
        BookKeeper client = ((BookkeeperManagedLedgerStorageClass) getDefaultStorageClass()).getBookKeeperClient();
        marks.start(ledger -> exists(client, ledger), new MarkSender(store, () -> MarkSender.connect(conf),
                "dropped by broker " + EphemeralNode.host(), settings.limitMillis()));
    }

    /** Refuse a release whose storage never asks for the store that managed ledgers get: 4.0.0 to 4.0.3. */
    static void requireHook(Class<?> storage) {
        if (Arrays.stream(storage.getDeclaredMethods()).noneMatch(each -> each.getName().equals(HOOK))) {
            throw new UnsupportedOperationException(RELEASES);
        }
    }

    /** Return whether BookKeeper has a ledger; where that cannot be said it may have it. */
    private static CompletableFuture<Boolean> exists(BookKeeper client, long ledger) {
        return client.getLedgerMetadata(ledger).handle(
                (metadata, error) -> error == null || !Answers.isAbsent(Answers.translated(error)));
    }

    /** What brokers of 3.x call. */
    public void initialize(ServiceConfiguration conf, MetadataStoreExtended store, BookKeeperClientFactory bookkeeper,
                           EventLoopGroup eventLoops) {
        throw new UnsupportedOperationException(RELEASES);
    }

    @Override
    protected ManagedLedgerFactoryImpl createManagedLedgerFactory(
            MetadataStoreExtended store, OpenTelemetry telemetry,
            BookkeeperFactoryForCustomEnsemblePlacementPolicy bookkeeper, ManagedLedgerFactoryConfig config,
            StatsLogger stats) throws Exception {
        return new MarkingManagedLedgerFactory(marks.wrap(store), bookkeeper, config, stats, telemetry, marks::deletes);
    }

    @Override
    public void close() throws IOException {
        try {
            super.close();
        } finally {
            marks.close();
        }
    }
}
