import java.security.MessageDigest;
import java.util.HexFormat;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.api.DigestType;
import org.apache.bookkeeper.client.api.LedgerEntries;
import org.apache.bookkeeper.client.api.LedgerEntry;
import org.apache.bookkeeper.client.api.ReadHandle;
import org.apache.bookkeeper.conf.ClientConfiguration;

/**
 * Reads ledgers with BookKeeper's own client, which recovers and closes those that are open. Run with the jars of
 * Pulsar: metadata service URI, then for each ledger id,digest,password. Prints "contents ID LAST_ENTRY LENGTH SHA256"
 * for each, the sum being that of the payloads one after another.
 */
public class LedgerContents {

    public static void main(String[] args) {
        int exitCode = 0;
        try {
            ClientConfiguration configuration = new ClientConfiguration();
            configuration.setMetadataServiceUri(args[0]);
            try (BookKeeper client = new BookKeeper(configuration)) {
                for (int index = 1; index < args.length; index++) {
                    System.out.println(contents(client, args[index].split(",", -1)));
                }
            }
        } catch (Exception failure) {
            failure.printStackTrace();
            exitCode = 1;
        }
        Runtime.getRuntime().halt(exitCode);
    }

    private static String contents(BookKeeper client, String[] asked) throws Exception {
        MessageDigest sum = MessageDigest.getInstance("SHA-256");
        try (ReadHandle ledger = client.newOpenLedgerOp()
                .withLedgerId(Long.parseLong(asked[0]))
                .withDigestType(DigestType.valueOf(asked[1]))
                .withPassword(asked[2].getBytes("UTF-8"))
                .withRecovery(true)
                .execute().get()) {
            if (ledger.getLastAddConfirmed() >= 0) {
                try (LedgerEntries entries = ledger.read(0, ledger.getLastAddConfirmed())) {
                    for (LedgerEntry entry : entries) {
                        sum.update(entry.getEntryBytes());
                    }
                }
            }
            return "contents %d %d %d %s".formatted(ledger.getId(), ledger.getLastAddConfirmed(), ledger.getLength(),
                    HexFormat.of().formatHex(sum.digest()));
        }
    }
}
