package bookwarden.broker.marks;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.IOException;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.List;
import java.util.function.LongPredicate;
import java.util.function.LongSupplier;

/**
 * How far the sweep is behind with the ledgers that this broker left to it: the age of the oldest, and their bytes. Not
 * each is remembered, but a few of each hundredth of the limits, with the sums up to them: the sweep has come past them
 * once one of them is gone, since it goes through marks by and by. It survives a restart in a node, JSON, described in
 * docs/broker-marks.md.
 */
final class SweepProgress {
    private static final int FORMAT = 1;
    /** Steps to a limit. */
    private static final int STEPS = 100;
    /** Some marks end without a delete: the ledgers of a sample are not all of one drop that failed. */
    private static final int OF_A_SAMPLE = 8;
    private static final ObjectMapper JSON = new ObjectMapper();

    /** Ledgers that were left from a time on, and the sums before the first of them. */
    private record Sample(long time, long ledgersBefore, long bytesBefore, List<Long> ledgers) {
    }

    private final MarkSettings.Limits limits;
    private final LongSupplier clock;
    private final Deque<Sample> samples = new ArrayDeque<>();
    private long ledgers;
    private long bytes;
    private int next;

    /**
     * @param clock milliseconds since the epoch
     */
    SweepProgress(MarkSettings.Limits limits, LongSupplier clock) {
        this.limits = limits;
        this.clock = clock;
    }

    /** Note that so many ledgers of this size, and among them this one, were left to the sweep. */
    synchronized void add(long ledger, long count, long size) {
        Sample last = samples.peekLast();
        if (last == null || clock.getAsLong() - last.time >= limits.maxAgeMillis() / STEPS
                || bytes - last.bytesBefore >= limits.maxBytes() / STEPS) {
            last = new Sample(clock.getAsLong(), ledgers, bytes, new ArrayList<>());
            samples.add(last);
        }
        if (last.ledgers.size() < OF_A_SAMPLE) {
            last.ledgers.add(ledger);
        }
        ledgers += count;
        bytes += count * size;
    }

    /** Return the number of ledgers that wait for the sweep, about. */
    synchronized long ledgers() {
        return samples.isEmpty() ? 0 : ledgers - samples.peekFirst().ledgersBefore;
    }

    /** Return their bytes. */
    synchronized long bytes() {
        return samples.isEmpty() ? 0 : bytes - samples.peekFirst().bytesBefore;
    }

    /** Return the age of the oldest; 0 if there is none. */
    synchronized long oldestMillis() {
        return samples.isEmpty() ? 0 : Math.max(0, clock.getAsLong() - samples.peekFirst().time);
    }

    /** Return which limit is exceeded, so that nothing more is left to the sweep; empty if none is. */
    synchronized String exceeded() {
        return oldestMillis() > limits.maxAgeMillis() ? "age" : bytes() > limits.maxBytes() ? "bytes" : "";
    }

    /**
     * Look how far the sweep has come: at the oldest sample, and in turn at one of the others, since the marks of one
     * may all be stuck.
     *
     * @param gone asks whether BookKeeper has a ledger no more; false where that is not known
     */
    void look(LongPredicate gone) {
        while (true) {
            List<Sample> now;
            synchronized (this) {
                now = new ArrayList<>(samples);
                next++;
            }
            if (now.isEmpty()) {
                return;
            }
            Sample other = now.get(next % now.size());
            Sample passed = isPassed(other, gone) ? other : isPassed(now.get(0), gone) ? now.get(0) : null;
            if (passed == null) {
                return;
            }
            synchronized (this) {
                while (samples.peekFirst() != null && samples.peekFirst().time <= passed.time
                        && samples.peekFirst().ledgersBefore <= passed.ledgersBefore) {
                    samples.removeFirst();
                }
            }
        }
    }

    private boolean isPassed(Sample sample, LongPredicate gone) {
        List<Long> of;
        synchronized (this) {
            of = List.copyOf(sample.ledgers);
        }
        return of.stream().anyMatch(gone::test);
    }

    synchronized byte[] encode() throws JsonProcessingException {
        ObjectNode fields = JSON.createObjectNode().put("format", FORMAT).put("ledgers", ledgers).put("bytes", bytes);
        ArrayNode all = fields.putArray("samples");
        for (Sample each : samples) {
            ArrayNode of = all.addObject().put("time", each.time).put("ledgersBefore", each.ledgersBefore)
                    .put("bytesBefore", each.bytesBefore).putArray("ledgers");
            each.ledgers.forEach(of::add);
        }
        return JSON.writeValueAsBytes(fields);
    }

    /** Go on from what a former start of this broker wrote; IOException if it is of another format. */
    synchronized void decode(byte[] value) throws IOException {
        try {
            JsonNode fields = JSON.readTree(value);
            if (fields == null || fields.path("format").asInt() != FORMAT) {
                throw new IOException("format " + (fields == null ? null : fields.get("format")) + " is not " + FORMAT);
            }
            List<Sample> read = new ArrayList<>();
            for (JsonNode each : fields.get("samples")) {
                List<Long> of = new ArrayList<>();
                each.get("ledgers").forEach(id -> of.add(id.longValue()));
                read.add(new Sample(each.get("time").longValue(), each.get("ledgersBefore").longValue(),
                        each.get("bytesBefore").longValue(), of));
            }
            ledgers = fields.get("ledgers").longValue();
            bytes = fields.get("bytes").longValue();
            samples.addAll(read);
        } catch (RuntimeException e) {
            throw new IOException("not as it must be: " + e, e);
        }
    }
}
