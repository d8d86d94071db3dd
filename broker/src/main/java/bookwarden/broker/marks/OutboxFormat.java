package bookwarden.broker.marks;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.IOException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Base64;
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
    /** Of drops that the trash keeps. */
    private static final int KEPT_FORMAT = 2;
    /** Room that a drop takes besides its names, its ids and its copies. */
    private static final int DROP_CHARACTERS = 120;
    private static final int ID_CHARACTERS = 21;
    /** What drops that are kept have more. */
    private static final int CREATED_CHARACTERS = 40;
    /** Room of a copy besides its driver. */
    private static final int COPY_CHARACTERS = 70;
    /** Room that the former value of a node takes besides the value. */
    private static final int NODE_CHARACTERS = 200;
    /** A longer value of a node is divided. */
    private static final int PART_BYTES = 30_000;
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

    /**
     * Pack drops into as few nodes as hold them: those of the same node into one, with the time of the last; one of more
     * than ``limit`` bytes is divided. Drops that the trash keeps share no node with others.
     */
    static List<Encoded> encode(List<Drop> drops, int limit) throws JsonProcessingException {
        List<Encoded> nodes = new ArrayList<>();
        Page marked = new Page(FORMAT);
        Page kept = new Page(KEPT_FORMAT);
        for (int index = 0; index < drops.size(); index++) {
            if (drops.get(index).former() == null) {
                marked = marked(drops.get(index), index, marked, limit, nodes);
            } else {
                kept = kept(drops.get(index), index, kept, limit, nodes);
            }
        }
        marked.end(nodes);
        kept.end(nodes);
        return nodes;
    }

    private static Page marked(Drop drop, int index, Page begun, int limit, List<Encoded> nodes)
            throws JsonProcessingException {
        Page page = begun;
        int name = drop.path().toString().length();
        for (Kind kind : Kind.values()) {
            for (long id : kind.ids(drop.ledgers())) {
                page = page.with(limit, ID_CHARACTERS + name, nodes);
                page.id(drop, index, kind.field, id);
            }
        }
        for (NamedLedgers.Copy copy : drop.ledgers().copies()) {
            page = page.with(limit, COPY_CHARACTERS + name + page.room(copy.driver()), nodes);
            page.copy(drop, index, copy);
        }
        return page;
    }

    private static Page kept(Drop drop, int index, Page begun, int limit, List<Encoded> nodes)
            throws JsonProcessingException {
        Page page = begun;
        Former former = drop.former();
        int name = drop.path().toString().length();
        for (Kind kind : Kind.values()) {
            for (long id : kind.ids(drop.ledgers())) {
                String entry = kind != Kind.DATA || !former.entries().containsKey(id) ? null
                        : Base64.getEncoder().encodeToString(former.entries().get(id));
                page = page.with(limit, ID_CHARACTERS + name + (entry == null ? 0 : entry.length() + 3), nodes);
                page.id(drop, index, kind.field, id);
                if (entry != null) {
                    page.entry(entry);
                }
            }
        }
        if (former.field() != null) {
            page = page.with(limit, ID_CHARACTERS + name, nodes);
            page.id(drop, index, former.field(), former.ledger());
        }
        if (former.node() != null) {
            byte[] value = former.node().value();
            int parts = Math.max(1, (value.length + PART_BYTES - 1) / PART_BYTES);
            for (int part = 1; part <= parts; part++) {
                String text = Base64.getEncoder().encodeToString(Arrays.copyOfRange(value, (part - 1) * PART_BYTES,
                        Math.min(value.length, part * PART_BYTES)));
                // With the first part is the partitioned topic's node.
                String partitioned = part > 1 || former.partitioned() == null ? ""
                        : Base64.getEncoder().encodeToString(former.partitioned());
                // One part in each node of the outbox: a drop has one former value.
                page = part > 1 ? page.fresh(nodes) : page.with(limit,
                        text.length() + partitioned.length() + NODE_CHARACTERS + 2 * name, nodes);
                page.node(drop, index, text, part, parts);
                if (!partitioned.isEmpty()) {
                    page.partitioned(partitioned);
                }
                if (former.position() != null) {
                    page.position(former.position());
                }
            }
        }
        return page;
    }

    /** Return the drops of a node whose drops the trash keeps, as they are written; null if it is none. */
    static List<JsonNode> kept(byte[] value) throws IOException {
        JsonNode fields = JSON.readTree(value);
        if (fields == null || fields.path("format").asInt() != KEPT_FORMAT) {
            return null;
        }
        List<JsonNode> drops = new ArrayList<>();
        for (JsonNode each : fields.path("drops")) {
            if (!each.path("managedLedger").isTextual() || !each.path("created").isIntegralNumber()) {
                throw new IOException("a drop is not as it must be");
            }
            drops.add(each);
        }
        return drops;
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
        /** By the node that named the ledgers; one that the trash keeps is by itself. */
        private final Map<Object, Opened> opened = new HashMap<>();
        private ObjectNode drop;
        /** Room that a drop takes here besides its names and what it has. */
        private final int dropCharacters;
        private int characters;

        private Page(int format) {
            dropCharacters = format == FORMAT ? DROP_CHARACTERS : DROP_CHARACTERS + CREATED_CHARACTERS;
            characters = dropCharacters;
            fields.put("format", format);
            drops = fields.putArray("drops");
            drivers = fields.putArray("drivers");
        }

        /** Return this page, or where it has no room the next one. */
        private Page with(int limit, int room, List<Encoded> nodes) throws JsonProcessingException {
            return indexes.isEmpty() || characters + room + dropCharacters <= limit ? this : fresh(nodes);
        }

        private Page fresh(List<Encoded> nodes) throws JsonProcessingException {
            end(nodes);
            return new Page(fields.get("format").intValue());
        }

        private void end(List<Encoded> nodes) throws JsonProcessingException {
            if (!indexes.isEmpty()) {
                nodes.add(new Encoded(JSON.writeValueAsBytes(fields), List.copyOf(indexes)));
            }
        }

        private void id(Drop of, int index, String field, long id) {
            Opened now = open(of, index, field, id);
            long distance = id - now.last.getOrDefault(field, 0L);
            now.last.put(field, id);
            drop.withArray(field).add(distance);
            characters += Long.toString(distance).length() + 1;
        }

        /** Add the entry of the id that was added last. */
        private void entry(String entry) {
            drop.withArray("entries").add(entry);
            characters += entry.length() + 3;
        }

        private void node(Drop of, int index, String value, int part, int parts) {
            open(of, index, "", 0);
            Former former = of.former();
            ObjectNode node = drop.putObject(former.schema() == null ? "node" : "schema");
            if (former.schema() != null) {
                node.put("id", former.schema());
            }
            node.put("value", value).put("version", former.node().version())
                    .put("created", former.node().created()).put("modified", former.node().modified());
            if (parts > 1) {
                node.putArray("part").add(part).add(parts);
            }
            characters += value.length() + NODE_CHARACTERS + of.path().toString().length();
        }

        /** Add the node of the partitioned topic to the node that was added last. */
        private void partitioned(String value) {
            drop.put("partitioned", value);
            characters += value.length() + 20;
        }

        /** Add where a cursor is to its node, which was added last. */
        private void position(List<Long> of) {
            drop.putArray("position").add(of.get(0)).add(of.get(1));
            characters += 2 * ID_CHARACTERS + 20;
        }

        private void copy(Drop of, int index, NamedLedgers.Copy copy) throws JsonProcessingException {
            open(of, index, "", 0);
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

        /** Go on with what was begun of the same node, unless that has this id in the field, or a larger one. */
        private Opened open(Drop of, int index, String field, long id) {
            if (indexes.isEmpty() || indexes.get(indexes.size() - 1) != index) {
                indexes.add(index);
            }
            Object key = of.former() == null ? of.path() : index;
            Opened now = opened.get(key);
            if (now == null || id <= now.last.getOrDefault(field, -1L)) {
                now = new Opened(drops.addObject().put("managedLedger", of.path().managedLedger()), new HashMap<>());
                opened.put(key, now);
                if (of.path().cursor() != null) {
                    now.drop.put("cursor", of.path().cursor());
                }
                now.drop.put("time", of.time());
                if (of.former() != null) {
                    now.drop.put("created", of.former().created());
                }
                characters += dropCharacters + of.path().toString().length();
            }
            drop = now.drop.put("time", of.time());
            return now;
        }
    }

    /** A drop of a page, and the last id of each of its fields. */
    private record Opened(ObjectNode drop, Map<String, Long> last) {
    }
}
