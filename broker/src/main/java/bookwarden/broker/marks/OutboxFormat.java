package bookwarden.broker.marks;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.IOException;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.UUID;
import java.util.stream.LongStream;

/**
 * Nodes of the outbox: JSON, described in docs/broker-marks.md. Ids grow, and each is written as its distance from the
 * one before. A reader ignores fields that it does not know, and keeps a node of a format that it does not know: what
 * must not be lost with a node, as a former value, needs a new format.
 */
final class OutboxFormat {
    private static final int FORMAT = 1;
    /** Room that a drop takes besides its names, its ids and its copies. */
    private static final int DROP_CHARACTERS = 120;
    private static final int ID_CHARACTERS = 21;
    /** Room of a copy besides its driver. */
    private static final int COPY_CHARACTERS = 70;
    private static final ObjectMapper JSON = new ObjectMapper();

    private OutboxFormat() {
    }

    /**
     * The value of a node, and which of the drops it has a part of.
     *
     * @param drops positions in the list that was encoded
     */
    record Encoded(byte[] value, List<Integer> drops) {
    }

    /** Pack drops into as few nodes as hold them; one of more than ``limit`` bytes is divided. */
    static List<Encoded> encode(List<Drop> drops, int limit) throws JsonProcessingException {
        List<Encoded> nodes = new ArrayList<>();
        Page page = new Page();
        for (int index = 0; index < drops.size(); index++) {
            Drop drop = drops.get(index);
            NamedLedgers ledgers = drop.ledgers();
            int name = drop.path().toString().length();
            for (Kind kind : Kind.values()) {
                for (long id : kind.ids(ledgers)) {
                    page = page.with(limit, ID_CHARACTERS + name, nodes);
                    page.id(drop, index, kind, id);
                }
            }
            for (NamedLedgers.Copy copy : ledgers.copies()) {
                page = page.with(limit, COPY_CHARACTERS + name + page.room(copy.driver()), nodes);
                page.copy(drop, index, copy);
            }
        }
        page.end(nodes);
        return nodes;
    }

    /** Read the drops of a node; IOException if it is of another format, or not as it must be. */
    static List<Drop> decode(byte[] value) throws IOException {
        try {
            JsonNode fields = JSON.readTree(value);
            if (fields == null || fields.path("format").asInt() != FORMAT) {
                throw new IOException("format " + (fields == null ? null : fields.get("format")) + " is not " + FORMAT);
            }
            List<Driver> drivers = new ArrayList<>();
            for (JsonNode each : fields.path("drivers")) {
                Map<String, String> metadata = new TreeMap<>();
                each.path("metadata").fields().forEachRemaining(
                        field -> metadata.put(field.getKey(), field.getValue().textValue()));
                drivers.add(new Driver(each.path("name").asText(), metadata));
            }
            List<Drop> drops = new ArrayList<>();
            for (JsonNode each : fields.path("drops")) {
                drops.add(drop(each, drivers));
            }
            return drops;
        } catch (RuntimeException e) {
            throw new IOException("not as it must be: " + e, e);
        }
    }

    private static Drop drop(JsonNode fields, List<Driver> drivers) {
        List<NamedLedgers.Copy> copies = new ArrayList<>();
        for (JsonNode each : fields.path("copies")) {
            copies.add(new NamedLedgers.Copy(each.get(0).longValue(), UUID.fromString(each.get(1).textValue()),
                    drivers.get(each.get(2).intValue())));
        }
        JsonNode cursor = fields.get("cursor");
        NodePath path = new NodePath(fields.get("managedLedger").textValue(),
                cursor == null ? null : cursor.textValue());
        return new Drop(path, fields.get("time").longValue(), new NamedLedgers(ids(fields, Kind.DATA), new long[] {},
                copies, ids(fields, Kind.CURSOR), ids(fields, Kind.BUCKET)));
    }

    private static long[] ids(JsonNode fields, Kind kind) {
        LongStream.Builder ids = LongStream.builder();
        long id = 0;
        for (JsonNode distance : fields.path(kind.field)) {
            id += distance.longValue();
            ids.add(id);
        }
        return ids.build().toArray();
    }

    /** The value of one node, while it is filled. */
    private static final class Page {
        private final ObjectNode fields = JSON.createObjectNode();
        private final ArrayNode drops;
        private final ArrayNode drivers;
        private final Map<Driver, Integer> driverNumbers = new HashMap<>();
        private final List<Integer> indexes = new ArrayList<>();
        private final Map<Kind, Long> last = new HashMap<>();
        private ObjectNode drop;
        private int characters = DROP_CHARACTERS;

        private Page() {
            fields.put("format", FORMAT);
            drops = fields.putArray("drops");
            drivers = fields.putArray("drivers");
        }

        /** Return this page, or where it has no room the next one. */
        private Page with(int limit, int room, List<Encoded> nodes) throws JsonProcessingException {
            if (indexes.isEmpty() || characters + room + DROP_CHARACTERS <= limit) {
                return this;
            }
            end(nodes);
            return new Page();
        }

        private void end(List<Encoded> nodes) throws JsonProcessingException {
            if (!indexes.isEmpty()) {
                nodes.add(new Encoded(JSON.writeValueAsBytes(fields), List.copyOf(indexes)));
            }
        }

        private void id(Drop of, int index, Kind kind, long id) {
            open(of, index);
            long distance = id - last.getOrDefault(kind, 0L);
            last.put(kind, id);
            drop.withArray(kind.field).add(distance);
            characters += Long.toString(distance).length() + 1;
        }

        private void copy(Drop of, int index, NamedLedgers.Copy copy) throws JsonProcessingException {
            open(of, index);
            characters += COPY_CHARACTERS + room(copy.driver());
            int number = driverNumbers.computeIfAbsent(copy.driver(), driver -> {
                ObjectNode added = drivers.addObject().put("name", driver.name());
                ObjectNode metadata = added.putObject("metadata");
                driver.metadata().forEach(metadata::put);
                return drivers.size() - 1;
            });
            drop.withArray("copies").addArray().add(copy.ledger()).add(copy.uuid().toString()).add(number);
        }

        private int room(Driver driver) throws JsonProcessingException {
            return driverNumbers.containsKey(driver) ? 0 : JSON.writeValueAsBytes(driver.metadata()).length + 100;
        }

        private void open(Drop of, int index) {
            if (!indexes.isEmpty() && indexes.get(indexes.size() - 1) == index) {
                return;
            }
            indexes.add(index);
            last.clear();
            drop = drops.addObject().put("managedLedger", of.path().managedLedger());
            if (of.path().cursor() != null) {
                drop.put("cursor", of.path().cursor());
            }
            drop.put("time", of.time());
            characters += DROP_CHARACTERS + of.path().toString().length();
        }
    }
}
