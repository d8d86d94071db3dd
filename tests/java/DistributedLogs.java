import java.net.URI;
import java.nio.charset.StandardCharsets;
import org.apache.distributedlog.DistributedLogConfiguration;
import org.apache.distributedlog.LogRecord;
import org.apache.distributedlog.api.DistributedLogManager;
import org.apache.distributedlog.api.namespace.Namespace;
import org.apache.distributedlog.api.namespace.NamespaceBuilder;

/**
 * Writes logs as Pulsar's functions worker does: one that is completed, and one that is left open. Run with the jars of
 * Pulsar: ZooKeeper's address, and the path of the namespace, which initialize-cluster-metadata made.
 */
public class DistributedLogs {

    public static void main(String[] args) throws Exception {
        URI uri = URI.create("distributedlog://" + args[0] + args[1]);
        DistributedLogConfiguration conf = new DistributedLogConfiguration()
            .setWriteLockEnabled(false)
            .setOutputBufferSize(256 * 1024)
            .setPeriodicFlushFrequencyMilliSeconds(0)
            .setWriteQuorumSize(1)
            .setEnsembleSize(1)
            .setAckQuorumSize(1)
            .setUseDaemonThread(true);
        Namespace namespace = NamespaceBuilder.newBuilder().conf(conf).uri(uri).clientId("test").build();
        write(namespace, "tenant/ns/function/archive", true);
        write(namespace, "open", false);
        // Ended at once, as a worker that crashes: the second log keeps its segment in progress.
        System.out.flush();
        Runtime.getRuntime().halt(0);
    }

    private static void write(Namespace namespace, String name, boolean complete) throws Exception {
        namespace.createLog(name);
        DistributedLogManager log = namespace.openLog(name);
        org.apache.distributedlog.api.LogWriter writer = log.openLogWriter();
        writer.write(new LogRecord(1, "entry".getBytes(StandardCharsets.UTF_8)));
        writer.flush();
        writer.commit();
        if (complete) {
            writer.markEndOfStream();
            writer.close();
            log.close();
        }
    }
}
