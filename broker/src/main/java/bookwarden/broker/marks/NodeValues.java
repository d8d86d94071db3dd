package bookwarden.broker.marks;

import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.SortedMap;
import java.util.TreeMap;
import java.util.UUID;
import java.util.function.LongPredicate;
import java.util.stream.LongStream;
import org.apache.bookkeeper.mledger.impl.MetaStoreImpl;

/**
 * Reads which ledgers the value of a node names. Where it is compressed, the broker's own parser takes that off; its
 * answer is of another class in 4.0 (protobuf) than in 4.2 (LightProto), but both write the same bytes, which are read
 * here. Field numbers: MLDataFormats.proto of Pulsar 4.0.8; the magic number: MetaStoreImpl.
 */
final class NodeValues {
    private static final String SHADOW_SOURCE = "PULSAR.SHADOW_SOURCE";
    private static final String DELAYED_BUCKET = "#pulsar.internal.delayed.bucket_";
    /** Begins a compressed value; no message of protobuf begins with it, since its wire type is 7. */
    private static final int COMPRESSED = 0x4778;
    private final MetaStoreImpl parser = new MetaStoreImpl(null, null);
    private final Method parseManagedLedger;
    private final Method parseCursor;

    NodeValues() throws NoSuchMethodException {
        parseManagedLedger = MetaStoreImpl.class.getMethod("parseManagedLedgerInfo", byte[].class);
        parseCursor = MetaStoreImpl.class.getMethod("parseManagedCursorInfo", byte[].class);
    }

    /** Return the ledgers that a value names; throws if it cannot be read as what the path says that it is. */
    NamedLedgers read(NodePath path, byte[] value) throws ReflectiveOperationException {
        if (value.length == 0) {
            return NamedLedgers.NONE;
        }
        return path.cursor() == null ? topic(plain(parseManagedLedger, value)) : cursor(plain(parseCursor, value));
    }

    /** Return the entries of some ledgers in the list of a topic, by id, but of those that are closed and empty. */
    SortedMap<Long, byte[]> entries(byte[] value, LongPredicate wanted) throws ReflectiveOperationException {
        SortedMap<Long, byte[]> entries = new TreeMap<>();
        for (Fields fields = new Fields(plain(parseManagedLedger, value)); fields.next();) {
            if (fields.number == 1) {
                byte[] entry = fields.bytes;
                long id = -1;
                boolean filled = false;
                boolean closed = false;
                for (Fields of = new Fields(entry); of.next();) {
                    id = of.number == 1 ? of.number64 : id;
                    filled |= of.number == 2 && of.number64 != 0;
                    closed |= of.number == 4 && of.number64 != 0;
                }
                if (wanted.test(id) && (filled || !closed)) {
                    entries.put(id, entry);
                }
            }
        }
        return entries;
    }

    /** Return whether the value of a schema's node, SchemaLocator, names a ledger: SchemaStorageFormat.proto. */
    static boolean isNamedBySchema(byte[] value, long ledger) {
        for (Fields fields = new Fields(value); fields.next();) {
            if (fields.number > 2) {
                continue;
            }
            for (Fields entry = new Fields(fields.bytes); entry.next();) {
                if (entry.number != 2) {
                    continue;
                }
                for (Fields position = new Fields(entry.bytes); position.next();) {
                    if (position.number == 1 && position.number64 == ledger) {
                        return true;
                    }
                }
            }
        }
        return false;
    }

    private byte[] plain(Method parse, byte[] value) throws ReflectiveOperationException {
        if (value.length < Short.BYTES || ByteBuffer.wrap(value).getShort() != COMPRESSED) {
            return value;
        }
        try {
            Object info = parse.invoke(parser, (Object) value);
            return (byte[]) info.getClass().getMethod("toByteArray").invoke(info);
        } catch (InvocationTargetException e) {
            throw new IllegalArgumentException("the broker's parser: " + e.getCause(), e.getCause());
        }
    }

    /** The ledgers in the list of a shadow topic are its source's: it drops none. */
    private static NamedLedgers topic(byte[] message) {
        LongStream.Builder data = LongStream.builder();
        LongStream.Builder removed = LongStream.builder();
        List<NamedLedgers.Copy> copies = new ArrayList<>();
        for (Fields fields = new Fields(message); fields.next();) {
            if (fields.number == 1) {
                ledger(fields.bytes, data, removed, copies);
            } else if (fields.number == 3 && SHADOW_SOURCE.equals(pair(fields.bytes).getKey())) {
                return NamedLedgers.NONE;
            }
        }
        return NamedLedgers.ofTopic(data.build().sorted().toArray(), removed.build().sorted().toArray(), copies);
    }

