package bookwarden.broker;

import static bookwarden.broker.Site.errorOf;
import static bookwarden.broker.Site.get;
import static bookwarden.broker.Site.ledger;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.Map;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import org.apache.bookkeeper.client.BKException;
import org.apache.bookkeeper.client.api.LedgerMetadata;
import org.apache.bookkeeper.versioning.LongVersion;
import org.apache.bookkeeper.versioning.Versioned;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;

/** What a search makes of answers in any order, and of none. Of the clusters a and b the active one is b. */
class LedgerSearchTest {
    private static final long PATIENCE_MILLIS = 10;
    private static final BKException ABSENT = new BKException.BKNoSuchLedgerExistsOnMetadataServerException();
    private static final BKException OUTAGE = new BKException.MetaStoreException();
    private Site site;
    private ClusterView view;
    private final CompletableFuture<Versioned<LedgerMetadata>> fromA = new CompletableFuture<>();
    private final CompletableFuture<Versioned<LedgerMetadata>> fromB = new CompletableFuture<>();
    private final CompletableFuture<Void> aWasAsked = new CompletableFuture<>();

    @BeforeEach
    void start() throws Exception {
        site = new Site();
        // Whatever finds that a cluster answers takes its silence back.
        site.pollMillis = 600_000;
        site.cluster("a", "a1:3181");
        site.cluster("b", "b1:3181");
        site.register("b", "a");
        view = site.follow().view();
    }

    @AfterEach
    void stop() throws Exception {
        site.close();
    }

    private CompletableFuture<Optional<LedgerSearch.Found>> search() {
        Map<String, CompletableFuture<Versioned<LedgerMetadata>>> answers = Map.of("a", fromA, "b", fromB);
        return new LedgerSearch(view, 1, view.byReading(), cluster -> {
            if (cluster.name().equals("a")) {
                aWasAsked.complete(null);
            }
            return answers.get(cluster.name());
        }, PATIENCE_MILLIS).run();
    }

    private static Versioned<LedgerMetadata> metadata() {
        return new Versioned<>(ledger(1, "x1:3181").build(), new LongVersion(0));
    }

    private static String placeOf(CompletableFuture<Optional<LedgerSearch.Found>> search) throws Exception {
        return get(search).orElseThrow().cluster().name();
    }

    @Test
    void whileTheFirstIsSilentTheNextAnswers() throws Exception {
        fromA.complete(metadata());
        assertEquals("a", placeOf(search()));
        assertTrue(view.active().isSilent());
        assertEquals("a", view.readingOrder().get(0).name());
        get(view.active().readNow(1).exceptionally(absent -> null));
        assertEquals("b", view.readingOrder().get(0).name());
    }

    @Test
    void theNextIsNotAskedWhileTheFirstMayAnswerSoon() throws Exception {
        fromB.complete(metadata());
        assertEquals("b", placeOf(search()));
        assertFalse(aWasAsked.isDone());
    }

    @Test
    void aLateAnswerCounts() throws Exception {
        fromA.completeExceptionally(ABSENT);
        CompletableFuture<Optional<LedgerSearch.Found>> search = search();
        get(aWasAsked);
        fromB.complete(metadata());
        assertEquals("b", placeOf(search));
    }

    @Test
    void silenceIsNeverTakenForAbsent() throws Exception {
        fromA.completeExceptionally(ABSENT);
        CompletableFuture<Optional<LedgerSearch.Found>> search = search();
        get(aWasAsked);
        assertFalse(search.isDone());
        fromB.completeExceptionally(OUTAGE);
        assertEquals(OUTAGE.getCode(), errorOf(search));
    }

    @Test
    void whatOneDidNotSayIsNotAbsentWhereverItComesInTheOrder() throws Exception {
        fromA.completeExceptionally(OUTAGE);
        CompletableFuture<Optional<LedgerSearch.Found>> search = search();
        get(aWasAsked);
        fromB.completeExceptionally(ABSENT);
        assertEquals(OUTAGE.getCode(), errorOf(search));
    }

    @Test
    void anErrorOfOneIsNoMatterIfAnotherHasIt() throws Exception {
        fromB.completeExceptionally(OUTAGE);
        fromA.complete(metadata());
        assertEquals("a", placeOf(search()));
    }

    @Test
    void itIsAbsentOnceAllSaidSo() throws Exception {
        fromA.completeExceptionally(ABSENT);
        fromB.completeExceptionally(ABSENT);
        assertTrue(get(search()).isEmpty());
    }
}
