package bookwarden.broker.marks;

import java.util.Arrays;
import java.util.UUID;
import org.apache.bookkeeper.mledger.proto.MLDataFormats;
import org.apache.bookkeeper.mledger.proto.MLDataFormats.ManagedCursorInfo;
import org.apache.bookkeeper.mledger.proto.MLDataFormats.ManagedLedgerInfo;
import org.apache.bookkeeper.mledger.proto.MLDataFormats.ManagedLedgerInfo.LedgerInfo;
import org.apache.bookkeeper.mledger.proto.MLDataFormats.OffloadContext;
import org.apache.bookkeeper.mledger.proto.MLDataFormats.OffloadDriverMetadata;
import org.apache.bookkeeper.mledger.proto.MLDataFormats.OffloadSegment;

/** Values of nodes, by the broker's own classes. */
final class NodeWriter {
    static final UUID FIRST = new UUID(11, -12);
    static final UUID SECOND = new UUID(21, 22);
    static final String TOPIC = "/managed-ledgers/t/n/persistent/topic";

    private NodeWriter() {
    }

    static byte[] topic(LedgerInfo... ledgers) {
        return ManagedLedgerInfo.newBuilder().addAllLedgerInfo(Arrays.asList(ledgers)).build().toByteArray();
    }

    static byte[] topic(long... ids) {
        return topic(Arrays.stream(ids).mapToObj(NodeWriter::ledger).toArray(LedgerInfo[]::new));
    }

    static byte[] shadow(long id) {
        return ManagedLedgerInfo.newBuilder().addLedgerInfo(ledger(id)).addProperties(
                MLDataFormats.KeyValue.newBuilder().setKey("PULSAR.SHADOW_SOURCE").setValue("persistent://t/n/x"))
                .build().toByteArray();
    }

    static LedgerInfo ledger(long id) {
        return LedgerInfo.newBuilder().setLedgerId(id).setEntries(10).setSize(100).setTimestamp(1_700_000_000_000L)
                .build();
    }

    static LedgerInfo offloaded(long id, UUID uuid, boolean complete, boolean removed) {
        return ledger(id).toBuilder().setOffloadContext(OffloadContext.newBuilder()
                .setUidMsb(uuid.getMostSignificantBits()).setUidLsb(uuid.getLeastSignificantBits())
                .setComplete(complete).setBookkeeperDeleted(removed).setTimestamp(5)
                .setDriverMetadata(driver("aws-s3"))).build();
    }

    static LedgerInfo segmented(long id, UUID uuid) {
        return ledger(id).toBuilder().setOffloadContext(OffloadContext.newBuilder().addOffloadSegment(
                OffloadSegment.newBuilder().setUidMsb(uuid.getMostSignificantBits())
                        .setUidLsb(uuid.getLeastSignificantBits()).setComplete(true)
                        .setDriverMetadata(driver("S3")))).build();
    }

    private static OffloadDriverMetadata driver(String name) {
        return OffloadDriverMetadata.newBuilder().setName(name).addProperties(
                MLDataFormats.KeyValue.newBuilder().setKey("bucket").setValue("b")).build();
    }

    static byte[] cursor(long ledger, long... buckets) {
        ManagedCursorInfo.Builder info = ManagedCursorInfo.newBuilder().setCursorsLedgerId(ledger)
                .setMarkDeleteLedgerId(1).setMarkDeleteEntryId(-1).addProperties(
                        MLDataFormats.LongProperty.newBuilder().setName("CompactedTopicLedger").setValue(77))
                .addCursorProperties(MLDataFormats.StringProperty.newBuilder().setName("mine").setValue("1"));
        for (long bucket : buckets) {
            info.addCursorProperties(MLDataFormats.StringProperty.newBuilder()
                    .setName("#pulsar.internal.delayed.bucket_" + bucket + "_" + bucket)
                    .setValue(Long.toString(bucket)));
        }
        return info.build().toByteArray();
    }
}
