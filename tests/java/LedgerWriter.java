import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.api.DigestType;
import org.apache.bookkeeper.client.api.WriteHandle;
import org.apache.bookkeeper.conf.ClientConfiguration;

/**
 * Writes ledgers with BookKeeper's own client. Run with the jars of Pulsar: metadata service URI, then for each ledger
 * digest,ensemble,write quorum,ack quorum,entries,password,end, where end is "closed", "open" or "told" (it stays
 * open, and the client tells the bookies the last confirmed entry by itself). Entry n has n * 37 % 2048 bytes, byte i
 * of it being n + i. Prints "ledger ID" for each.
 */
public class LedgerWriter {

    public static void main(String[] args) {
        int exitCode = 0;
        try {
            writeAll(args);
        } catch (Exception failure) {
            failure.printStackTrace();
            exitCode = 1;
        }
        // Nothing may close the ledgers that are to stay open.
        Runtime.getRuntime().halt(exitCode);
    }

    private static void writeAll(String[] args) throws Exception {
        for (int index = 1; index < args.length; index++) {
            String[] spec = args[index].split(",", -1);
            ClientConfiguration configuration = new ClientConfiguration();
            configuration.setMetadataServiceUri(args[0]);
            boolean told = spec[6].equals("told");
            if (told) {
                configuration.setExplictLacInterval(50);
            }
            BookKeeper client = new BookKeeper(configuration);
            WriteHandle ledger = write(client, spec);
            System.out.println("ledger " + ledger.getId());
            if (spec[6].equals("closed")) {
                ledger.close();
                client.close();
            } else if (told) {
                Thread.sleep(2000);
            }
        }
    }

    private static WriteHandle write(BookKeeper client, String[] spec) throws Exception {
        WriteHandle ledger = client.newCreateLedgerOp()
                .withDigestType(DigestType.valueOf(spec[0]))
                .withEnsembleSize(Integer.parseInt(spec[1]))
                .withWriteQuorumSize(Integer.parseInt(spec[2]))
                .withAckQuorumSize(Integer.parseInt(spec[3]))
                .withPassword(spec[5].getBytes("UTF-8"))
                .execute().get();
        for (int entry = 0; entry < Integer.parseInt(spec[4]); entry++) {
            byte[] payload = new byte[entry * 37 % 2048];
            for (int index = 0; index < payload.length; index++) {
                payload[index] = (byte) (entry + index);
            }
            ledger.append(payload);
        }
        return ledger;
    }
}
