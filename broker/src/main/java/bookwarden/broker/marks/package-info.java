/**
 * A broker marks the ledgers that leave its metadata, before they leave it (phase one of PIP-186).
 *
 * <p>{@link bookwarden.broker.marks.MarkingManagedLedgerStorage} is what broker.conf names. It gives the managed ledger
 * factory a metadata store ({@link bookwarden.broker.marks.MarkingStore}) that compares the old and the new value of
 * each write below /managed-ledgers: {@link bookwarden.broker.marks.NamedLedgers} decides what the new value no longer
 * names. That goes into the {@link bookwarden.broker.marks.Outbox}, nodes of the same store, and only then the write
 * goes on. The {@link bookwarden.broker.marks.Forwarder} sends what is in the outbox to the deletion topic.
 *
 * <p>What must never happen is that a write of the broker fails, or waits for ever, because of a mark: one failed trim
 * stops publishing. Each error of ours lets the write go on unmarked, and is counted.
 */
package bookwarden.broker.marks;
