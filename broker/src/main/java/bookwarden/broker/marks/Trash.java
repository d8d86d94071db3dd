package bookwarden.broker.marks;

import static java.nio.charset.StandardCharsets.UTF_8;

import bookwarden.broker.Answers;
import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.ByteArrayOutputStream;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.ExecutionException;
import org.apache.pulsar.metadata.api.MetadataStoreException;
import org.apache.pulsar.metadata.api.extended.MetadataStoreExtended;

/**
 * Nodes of the trash, each with as many drops as it has room for: docs/trash.md. Drops are appended to the last node
 * until it is full or somebody else has changed it, as the sweep does. For one thread.
 */
final class Trash {
    static final String ROOT = "/bookwarden/trash/records";
    private static final byte[] BEGIN = "{\"format\":2,\"drops\":[".getBytes(UTF_8);
    private static final byte[] END = "],\"drivers\":[]}".getBytes(UTF_8);
    private static final ObjectMapper JSON = new ObjectMapper();

    private final MetadataStoreExtended store;
    private final String folder;
    private final long limitMillis;
    private long number;
    /** Of the last node, with ``drops``; -1: it is not there yet. */
    private long version = -1;
    private List<byte[]> drops = new ArrayList<>();
    private int bytes;

    /**
     * @param folder the name of a folder that nobody else adds to
     */
    Trash(MetadataStoreExtended store, String folder, long limitMillis) {
        this.store = store;
        this.folder = ROOT + "/" + folder;
        this.limitMillis = limitMillis;
    }

    /** Put drops of the outbox's format 2; they are durable when it returns. Where it throws, some may be. */
    void add(List<JsonNode> added) throws ExecutionException, InterruptedException, JsonProcessingException {
        List<byte[]> rest = new ArrayList<>();
        for (JsonNode each : added) {
            byte[] drop = JSON.writeValueAsBytes(each);
            if (bytes + size(rest) + drop.length + 1 > Outbox.NODE_BYTES - BEGIN.length - END.length) {
                put(rest);
                rest = new ArrayList<>();
                next();
            }
            rest.add(drop);
        }
        put(rest);
    }

    private static int size(List<byte[]> of) {
        return of.stream().mapToInt(each -> each.length + 1).sum();
    }

    private void next() {
        if (!drops.isEmpty()) {
            number++;
            version = -1;
            drops = new ArrayList<>();
            bytes = 0;
        }
    }

    /** Append drops to the last node, or, if that is not as it was written here, put them into the next one. */
    private void put(List<byte[]> added) throws ExecutionException, InterruptedException {
        if (added.isEmpty()) {
            return;
        }
        while (true) {
            boolean first = version < 0;
            List<byte[]> all = new ArrayList<>(drops);
            all.addAll(added);
            drops = all;
            bytes = size(all);
            try {
                version = Answers.within(limitMillis, store.put(folder + "/" + number / Outbox.BLOCK + "/" + number,
                        value(all), Optional.of(version))).get().getVersion();
                return;
            } catch (ExecutionException e) {
                next();
                // A first one that is there is a put of ours that was not answered: one more node is tried.
                if (first || !(Answers.cause(e) instanceof MetadataStoreException.BadVersionException)) {
                    throw e;
                }
            }
        }
    }

    private static byte[] value(List<byte[]> of) {
        ByteArrayOutputStream value = new ByteArrayOutputStream();
        value.writeBytes(BEGIN);
        for (int index = 0; index < of.size(); index++) {
            if (index > 0) {
                value.write(',');
            }
            value.writeBytes(of.get(index));
        }
        value.writeBytes(END);
        return value.toByteArray();
    }
}
