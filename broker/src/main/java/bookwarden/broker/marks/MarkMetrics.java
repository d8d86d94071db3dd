package bookwarden.broker.marks;

import io.prometheus.client.Counter;
import io.prometheus.client.Gauge;
import java.util.List;

/** Metrics of the marks, on the broker's own endpoint, which prints the default registry. */
final class MarkMetrics {
    /** What copies of object stores are counted as, among the components of ledgers. */
    static final String COPY = "OFFLOADED_COPY";
    static final List<String> LEDGER_TYPES = List.of("LEDGER", "OFFLOAD_LEDGER");
    static final String DELETION = "deletion";
    static final Counter STORED = Counter.build("bookwarden_outbox_ledgers_stored_total",
            "Ledgers and offloaded copies put into the outbox before they left the metadata.").labelNames("kind")
            .register();
    static final Counter GONE = Counter.build("bookwarden_outbox_ledgers_gone_total",
            "Ledgers of the outbox that the broker itself deleted: no mark was sent.").register();
    static final Counter SENT = Counter.build("bookwarden_pending_deletions_sent_total",
            "Messages the broker confirmed.").labelNames("ledger_type", "destination").register();
    static final Counter FAILED = Counter.build("bookwarden_marks_failed_total",
            "Marks the broker did not confirm; they stay in the outbox and are sent again.").labelNames("ledger_type")
            .register();
    static final Counter UNMARKED = Counter.build("bookwarden_unmarked_writes_total",
            "Writes that dropped ledgers, or may have, and went on before the outbox had these.").labelNames("reason")
            .register();
    static final Gauge NODES = Gauge.build("bookwarden_outbox_nodes",
            "Nodes of the outbox that this broker forwards.").register();
    static final Gauge BYTES = Gauge.build("bookwarden_outbox_bytes",
            "Bytes that this broker has in the outbox.").register();
    static final Gauge OLDEST = Gauge.build("bookwarden_outbox_oldest_seconds",
            "Age of the oldest node of the outbox that this broker forwards; 0 if there is none.").register();
    static final Counter LEFT = Counter.build("bookwarden_ledgers_left_to_sweep_total",
            "Ledgers that the broker did not delete, since the sweep does (mode two-phase).").register();
    static final Counter KEPT = Counter.build("bookwarden_ledgers_kept_in_trash_total",
            "Ledgers that the broker did not delete, since the trash keeps them (mode two-phase).").register();
    static final Gauge LEFT_LEDGERS = Gauge.build("bookwarden_left_to_sweep_ledgers",
            "Ledgers left to the sweep that it has not deleted yet, about.").register();
    static final Gauge LEFT_BYTES = Gauge.build("bookwarden_left_to_sweep_bytes",
            "Bytes of the ledgers left to the sweep that it has not deleted yet, about, with their copies.").register();
    static final Gauge LEFT_OLDEST = Gauge.build("bookwarden_left_to_sweep_oldest_seconds",
            "Age of the oldest ledger left to the sweep; 0 if there is none.").register();
    static final Gauge EXCEEDED = Gauge.build("bookwarden_left_to_sweep_limit_exceeded",
            "1 while the sweep is behind by more than a limit, so that the broker deletes ledgers by itself.")
            .labelNames("limit").register();
    static final Gauge WAITING = Gauge.build("bookwarden_outbox_waiting_for_topic",
            "1 while there are marks to send and no deletion topic that keeps them.").register();

    static {
        // Each series is there with 0 from the start.
        for (Kind kind : Kind.values()) {
            STORED.labels(kind.component);
        }
        STORED.labels(COPY);
        LEDGER_TYPES.forEach(type -> {
            SENT.labels(type, DELETION);
            FAILED.labels(type);
        });
        List.of("error", "full", "read", "store").forEach(UNMARKED::labels);
        List.of("age", "bytes").forEach(EXCEEDED::labels);
    }

    private MarkMetrics() {
    }
}
