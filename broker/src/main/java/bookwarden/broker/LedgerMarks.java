package bookwarden.broker;

import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Map;
import org.apache.bookkeeper.client.LedgerMetadataBuilder;
import org.apache.bookkeeper.client.api.LedgerMetadata;

/** Marks of ours in the custom metadata of ledgers: whose a ledger is, and what a copy is to become. */
final class LedgerMarks {
    /** Its value is the owner of the registry, of the Pulsar cluster that made the ledger. */
    static final String OWNER = "bookwarden.owner";
    /** Its value is LAST_ENTRY_ID:LENGTH of the ledger that the copy is to become. */
    static final String COPY = "bookwarden.copy";

    private LedgerMarks() {
    }

    /** Return the metadata with the mark of this owner. */
    static LedgerMetadata owned(LedgerMetadata metadata, String owner) {
        Map<String, byte[]> custom = new HashMap<>(metadata.getCustomMetadata());
        custom.put(OWNER, owner.getBytes(StandardCharsets.UTF_8));
        return LedgerMetadataBuilder.from(metadata).withCustomMetadata(custom).build();
    }

    /** Return the owner mark of a ledger; null if it has none. */
    static String ownerOf(LedgerMetadata metadata) {
        return value(metadata, OWNER);
    }

    /**
     * Return whether this is an original or a whole copy. A copy counts only once it is closed with exactly the end
     * that its mark names: neither one that was interrupted, nor one that an auditor recovered and closed too early.
     */
    static boolean isWhole(LedgerMetadata metadata) {
        String mark = value(metadata, COPY);
        return mark == null
                || metadata.isClosed() && mark.equals(metadata.getLastEntryId() + ":" + metadata.getLength());
    }

    private static String value(LedgerMetadata metadata, String key) {
        byte[] value = metadata.getCustomMetadata().get(key);
        return value == null ? null : new String(value, StandardCharsets.UTF_8);
    }
}
