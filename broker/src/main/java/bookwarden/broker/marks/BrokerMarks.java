package bookwarden.broker.marks;

import java.util.UUID;
import org.apache.pulsar.broker.ManagedLedgerClientFactory;
import org.apache.pulsar.broker.ServiceConfiguration;
import org.apache.pulsar.metadata.api.extended.MetadataStoreExtended;

/** All that a broker has for its marks. */
final class BrokerMarks {
    private final MarkSettings settings;
    private final MetadataStoreExtended store;
    private final Outbox outbox;
    private boolean used;

    BrokerMarks(MarkSettings settings, MetadataStoreExtended store) {
        this.settings = settings;
        this.store = store;
        String folder = settings.broker() + "-" + UUID.randomUUID().toString().substring(0, 8);
        outbox = new Outbox(store, Outbox.ROOT + "/" + folder, settings.maxBytes(), settings.limitMillis());
    }

    /** Return the store that managed ledgers get. */
    MetadataStoreExtended wrap(MetadataStoreExtended wrapped) throws NoSuchMethodException {
        used = true;
        return MarkingStore.wrap(wrapped, new NodeValues(), outbox, settings.rememberedBytes(),
                settings.limitMillis());
    }

    /** Return whether the broker asked for the store. */
    boolean isUsed() {
        return used;
    }

    /** Begin to forward. */
    void start(ServiceConfiguration conf, ManagedLedgerClientFactory storage) {
    }

    void close() {
    }
}
