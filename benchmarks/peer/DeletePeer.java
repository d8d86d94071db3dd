import io.oxia.client.api.AsyncOxiaClient;
import io.oxia.client.api.OxiaClientBuilder;
import io.oxia.client.api.options.DeleteOption;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.LongAdder;
import org.apache.bookkeeper.client.BKException;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.api.LedgerMetadata;
import org.apache.bookkeeper.conf.ClientConfiguration;
import org.apache.bookkeeper.meta.LedgerMetadataSerDe;
import org.apache.bookkeeper.util.StringUtils;
import org.apache.zookeeper.Op;
import org.apache.zookeeper.Watcher.Event.KeeperState;
import org.apache.zookeeper.ZooKeeper;

/**
 * Deletes ledgers as a benchmark orders it on the standard input: "FIRST COUNT TOPICS" are so many ledgers from an id on,
 * of which the topics take turns; the answer is "answer SECONDS DELETED". Run with the jars of Pulsar: the kind, the
 * address, what the topics' names begin with. The kinds are
 * bookkeeper: BookKeeper's client reads the metadata of each, checks whose it is, and deletes it, 1,000 in flight;
 * oxia: the same through Oxia's client alone, with the version that was read;
 * multi: ZooKeeper's client deletes their nodes unread, in multis of 100, 8 in flight.
 */
public class DeletePeer {

    private static final int IN_FLIGHT = 1000;
    private static final int PER_MULTI = 100;
    private static final int MULTIS_IN_FLIGHT = 8;
    private static final int SESSION_MS = 30_000;
    private static final byte[] APPLICATION = "pulsar".getBytes();
    private static final byte[] COMPONENT = "managed-ledger".getBytes();

    /** Deletes ledgers, each with the name of its managed ledger; returns how many it deleted. */
    interface Client {
        long delete(long[] ids, byte[][] owners) throws Exception;
    }

    /** Reads, checks and deletes one ledger; tells whether it deleted it. */
    interface CheckedDelete {
        CompletableFuture<Boolean> start(long id, byte[] owner);
    }

    public static void main(String[] args) throws Exception {
        Client client = switch (args[0]) {
            case "bookkeeper" -> bookKeeper(args[1]);
            case "oxia" -> oxia(args[1]);
            case "multi" -> multis(args[1]);
            default -> throw new IllegalArgumentException(args[0]);
        };
        BufferedReader orders = new BufferedReader(new InputStreamReader(System.in));
        System.out.println("answer ready");
        for (String order = orders.readLine(); order != null; order = orders.readLine()) {
            long[] numbers = Arrays.stream(order.split(" ")).mapToLong(Long::parseLong).toArray();
            answer(client, numbers[0], (int) numbers[1], (int) numbers[2], args[2]);
        }
        Runtime.getRuntime().halt(0);
    }

    private static void answer(Client client, long first, int count, int topics, String prefix) throws Exception {
        long[] ids = new long[count];
        byte[][] owners = new byte[count][];
        int next = 0;
        for (int topic = 0; topic < topics; topic++) {
            byte[] owner = String.format("%s%06d", prefix, topic).getBytes();
            for (long id = first + topic; id < first + count; id += topics) {
                ids[next] = id;
                owners[next++] = owner;
            }
        }
        long begin = System.nanoTime();
        long deleted = client.delete(ids, owners);
        System.out.println("answer " + (System.nanoTime() - begin) / 1e9 + " " + deleted);
    }

    private static Client bookKeeper(String uri) throws Exception {
        ClientConfiguration configuration = new ClientConfiguration();
        configuration.setMetadataServiceUri(uri);
        BookKeeper client = new BookKeeper(configuration);
        return oneByOne((id, owner) -> client.getLedgerManager().readLedgerMetadata(id).thenCompose(read -> {
            CompletableFuture<Boolean> deleted = new CompletableFuture<>();
            if (isOf(owner, read.getValue())) {
                client.asyncDeleteLedger(id, (code, context) -> deleted.complete(code == BKException.Code.OK), null);
            } else {
                deleted.complete(false);
            }
            return deleted;
        }));
    }

    private static Client oxia(String address) throws Exception {
        AsyncOxiaClient client = OxiaClientBuilder.create(address).asyncClient().get();
        LedgerMetadataSerDe parser = new LedgerMetadataSerDe();
        return oneByOne((id, owner) -> {
            String path = path(id);
            return client.get(path).thenCompose(read -> {
                if (read == null || !isOf(owner, parsed(parser, read.value(), id))) {
                    return CompletableFuture.completedFuture(false);
                }
                return client.delete(path, Set.of(DeleteOption.IfVersionIdEquals(read.version().versionId())));
            });
        });
    }

    private static Client oneByOne(CheckedDelete checkedDelete) {
        return (ids, owners) -> {
            Semaphore places = new Semaphore(IN_FLIGHT);
            LongAdder deleted = new LongAdder();
            for (int at = 0; at < ids.length; at++) {
                places.acquire();
                checkedDelete.start(ids[at], owners[at]).whenComplete((done, failure) -> {
                    if (failure == null && done) {
                        deleted.increment();
                    }
                    places.release();
                });
            }
            places.acquire(IN_FLIGHT);
            return deleted.sum();
        };
    }

    private static Client multis(String address) throws Exception {
        CountDownLatch connected = new CountDownLatch(1);
        ZooKeeper client = new ZooKeeper(address, SESSION_MS, event -> {
            if (event.getState() == KeeperState.SyncConnected) {
                connected.countDown();
            }
        });
        connected.await();
        return (ids, owners) -> {
            Semaphore places = new Semaphore(MULTIS_IN_FLIGHT);
            LongAdder deleted = new LongAdder();
            for (int begin = 0; begin < ids.length; begin += PER_MULTI) {
                List<Op> batch = new ArrayList<>();
                for (int at = begin; at < Math.min(begin + PER_MULTI, ids.length); at++) {
                    batch.add(Op.delete(path(ids[at]), 0));
                }
                places.acquire();
                client.multi(batch, (code, path, context, results) -> {
                    // All or nothing.
                    if (code == 0) {
                        deleted.add(batch.size());
                    }
                    places.release();
                }, null);
            }
            places.acquire(MULTIS_IN_FLIGHT);
            return deleted.sum();
        };
    }

    private static String path(long id) {
        return "/ledgers" + StringUtils.getHybridHierarchicalLedgerPath(id);
    }

    private static LedgerMetadata parsed(LedgerMetadataSerDe parser, byte[] value, long id) {
        try {
            return parser.parseConfig(value, id, Optional.empty());
        } catch (java.io.IOException failure) {
            throw new java.io.UncheckedIOException(failure);
        }
    }

    private static boolean isOf(byte[] owner, LedgerMetadata metadata) {
        Map<String, byte[]> custom = metadata.getCustomMetadata();
        return Arrays.equals(APPLICATION, custom.get("application"))
                && Arrays.equals(COMPONENT, custom.get("component"))
                && Arrays.equals(owner, custom.get("pulsar/managed-ledger"))
                && !custom.containsKey("pulsar/cursor");
    }
}
