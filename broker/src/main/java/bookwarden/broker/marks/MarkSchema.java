package bookwarden.broker.marks;

import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import org.apache.avro.Schema;
import org.apache.avro.generic.GenericData;
import org.apache.avro.generic.GenericDatumWriter;
import org.apache.avro.generic.GenericRecord;
import org.apache.avro.generic.GenericRecordBuilder;
import org.apache.avro.io.BinaryEncoder;
import org.apache.avro.io.EncoderFactory;
import org.apache.pulsar.common.schema.SchemaInfo;
import org.apache.pulsar.common.schema.SchemaType;

/**
 * The Avro schema of the deletion topic, as `bookwarden init` wrote it: schemas/pending_ledger_deletion.avsc, or a
 * later one whose further fields have defaults.
 */
final class MarkSchema implements org.apache.pulsar.client.api.Schema<byte[]> {
    private final String text;
    private final Schema record;
    private final Schema context;
    private final GenericDatumWriter<GenericRecord> writer;

    /** Raises RuntimeException for a text that is no such schema. */
    MarkSchema(String text) {
        this.text = text;
        record = new Schema.Parser().parse(text);
        context = record.getField("offloadContext").schema().getTypes().stream()
                .filter(each -> each.getType() == Schema.Type.RECORD).findFirst().orElseThrow();
        writer = new GenericDatumWriter<>(record);
    }

    /** Encode a mark; the reason is for people. */
    byte[] encode(Mark mark, String reason) throws IOException {
        GenericRecordBuilder fields = new GenericRecordBuilder(record)
                .set("topicName", mark.path().managedLedger())
                .set("ledgerComponent", mark.kind().component)
                .set("cursorName", mark.kind().subscription(mark.path()))
                .set("ledgerType", mark.ledgerType())
                .set("ledgerId", mark.ledger())
                .set("offloadContext", mark.copy() == null ? null : context(mark.copy()))
                .set("markedAt", mark.markedAt())
                .set("reason", reason);
        ByteArrayOutputStream output = new ByteArrayOutputStream();
        BinaryEncoder encoder = EncoderFactory.get().binaryEncoder(output, null);
        writer.write(fields.build(), encoder);
        encoder.flush();
        return output.toByteArray();
    }

    private GenericData.Record context(NamedLedgers.Copy copy) {
        GenericData.Record fields = new GenericData.Record(context);
        fields.put("msb", copy.uuid().getMostSignificantBits());
        fields.put("lsb", copy.uuid().getLeastSignificantBits());
        fields.put("driverName", copy.driver().name());
        fields.put("metadata", copy.driver().metadata());
        return fields;
    }

    @Override
    public byte[] encode(byte[] message) {
        return message;
    }

    @Override
    public SchemaInfo getSchemaInfo() {
        return SchemaInfo.builder().name(record.getName()).type(SchemaType.AVRO)
                .schema(text.getBytes(StandardCharsets.UTF_8)).properties(Map.of()).build();
    }

    /** Return its text. */
    @Override
    public String toString() {
        return text;
    }

    @Override
    public MarkSchema clone() {
        return new MarkSchema(text);
    }
}
