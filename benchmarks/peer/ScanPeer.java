import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.LongAdder;
import org.apache.bookkeeper.conf.ClientConfiguration;
import org.apache.bookkeeper.meta.LedgerManager;
import org.apache.bookkeeper.meta.LedgerManager.LedgerRangeIterator;
import org.apache.bookkeeper.meta.MetadataDrivers;

/**
 * Lists all ledgers and reads the metadata of each with BookKeeper's own ledger manager, as a benchmark orders it on
 * the standard input: "scan" answers "answer SECONDS LEDGERS FAILURES". Run with the jars of Pulsar: metadata service
 * URI, reads in flight.
 */
public class ScanPeer {

    private static final long LIST_TIMEOUT_MS = 60_000;

    public static void main(String[] args) throws Exception {
        ClientConfiguration configuration = new ClientConfiguration();
        configuration.setMetadataServiceUri(args[0]);
        int inFlight = Integer.parseInt(args[1]);
        ScheduledExecutorService scheduler = Executors.newSingleThreadScheduledExecutor();
        MetadataDrivers.runFunctionWithMetadataClientDriver(configuration, driver -> {
            try (LedgerManager ledgers = driver.getLedgerManagerFactory().newLedgerManager()) {
                serve(ledgers, inFlight);
                return null;
            } catch (Exception failure) {
                throw new IllegalStateException(failure);
            }
        }, scheduler);
        Runtime.getRuntime().halt(0);
    }

    private static void serve(LedgerManager ledgers, int inFlight) throws Exception {
        BufferedReader orders = new BufferedReader(new InputStreamReader(System.in));
        System.out.println("answer ready");
        while (orders.readLine() != null) {
            long begin = System.nanoTime();
            String counts = scan(ledgers, inFlight);
            System.out.println("answer " + (System.nanoTime() - begin) / 1e9 + " " + counts);
        }
    }

    private static String scan(LedgerManager ledgers, int inFlight) throws Exception {
        Semaphore places = new Semaphore(inFlight);
        LongAdder read = new LongAdder();
        LongAdder failed = new LongAdder();
        LedgerRangeIterator ranges = ledgers.getLedgerRanges(LIST_TIMEOUT_MS);
        while (ranges.hasNext()) {
            for (long id : ranges.next().getLedgers()) {
                places.acquire();
                ledgers.readLedgerMetadata(id).whenComplete((metadata, failure) -> {
                    (failure == null ? read : failed).increment();
                    places.release();
                });
            }
        }
        places.acquire(inFlight);
        return read.sum() + " " + failed.sum();
    }
}
