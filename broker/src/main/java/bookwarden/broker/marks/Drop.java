package bookwarden.broker.marks;

/**
 * Ledgers that the next value of a node no longer names.
 *
 * @param path the node that named them
 * @param time when that value was to be written, in milliseconds since the epoch
 * @param ledgers only those that are named no more
 * @param former what the trash keeps besides; null: they are marked, and not kept
 */
record Drop(NodePath path, long time, NamedLedgers ledgers, Former former) {
    Drop(NodePath path, long time, NamedLedgers ledgers) {
        this(path, time, ledgers, null);
    }
}
