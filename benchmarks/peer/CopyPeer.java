import io.netty.buffer.ByteBuf;
import io.netty.buffer.Unpooled;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Queue;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.Semaphore;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.api.DigestType;
import org.apache.bookkeeper.client.api.LedgerEntries;
import org.apache.bookkeeper.client.api.LedgerEntry;
import org.apache.bookkeeper.client.api.LedgerMetadata;
import org.apache.bookkeeper.client.api.ReadHandle;
import org.apache.bookkeeper.client.api.WriteAdvHandle;
import org.apache.bookkeeper.conf.ClientConfiguration;

/**
 * Copies ledgers from one bookie cluster to another with BookKeeper's own client, 16 at once, as a benchmark orders it on the
 * standard input: "copy FIRST COUNT" copies so many ledgers from an id on, "write FIRST COUNT ENTRIES SIZE" makes as many in
 * the target from memory alone; both answer "answer SECONDS BYTES". Run with the jars of Pulsar: the metadata service URIs of
 * source and target.
 */
public class CopyPeer {

    private static final byte[] PASSWORD = new byte[0];
    private static final int LEDGERS_IN_FLIGHT = 16;
    private static final int BYTES_IN_FLIGHT = 128 << 20;
    private static final int CHUNK_ENTRIES = 1000;
    private static final int CHUNK_BYTES = 2 << 20;
    private static final int CHUNKS_IN_FLIGHT = 2;

    private final BookKeeper source;
    private final BookKeeper target;
    private final ExecutorService threads = Executors.newFixedThreadPool(LEDGERS_IN_FLIGHT);
    // An entry counts until the bookies have it.
    private final Semaphore bytes = new Semaphore(BYTES_IN_FLIGHT);

    /** Makes one ledger; returns its bytes. */
    interface Work {
        long run(long id) throws Exception;
    }

    CopyPeer(String source, String target) throws Exception {
        this.source = client(source);
        this.target = client(target);
    }

    public static void main(String[] args) throws Exception {
        CopyPeer peer = new CopyPeer(args[0], args[1]);
        BufferedReader orders = new BufferedReader(new InputStreamReader(System.in));
        System.out.println("answer ready");
        for (String order = orders.readLine(); order != null; order = orders.readLine()) {
            String[] words = order.split(" ");
            long first = Long.parseLong(words[1]);
            int count = Integer.parseInt(words[2]);
            long begin = System.nanoTime();
            long done;
            if (words[0].equals("copy")) {
                done = peer.all(first, count, peer::copy);
            } else {
                int entries = Integer.parseInt(words[3]);
                ByteBuf payload = Unpooled.directBuffer().writeZero(Integer.parseInt(words[4]));
                done = peer.all(first, count, id -> peer.write(id, entries, payload));
            }
            System.out.println("answer " + (System.nanoTime() - begin) / 1e9 + " " + done);
        }
        Runtime.getRuntime().halt(0);
    }

    private static BookKeeper client(String uri) throws Exception {
        ClientConfiguration configuration = new ClientConfiguration();
        configuration.setMetadataServiceUri(uri);
        // Its default is 5,000 entries a second; brokers turn it off too.
        configuration.setThrottleValue(0);
        return new BookKeeper(configuration);
    }

    private long all(long first, int count, Work work) throws Exception {
        List<Future<Long>> under = new ArrayList<>();
        for (long id = first; id < first + count; id++) {
            long wanted = id;
            under.add(threads.submit(() -> work.run(wanted)));
        }
        long done = 0;
        for (Future<Long> one : under) {
            done += one.get();
        }
        return done;
    }

    private long copy(long id) throws Exception {
        try (ReadHandle from = source.newOpenLedgerOp().withLedgerId(id).withRecovery(false).withPassword(PASSWORD)
                .execute().get()) {
            LedgerMetadata metadata = from.getLedgerMetadata();
            try (WriteAdvHandle to = create(id, metadata.getDigestType(), metadata.getPassword(), metadata.getEnsembleSize(),
                    metadata.getWriteQuorumSize(), metadata.getAckQuorumSize(), metadata.getCustomMetadata())) {
                copy(from, to);
                if (to.getLastAddConfirmed() != from.getLastAddConfirmed() || to.getLength() != from.getLength()) {
                    throw new IllegalStateException("ledger " + id + " was not copied whole");
                }
                return from.getLength();
            }
        }
    }

    private void copy(ReadHandle from, WriteAdvHandle to) throws Exception {
        long end = from.getLastAddConfirmed() + 1;
        long chunk = Math.max(1, Math.min(CHUNK_ENTRIES, CHUNK_BYTES * end / Math.max(1, from.getLength())));
        Queue<CompletableFuture<LedgerEntries>> asked = new ArrayDeque<>();
        CompletableFuture<Long> last = CompletableFuture.completedFuture(-1L);
        for (long next = 0; next < end || !asked.isEmpty(); ) {
            while (next < end && asked.size() < CHUNKS_IN_FLIGHT) {
                asked.add(from.readAsync(next, Math.min(next + chunk, end) - 1));
                next += chunk;
            }
            try (LedgerEntries entries = asked.remove().get()) {
                for (LedgerEntry entry : entries) {
                    last = add(to, entry.getEntryId(), entry.getEntryBuffer().retain());
                }
            }
        }
        // The adds of a ledger complete in order.
        last.get();
    }

    private long write(long id, int entries, ByteBuf payload) throws Exception {
        try (WriteAdvHandle to = create(id, DigestType.CRC32C, PASSWORD, 1, 1, 1, Map.of())) {
            CompletableFuture<Long> last = CompletableFuture.completedFuture(-1L);
            for (int entry = 0; entry < entries; entry++) {
                last = add(to, entry, payload.retainedDuplicate());
            }
            last.get();
            return to.getLength();
        }
    }

    private CompletableFuture<Long> add(WriteAdvHandle to, long entryId, ByteBuf payload) throws Exception {
        int size = payload.readableBytes();
        bytes.acquire(size);
        CompletableFuture<Long> added = to.writeAsync(entryId, payload);
        added.whenComplete((done, failure) -> bytes.release(size));
        return added;
    }

    private WriteAdvHandle create(long id, DigestType digest, byte[] password, int ensemble, int writeQuorum, int ackQuorum,
            Map<String, byte[]> custom) throws Exception {
        return target.newCreateLedgerOp().withDigestType(digest).withPassword(password).withEnsembleSize(ensemble)
                .withWriteQuorumSize(writeQuorum).withAckQuorumSize(ackQuorum).withCustomMetadata(custom).makeAdv()
                .withLedgerId(id).execute().get();
    }
}
