import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.ArrayDeque;
import java.util.Queue;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Semaphore;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.api.DigestType;
import org.apache.bookkeeper.client.api.LedgerEntries;
import org.apache.bookkeeper.client.api.LedgerEntry;
import org.apache.bookkeeper.client.api.ReadHandle;
import org.apache.bookkeeper.client.api.WriteHandle;
import org.apache.bookkeeper.conf.ClientConfiguration;

/**
 * Writes and reads ledgers with BookKeeper's own client, as a benchmark orders it on the standard input: "write COUNT
 * SIZE" answers "answer ID", "read ID" reads all entries and answers "answer SECONDS BYTES". Run with the jars of Pulsar: metadata service URI.
 */
public class LedgerPeer {

    private static final byte[] PASSWORD = new byte[0];
    private static final int CHUNK = 1000;
    private static final int CHUNKS_IN_FLIGHT = 2;

    public static void main(String[] args) throws Exception {
        ClientConfiguration configuration = new ClientConfiguration();
        configuration.setMetadataServiceUri(args[0]);
        // Its default is 5,000 entries a second; brokers turn it off too.
        configuration.setThrottleValue(0);
        BookKeeper client = new BookKeeper(configuration);
        BufferedReader orders = new BufferedReader(new InputStreamReader(System.in));
        System.out.println("answer ready");
        for (String order = orders.readLine(); order != null; order = orders.readLine()) {
            String[] words = order.split(" ");
            if (words[0].equals("write")) {
                long id = write(client, Integer.parseInt(words[1]), Integer.parseInt(words[2]));
                System.out.println("answer " + id);
            } else {
                long begin = System.nanoTime();
                long bytes = read(client, Long.parseLong(words[1]));
                System.out.println("answer " + (System.nanoTime() - begin) / 1e9 + " " + bytes);
            }
        }
        Runtime.getRuntime().halt(0);
    }

    private static long write(BookKeeper client, int count, int size) throws Exception {
        try (WriteHandle ledger = client.newCreateLedgerOp().withDigestType(DigestType.CRC32C).withPassword(PASSWORD)
                .withEnsembleSize(1).withWriteQuorumSize(1).withAckQuorumSize(1).execute().get()) {
            Semaphore places = new Semaphore(1000);
            byte[] payload = new byte[size];
            CompletableFuture<Long> last = CompletableFuture.completedFuture(-1L);
            for (int entry = 0; entry < count; entry++) {
                places.acquire();
                last = ledger.appendAsync(payload);
                last.whenComplete((id, failure) -> places.release());
            }
            last.get();
            return ledger.getId();
        }
    }

    private static long read(BookKeeper client, long id) throws Exception {
        long bytes = 0;
        try (ReadHandle ledger = client.newOpenLedgerOp().withLedgerId(id).withDigestType(DigestType.CRC32C)
                .withPassword(PASSWORD).withRecovery(false).execute().get()) {
            long end = ledger.getLastAddConfirmed() + 1;
            Queue<CompletableFuture<LedgerEntries>> asked = new ArrayDeque<>();
            for (long next = 0; next < end || !asked.isEmpty(); ) {
                while (next < end && asked.size() < CHUNKS_IN_FLIGHT) {
                    asked.add(ledger.readAsync(next, Math.min(next + CHUNK, end) - 1));
                    next += CHUNK;
                }
                try (LedgerEntries entries = asked.remove().get()) {
                    for (LedgerEntry entry : entries) {
                        bytes += entry.getEntryBytes().length;
                    }
                }
            }
        }
        return bytes;
    }
}
