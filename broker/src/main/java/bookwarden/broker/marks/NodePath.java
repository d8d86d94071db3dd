package bookwarden.broker.marks;

import java.util.Arrays;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/**
 * A node below /managed-ledgers that names ledgers.
 *
 * @param managedLedger tenant/namespace/persistent/topic, with the topic's name encoded
 * @param cursor the encoded name of the subscription whose node this is; null: it is the managed ledger's own
 */
record NodePath(String managedLedger, String cursor) {
    private static final String ROOT = "/managed-ledgers/";
    private static final String DOMAIN = "persistent";
    private static final String PARTITIONED = "/admin/partitioned-topics/";
    private static final Pattern PARTITION = Pattern.compile("(.+)-partition-\\d+");

    /** Return what a path names; null if it is not the node of a managed ledger or a cursor. */
    static NodePath of(String path) {
        if (!path.startsWith(ROOT)) {
            return null;
        }
        String[] names = path.substring(ROOT.length()).split("/", -1);
        // tenant/namespace/persistent/topic; topics of the first version have a cluster too.
        int domain = names.length > 3 && names[2].equals(DOMAIN) ? 2 : 3;
        if (names.length < domain + 2 || names.length > domain + 3 || !names[domain].equals(DOMAIN)) {
            return null;
        }
        String cursor = names.length == domain + 3 ? names[domain + 2] : null;
        return new NodePath(String.join("/", Arrays.copyOf(names, domain + 2)), cursor);
    }

    /** Return the node of a managed ledger, or of a cursor of it; null for what is no name of one. */
    static NodePath of(String managedLedger, String cursor) {
        NodePath found = of(ROOT + managedLedger);
        return found == null || found.cursor != null ? null : new NodePath(managedLedger, cursor);
    }

    /** Return the path of the node of the partitioned topic whose partition this is; null if it is none. */
    String partitionedTopic() {
        Matcher matcher = PARTITION.matcher(managedLedger);
        return cursor == null && matcher.matches() ? PARTITIONED + matcher.group(1) : null;
    }

    /** Return the path of the node. */
    String path() {
        return ROOT + this;
    }

    @Override
    public String toString() {
        return cursor == null ? managedLedger : managedLedger + "/" + cursor;
    }
}
