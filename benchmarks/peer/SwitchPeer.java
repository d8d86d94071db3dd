import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.api.DigestType;
import org.apache.bookkeeper.client.api.ReadHandle;
import org.apache.bookkeeper.client.api.WriteHandle;
import org.apache.bookkeeper.conf.ClientConfiguration;
import org.apache.pulsar.metadata.api.MetadataStoreConfig;
import org.apache.pulsar.metadata.api.extended.MetadataStoreExtended;
import org.apache.pulsar.metadata.bookkeeper.AbstractMetadataDriver;

/**
 * Creates, opens and deletes ledgers of an entry with BookKeeper's own client, as brokers do, one after the other: an order is
 * their number, the answer the medians in seconds of create, open and delete. Run with the jars of Pulsar: metadata service URI,
 * and Pulsar's own metadata store.
 */
public class SwitchPeer {

    private static final byte[] PASSWORD = new byte[0];

    public static void main(String[] args) throws Exception {
        ClientConfiguration configuration = new ClientConfiguration();
        configuration.setMetadataServiceUri(args[0]);
        // As brokers do, which give all their clients the store that they have.
        configuration.setProperty(AbstractMetadataDriver.METADATA_STORE_INSTANCE,
                MetadataStoreExtended.create(args[1], MetadataStoreConfig.builder().build()));
        BookKeeper client = new BookKeeper(configuration);
        BufferedReader orders = new BufferedReader(new InputStreamReader(System.in));
        System.out.println("answer ready");
        for (String order = orders.readLine(); order != null; order = orders.readLine()) {
            System.out.println("answer " + round(client, Integer.parseInt(order)));
        }
        Runtime.getRuntime().halt(0);
    }

    private static String round(BookKeeper client, int count) throws Exception {
        double[] create = new double[count];
        double[] open = new double[count];
        double[] delete = new double[count];
        List<Long> ids = new ArrayList<>();
        for (int number = 0; number < count; number++) {
            long begin = System.nanoTime();
            try (WriteHandle ledger = client.newCreateLedgerOp().withDigestType(DigestType.CRC32C).withPassword(PASSWORD)
                    .withEnsembleSize(2).withWriteQuorumSize(2).withAckQuorumSize(2).execute().get()) {
                create[number] = since(begin);
                ledger.append(new byte[100]);
                ids.add(ledger.getId());
            }
        }
        for (int number = 0; number < count; number++) {
            long begin = System.nanoTime();
            // With recovery, as brokers open.
            try (ReadHandle ledger = client.newOpenLedgerOp().withLedgerId(ids.get(number)).withRecovery(true)
                    .withDigestType(DigestType.CRC32C).withPassword(PASSWORD).execute().get()) {
                open[number] = since(begin);
            }
        }
        for (int number = 0; number < count; number++) {
            long begin = System.nanoTime();
            client.newDeleteLedgerOp().withLedgerId(ids.get(number)).execute().get();
            delete[number] = since(begin);
        }
        return median(create) + " " + median(open) + " " + median(delete);
    }

    private static double since(long begin) {
        return (System.nanoTime() - begin) / 1e9;
    }

    private static double median(double[] times) {
        Arrays.sort(times);
        return times[times.length / 2];
    }
}
