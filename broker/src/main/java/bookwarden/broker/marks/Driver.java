package bookwarden.broker.marks;

import java.util.Map;

/**
 * Where an offloaded copy is, as the broker recorded it with the ledger.
 *
 * @param name of the driver; may be empty
 * @param metadata bucket, region, endpoint
 */
record Driver(String name, Map<String, String> metadata) {
    /** Set in the metadata of a segment of the former streaming offload, whose objects have other names. */
    static final String LEGACY_SEGMENT = "bookwarden.legacySegment";
}