    private static void ledger(byte[] message, LongStream.Builder data, LongStream.Builder removed,
                               List<NamedLedgers.Copy> copies) {
        long id = -1;
        byte[] context = {};
        for (Fields fields = new Fields(message); fields.next();) {
            if (fields.number == 1) {
                id = fields.number64;
            } else if (fields.number == 5) {
                context = fields.bytes;
            }
        }
        if (id < 0) {
            throw new IllegalArgumentException("a ledger in the list has the id " + id);
        }
        data.add(id);
        if (copies(id, context, false, copies)) {
            removed.add(id);
        }
    }

    /**
     * Add the copies that an offload context, or a segment in it, names; return whether it says that the ledger was
     * removed from BookKeeper. Without a UUID no offload was begun.
     */
    private static boolean copies(long ledger, byte[] message, boolean segment, List<NamedLedgers.Copy> copies) {
        long msb = 0;
        long lsb = 0;
        boolean removed = false;
        byte[] driver = {};
        for (Fields fields = new Fields(message); fields.next();) {
            if (fields.number == 1) {
                msb = fields.number64;
            } else if (fields.number == 2) {
                lsb = fields.number64;
            } else if (fields.number == 4 && !segment) {
                removed = fields.number64 != 0;
            } else if (fields.number == (segment ? 7 : 6)) {
                driver = fields.bytes;
            } else if (fields.number == 7) {
                copies(ledger, fields.bytes, true, copies);
            }
        }
        if (msb != 0 || lsb != 0) {
            copies.add(new NamedLedgers.Copy(ledger, new UUID(msb, lsb), driver(driver, segment)));
        }
        return removed;
    }

    private static Driver driver(byte[] message, boolean segment) {
        String name = "";
        Map<String, String> metadata = new TreeMap<>();
        for (Fields fields = new Fields(message); fields.next();) {
            if (fields.number == 1) {
                name = fields.text();
            } else if (fields.number == 2) {
                Map.Entry<String, String> property = pair(fields.bytes);
                metadata.put(property.getKey(), property.getValue());
            }
        }
        if (segment) {
            metadata.put(Driver.LEGACY_SEGMENT, "true");
        }
        return new Driver(name, metadata);
    }

    /**
     * The compacted ledger in a property of the cursor is left out: the truth is in the cursor's ledger, and what the
     * node says is mostly stale.
     */
    private static NamedLedgers cursor(byte[] message) {
        long own = -1;
        LongStream.Builder buckets = LongStream.builder();
        for (Fields fields = new Fields(message); fields.next();) {
            if (fields.number == 1) {
                own = fields.number64;
            } else if (fields.number == 8) {
                Map.Entry<String, String> property = pair(fields.bytes);
                if (property.getKey().startsWith(DELAYED_BUCKET)) {
                    buckets.add(Long.parseLong(property.getValue()));
                }
            }
        }
        return NamedLedgers.ofCursor(own, buckets.build().sorted().toArray());
    }

    private static Map.Entry<String, String> pair(byte[] message) {
        String key = "";
        String value = "";
        for (Fields fields = new Fields(message); fields.next();) {
            if (fields.number == 1) {
                key = fields.text();
            } else if (fields.number == 2) {
                value = fields.text();
            }
        }
        return Map.entry(key, value);
    }

    /** The fields of a protobuf message, one after another. */
    private static final class Fields {
        private final ByteBuffer rest;
        private int number;
        private long number64;
        private byte[] bytes;

        private Fields(byte[] message) {
            rest = ByteBuffer.wrap(message);
        }

        /** Go to the next field; false at the end. */
        private boolean next() {
            if (!rest.hasRemaining()) {
                return false;
            }
            long tag = varint();
            number = (int) (tag >>> 3);
            bytes = new byte[] {};
            number64 = 0;
            switch ((int) tag & 7) {
                case 0 -> number64 = varint();
                case 1 -> number64 = Long.reverseBytes(rest.getLong());
                case 2 -> rest.get(bytes = new byte[length()]);
                case 5 -> number64 = Integer.reverseBytes(rest.getInt());
                default -> throw new IllegalArgumentException("field " + number + " has the wire type " + (tag & 7));
            }
            return true;
        }

        private int length() {
            long length = varint();
            if (length < 0 || length > rest.remaining()) {
                throw new IllegalArgumentException("field " + number + " is longer than its message");
            }
            return (int) length;
        }

        private long varint() {
            long value = 0;
            for (int shift = 0; shift < 64; shift += 7) {
                byte each = rest.get();
                value |= (long) (each & 0x7f) << shift;
                if (each >= 0) {
                    return value;
                }
            }
            throw new IllegalArgumentException("a number of more than 64 bits");
        }

        private String text() {
            return new String(bytes, StandardCharsets.UTF_8);
        }
    }
}
