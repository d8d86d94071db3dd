package bookwarden.broker.marks;

import java.net.URLDecoder;
import java.nio.charset.StandardCharsets;
import java.util.List;

/** The kinds of ledgers in BookKeeper, as src/bookwarden/ledgers/kinds has them. */
enum Kind {
    DATA("MANAGED_LEDGER", "", "data"),
    CURSOR("MANAGED_CURSOR", "", "cursors"),
    BUCKET("DELAYED_INDEX_BUCKET", "buckets:", "buckets");

    /** The component, as marks name it. */
    final String component;
    /** Begins the text of a holder of the kind. */
    private final String prefix;
    /** The field of a node of the outbox. */
    final String field;

    Kind(String component, String prefix, String field) {
        this.component = component;
        this.prefix = prefix;
        this.field = field;
    }

    long[] ids(NamedLedgers ledgers) {
        return switch (this) {
            case DATA -> ledgers.data();
            case CURSOR -> ledgers.cursors();
            case BUCKET -> ledgers.buckets();
        };
    }

    /** Return this one ledger of the kind. */
    NamedLedgers only(long ledger) {
        long[] ids = {ledger};
        return switch (this) {
            case DATA -> NamedLedgers.ofTopic(ids, new long[] {}, List.of());
            case CURSOR -> NamedLedgers.ofCursor(ledger, new long[] {});
            case BUCKET -> NamedLedgers.ofCursor(-1, ids);
        };
    }

    /** Return the text of the holder, which is the key of its marks. */
    String holder(NodePath path) {
        return prefix + path;
    }

    /** Return the subscription of a mark, decoded; null for data ledgers. */
    String subscription(NodePath path) {
        return path.cursor() == null ? null : URLDecoder.decode(path.cursor(), StandardCharsets.UTF_8);
    }
}
