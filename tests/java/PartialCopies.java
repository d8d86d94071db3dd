import java.util.HashMap;
import java.util.Map;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.BookKeeper.DigestType;
import org.apache.bookkeeper.client.LedgerEntry;
import org.apache.bookkeeper.client.LedgerHandle;
import org.apache.bookkeeper.client.LedgerHandleAdv;
import org.apache.bookkeeper.client.api.LedgerMetadata;
import org.apache.bookkeeper.conf.ClientConfiguration;

/**
 * Begins to copy ledgers to another bookie cluster and is killed half way: the copies stay open, with the first half of
 * the entries. Run with the jars of Pulsar: metadata service URI of the source, that of the target, ids of closed ledgers.
 */
public class PartialCopies {

    public static void main(String[] args) {
        int exitCode = 0;
        try {
            BookKeeper source = connect(args[0]);
            BookKeeper target = connect(args[1]);
            for (int index = 2; index < args.length; index++) {
                copyHalf(source, target, Long.parseLong(args[index]));
            }
        } catch (Exception failure) {
            failure.printStackTrace();
            exitCode = 1;
        }
        // Nothing may close the copies.
        Runtime.getRuntime().halt(exitCode);
    }

    private static BookKeeper connect(String uri) throws Exception {
        ClientConfiguration configuration = new ClientConfiguration();
        configuration.setMetadataServiceUri(uri);
        return new BookKeeper(configuration);
    }

    private static void copyHalf(BookKeeper source, BookKeeper target, long ledger) throws Exception {
        byte[] password = new byte[0];
        LedgerHandle original = source.openLedgerNoRecovery(ledger, DigestType.CRC32C, password);
        LedgerMetadata metadata = original.getLedgerMetadata();
        Map<String, byte[]> custom = new HashMap<>(metadata.getCustomMetadata());
        custom.put("bookwarden.copy", (metadata.getLastEntryId() + ":" + metadata.getLength()).getBytes("UTF-8"));
        LedgerHandle copy = target.createLedgerAdv(ledger, metadata.getEnsembleSize(), metadata.getWriteQuorumSize(),
                metadata.getAckQuorumSize(), DigestType.CRC32C, password, custom);
        for (long entry = 0; entry <= metadata.getLastEntryId() / 2; entry++) {
            LedgerEntry read = original.readEntries(entry, entry).nextElement();
            ((LedgerHandleAdv) copy).addEntry(entry, read.getEntry());
        }
    }
}
