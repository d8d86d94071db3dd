package bookwarden.broker;

import com.fasterxml.jackson.core.JsonParser;
import com.fasterxml.jackson.databind.DeserializationFeature;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.IOException;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Set;
import java.util.HashSet;
import java.util.List;
import java.util.Iterator;
import java.util.Arrays;
import java.util.regex.Pattern;

/**
 * Reads the value of the registry's node. Whoever reads half of it would write to the wrong cluster, so that anything
 * that is not as it must be is an error. Format: src/bookwarden/bookie_clusters/registry.py, with the same rules; both are
 * tested with the files of tests/data/bookie_cluster_registry.
 */
final class RegistryFormat {
    private static final int FORMAT = 1;
    private static final Pattern NAME = Pattern.compile("[A-Za-z0-9][A-Za-z0-9._-]{0,62}");
    private static final Pattern OWNER = Pattern.compile("[0-9a-f]{8}");
    private static final ObjectMapper JSON = new ObjectMapper()
            .enable(JsonParser.Feature.STRICT_DUPLICATE_DETECTION)
            .enable(DeserializationFeature.FAIL_ON_TRAILING_TOKENS);

    private RegistryFormat() {
    }

    /** Parse the value of the node; IOException if anything in it is not as it must be. */
    static Registry parse(byte[] value) throws IOException {
        JsonNode fields = object(JSON.readTree(value), "the registry");
        if (whole(fields, "format") != FORMAT) {
            throw new IOException("format " + fields.get("format") + " is not " + FORMAT
                    + ": this broker needs the jar of the bookwarden that wrote it");
        }
        Map<String, Registry.Entry> clusters = new LinkedHashMap<>();
        Map<String, Registry.Ownership> ownership = new LinkedHashMap<>();
        for (Iterator<Map.Entry<String, JsonNode>> each = object(fields.get("clusters"), "clusters").fields();
                each.hasNext();) {
            Map.Entry<String, JsonNode> field = each.next();
            clusters.put(field.getKey(), entry(field.getKey(), field.getValue()));
            ownership.put(field.getKey(), ownership(field.getValue()));
        }
        checkDirective(fields.get("directive"), text(fields, "active"));
        Registry registry = new Registry(whole(fields, "epoch"), text(fields, "owner"),
                formerOwners(fields), root(fields, "idRoot"), text(fields, "active"), Map.copyOf(clusters),
                Map.copyOf(ownership));
        check(registry, fields.get("clusters"));
        return registry;
    }

    private static void check(Registry registry, JsonNode clusters) throws IOException {
        Set<String> owners = new HashSet<>(registry.formerOwners());
        owners.add(registry.owner());
        for (String owner : owners) {
            if (!OWNER.matcher(owner).matches()) {
                throw new IOException("owner '" + owner + "' is not eight hexadecimal digits");
            }
        }
        if (!registry.clusters().containsKey(registry.active())) {
            throw new IOException("the active cluster '" + registry.active() + "' is not among the clusters");
        }
        if (clusters.get(registry.active()).get("deprecated").booleanValue()) {
            throw new IOException("the active cluster '" + registry.active() + "' is deprecated");
        }
        Set<List<String>> places = new HashSet<>();
        for (Registry.Entry each : registry.clusters().values()) {
            if (each.since() > registry.epoch()) {
                throw new IOException("cluster '" + each.name() + "' was registered after epoch " + registry.epoch());
            }
            if (!places.add(Arrays.asList(each.storeUrl(), each.ledgersRoot()))) {
                throw new IOException("cluster '" + each.name() + "' has the ledgers root of another, "
                        + each.ledgersRoot());
            }
        }
    }

    private static Registry.Entry entry(String name, JsonNode value) throws IOException {
        if (!NAME.matcher(name).matches()) {
            throw new IOException("'" + name + "' is no name of a bookie cluster");
        }
        JsonNode fields = object(value, "cluster '" + name + "'");
        text(fields, "metadataServiceUri");
        flag(fields, "deprecated");
        JsonNode storeUrl = fields.get("storeUrl");
        return new Registry.Entry(name, storeUrl == null || storeUrl.isNull() ? null : text(fields, "storeUrl"),
                root(fields, "ledgersRoot"), text(fields, "instance"), whole(fields, "since"));
    }

    /** Of an entry that was read already. */
    private static Registry.Ownership ownership(JsonNode fields) throws IOException {
        JsonNode below = fields.get("unmarkedBelow");
        return new Registry.Ownership(flag(fields, "bootstrap"), flag(fields, "shared"),
                below == null || below.isNull() ? null : whole(fields, "unmarkedBelow"));
    }

    private static Set<String> formerOwners(JsonNode fields) throws IOException {
        Set<String> owners = new HashSet<>();
        JsonNode value = fields.get("formerOwners");
        if (value != null && !value.isArray()) {
            throw new IOException("formerOwners is no list of texts");
        }
        for (JsonNode each : value == null ? List.<JsonNode>of() : value) {
            if (!each.isTextual()) {
                throw new IOException("formerOwners is no list of texts");
            }
            owners.add(each.textValue());
        }
        return Set.copyOf(owners);
    }

    /** The broker needs nothing of the order to switch, but a node with a broken one is a broken node. */
    private static void checkDirective(JsonNode directive, String active) throws IOException {
        if (directive == null || directive.isNull()) {
            return;
        }
        JsonNode fields = object(directive, "directive");
        text(fields, "source");
        if (!text(fields, "target").equals(active)) {
            throw new IOException("the newest order made '" + text(fields, "target") + "' active, not '" + active + "'");
        }
        text(fields, "origin");
        whole(fields, "epoch");
        whole(fields, "time");
    }

    private static JsonNode object(JsonNode value, String what) throws IOException {
        if (value == null || !value.isObject()) {
            throw new IOException(what + " is no JSON object");
        }
        return value;
    }

    private static String text(JsonNode fields, String name) throws IOException {
        JsonNode value = fields.get(name);
        if (value == null || !value.isTextual() || value.textValue().isEmpty()) {
            throw new IOException(name + " is no text");
        }
        return value.textValue();
    }

    private static String root(JsonNode fields, String name) throws IOException {
        String value = text(fields, name);
        if (!value.startsWith("/") || value.endsWith("/") || value.contains("//")) {
            throw new IOException(name + " '" + value + "' is no path of a node");
        }
        return value;
    }

    private static long whole(JsonNode fields, String name) throws IOException {
        JsonNode value = fields.get(name);
        if (value == null || !value.isIntegralNumber() || !value.canConvertToLong() || value.longValue() < 0) {
            throw new IOException(name + " is no whole number from 0");
        }
        return value.longValue();
    }

    private static boolean flag(JsonNode fields, String name) throws IOException {
        JsonNode value = fields.get(name);
        if (value == null || !value.isBoolean()) {
            throw new IOException(name + " is neither true nor false");
        }
        return value.booleanValue();
    }
}
