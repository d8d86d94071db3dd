package bookwarden.broker;

import static bookwarden.broker.Site.errorOf;
import static bookwarden.broker.Site.get;
import static bookwarden.broker.Site.ledger;
import static java.nio.charset.StandardCharsets.UTF_8;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import org.apache.bookkeeper.client.BKException;
import org.apache.bookkeeper.client.LedgerMetadataBuilder;
import org.apache.bookkeeper.client.api.LedgerMetadata;
import org.apache.bookkeeper.meta.LedgerMetadataSerDe;
import org.apache.bookkeeper.versioning.LongVersion;
import org.apache.bookkeeper.versioning.Version;
import org.apache.bookkeeper.versioning.Versioned;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;

/** Which cluster a ledger is created in, read from, written to and removed from: a is Pulsar's own, b elsewhere. */
class RoutingTest {
    private static final int ABSENT = BKException.Code.NoSuchLedgerExistsOnMetadataServerException;
    private static final String[] OF_A = {"a1:3181", "a2:3181"};
    private static final String[] OF_B = {"b1:3181", "b2:3181"};
    private Site site;
    private Site.Cluster a;
    private Site.Cluster b;
    private ClusterFollower follower;
    private RoutingLedgerManager ledgers;

    @BeforeEach
    void start() throws Exception {
        site = new Site();
        a = site.cluster("a", OF_A[0], OF_A[1], "a3:3181");
        b = site.flaky("b", false, OF_B[0], OF_B[1]);
        site.register("a");
        site.register("b", "a");
        follow();
    }

    private void follow() throws Exception {
        follower = site.follow();
        ledgers = new RoutingLedgerManager(follower);
    }

    @AfterEach
    void stop() throws Exception {
        ledgers.close();
        site.close();
    }

    private static LedgerMetadata copy(LedgerMetadataBuilder builder, String mark) {
        return builder.withCustomMetadata(Map.of(LedgerMarks.COPY, mark.getBytes(UTF_8))).build();
    }

    private static LedgerMetadataBuilder closed(long id, long last, long length, String... bookies) {
        return ledger(id, bookies).withClosedState().withLastEntryId(last).withLength(length);
    }

    private String placeOf(long id) throws Exception {
        return ((PlacedVersion) get(ledgers.readLedgerMetadata(id)).getVersion()).cluster();
    }

    @Test
    void aLedgerIsCreatedInTheClusterOfItsBookiesWhateverIsActive() throws Exception {
        get(ledgers.createLedgerMetadata(1, ledger(1, OF_A).build()));
        get(ledgers.createLedgerMetadata(2, ledger(2, OF_B).build()));
        assertTrue(site.has(a, 1) && !site.has(b, 1));
        assertTrue(site.has(b, 2) && !site.has(a, 2));
    }

    @Test
    void aCreatedLedgerHasTheOwnersMarkAndTheClientSeesIt() throws Exception {
        Versioned<LedgerMetadata> made = get(ledgers.createLedgerMetadata(1,
                ledger(1, OF_A).withCustomMetadata(Map.of("component", "x".getBytes(UTF_8))).build()));
        assertArrayEquals(Site.OWNER.getBytes(UTF_8), made.getValue().getCustomMetadata().get(LedgerMarks.OWNER));
        LedgerMetadata read = get(ledgers.readLedgerMetadata(1)).getValue();
        assertArrayEquals(Site.OWNER.getBytes(UTF_8), read.getCustomMetadata().get(LedgerMarks.OWNER));
        assertArrayEquals("x".getBytes(UTF_8), read.getCustomMetadata().get("component"));
    }

    @Test
    void anEnsembleOfTwoClustersOrOfNoneIsRefused() throws Exception {
        int refused = BKException.Code.NotEnoughBookiesException;
        assertEquals(refused, errorOf(ledgers.createLedgerMetadata(1, ledger(1, OF_A[0], OF_B[0]).build())));
        assertEquals(refused, errorOf(ledgers.createLedgerMetadata(1, ledger(1, "c1:3181").build())));
        assertFalse(site.has(a, 1) || site.has(b, 1));
    }

    @Test
    void anUnknownBookieIsNoDoubtAsLongAsOthersTellTheCluster() throws Exception {
        get(ledgers.createLedgerMetadata(1, ledger(1, "c1:3181", OF_A[0]).build()));
        assertTrue(site.has(a, 1));
    }

    @Test
    void anIdThatIsTakenIsLedgerExistSoThatTheClientTakesTheNext() throws Exception {
        get(ledgers.createLedgerMetadata(1, ledger(1, OF_A).build()));
        assertEquals(BKException.Code.LedgerExistException,
                errorOf(ledgers.createLedgerMetadata(1, ledger(1, OF_A).build())));
    }

    @Test
    void theActiveClusterIsReadFirst() throws Exception {
        site.plant(a, closed(1, 9, 90, OF_A).build());
        site.plant(b, copy(closed(1, 9, 90, OF_B), "9:90"));
        assertEquals("b", placeOf(1));
        site.register("a", "b");
        site.await(follower, 3);
        assertEquals("a", placeOf(1));
    }

    @Test
    void aCopyCountsOnlyWhenItIsClosedWithItsVeryEnd() throws Exception {
        LedgerMetadata[] partial = {copy(ledger(1, OF_B), "9:90"), copy(ledger(2, OF_B).withInRecoveryState(), "9:90"),
                copy(closed(3, 8, 90, OF_B), "9:90"), copy(closed(4, 9, 80, OF_B), "9:90"),
                copy(closed(5, 9, 90, OF_B), "nonsense")};
        for (LedgerMetadata each : partial) {
            site.plant(a, closed(each.getLedgerId(), 9, 90, OF_A).build());
            site.plant(b, each);
            assertEquals("a", placeOf(each.getLedgerId()));
        }
        site.plant(a, closed(6, -1, 0, OF_A).build());
        site.plant(b, copy(ledger(6, OF_B), "-1:0"));
        assertEquals("a", placeOf(6));
        site.delete(a, "00/0000/L0001");
        assertEquals(ABSENT, errorOf(ledgers.readLedgerMetadata(1)));
    }

    @Test
    void whatIsInNoClusterIsAbsent() throws Exception {
        assertEquals(ABSENT, errorOf(ledgers.readLedgerMetadata(1)));
    }

    @Test
    void absentIsNeverAnAnswerFromMemory() throws Exception {
        assertEquals(ABSENT, errorOf(ledgers.readLedgerMetadata(1)));
        FlakyStore.deafen(b.storeUrl());
        String path = b.root() + "/00/0000/L0001";
        b.first().put(path, new LedgerMetadataSerDe().serialize(ledger(1, OF_B).build()), Optional.empty()).get();
        assertEquals("b", placeOf(1));
        b.first().put(path, new byte[] {1}, Optional.empty()).get();
        assertTrue(errorOf(ledgers.readLedgerMetadata(1)) != ABSENT);
    }

    @Test
    void anOutageOfOneClusterDoesNotFailReadsOfLedgersElsewhere() throws Exception {
        site.plant(a, ledger(1, OF_A).build());
        for (FlakyStore.Mood mood : List.of(FlakyStore.Mood.FAILING, FlakyStore.Mood.HANGING)) {
            FlakyStore.set(b.storeUrl(), mood);
            assertEquals("a", placeOf(1));
        }
    }

    @Test
    void anOutageIsNeverTakenForAbsent() throws Exception {
        site.plant(b, ledger(2, OF_B).build());
        for (FlakyStore.Mood mood : List.of(FlakyStore.Mood.FAILING, FlakyStore.Mood.HANGING)) {
            FlakyStore.set(b.storeUrl(), mood);
            for (long id = 2; id < 4; id++) {
                int code = errorOf(ledgers.readLedgerMetadata(id));
                assertTrue(code != ABSENT && code != BKException.Code.NoSuchLedgerExistsException, "code " + code);
            }
        }
        FlakyStore.set(b.storeUrl(), FlakyStore.Mood.WELL);
        Site.until(() -> !follower.view().active().isFailing());
        assertEquals("b", placeOf(2));
    }

    @Test
    void aClusterThatFailedLatelyIsAskedLast() throws Exception {
        assertEquals("b", follower.view().readingOrder().get(0).name());
        FlakyStore.set(b.storeUrl(), FlakyStore.Mood.FAILING);
        errorOf(ledgers.readLedgerMetadata(1));
        assertEquals("a", follower.view().readingOrder().get(0).name());
        FlakyStore.set(b.storeUrl(), FlakyStore.Mood.WELL);
        Site.until(() -> follower.view().readingOrder().get(0).name().equals("b"));
    }

    @Test
    void aWriteGoesWhereTheMetadataCameFromAlsoAfterASwitch() throws Exception {
        Versioned<LedgerMetadata> made = get(ledgers.createLedgerMetadata(1, ledger(1, OF_B).build()));
        site.register("a", "b");
        site.await(follower, 3);
        Versioned<LedgerMetadata> written = get(ledgers.writeLedgerMetadata(1,
                LedgerMetadataBuilder.from(made.getValue()).withInRecoveryState().build(), made.getVersion()));
        assertEquals("b", ((PlacedVersion) written.getVersion()).cluster());
        assertEquals(Version.Occurred.BEFORE, made.getVersion().compare(written.getVersion()));
        assertEquals(LedgerMetadata.State.IN_RECOVERY, get(ledgers.readLedgerMetadata(1)).getValue().getState());
    }

    @Test
    void aConflictIsTheVeryExceptionForWhichTheClientReadsAgain() throws Exception {
        Versioned<LedgerMetadata> made = get(ledgers.createLedgerMetadata(1, ledger(1, OF_B).build()));
        LedgerMetadata next = LedgerMetadataBuilder.from(made.getValue()).withInRecoveryState().build();
        get(ledgers.writeLedgerMetadata(1, next, made.getVersion()));
        int conflict = BKException.Code.MetadataVersionException;
        assertEquals(conflict, errorOf(ledgers.writeLedgerMetadata(1, next, made.getVersion())));
        assertEquals(conflict, errorOf(ledgers.writeLedgerMetadata(1, next, new LongVersion(0))));
        assertEquals(conflict, errorOf(ledgers.removeLedgerMetadata(1, Version.NEW)));
    }

    @Test
    void aWriteToAClusterThatIsNotRegisteredAnyMoreIsAConflict() throws Exception {
        Versioned<LedgerMetadata> made = get(ledgers.createLedgerMetadata(1, ledger(1, OF_B).build()));
        site.plant(a, ledger(1, OF_A).build());
        site.register("a");
        site.await(follower, 3);
        assertEquals(BKException.Code.MetadataVersionException,
                errorOf(ledgers.writeLedgerMetadata(1, made.getValue(), made.getVersion())));
    }

    @Test
    void aWriteNeverAddsABookieOfAnotherCluster() throws Exception {
        Versioned<LedgerMetadata> made = get(ledgers.createLedgerMetadata(1, ledger(1, OF_A).build()));
        LedgerMetadata mixed = LedgerMetadataBuilder.from(made.getValue())
                .newEnsembleEntry(5, Site.ids(OF_A[0], OF_B[0])).build();
        assertEquals(BKException.Code.NotEnoughBookiesException,
                errorOf(ledgers.writeLedgerMetadata(1, mixed, made.getVersion())));
        assertEquals(made.getValue().getAllEnsembles(),
                get(ledgers.readLedgerMetadata(1)).getValue().getAllEnsembles());
    }

    @Test
    void aLedgerWithABookieThatMovedToAnotherClusterIsStillWritten() throws Exception {
        Versioned<LedgerMetadata> made = get(ledgers.createLedgerMetadata(1, ledger(1, OF_A).build()));
        site.delete(a, "available/" + OF_A[0]);
        site.put(b, "cookies/" + OF_A[0], "");
        site.put(b, "available/" + OF_A[0], "");
        Site.until(() -> {
            BookieCluster owner = follower.view().clusterOf(Site.ids(OF_A[0]));
            return owner != null && owner.name().equals("b");
        });
        Versioned<LedgerMetadata> written = get(ledgers.writeLedgerMetadata(1,
                LedgerMetadataBuilder.from(made.getValue()).withInRecoveryState().build(), made.getVersion()));
        LedgerMetadata replaced = LedgerMetadataBuilder.from(written.getValue())
                .newEnsembleEntry(5, Site.ids("a3:3181", OF_A[1])).build();
        assertEquals("a", ((PlacedVersion) get(ledgers.writeLedgerMetadata(1, replaced, written.getVersion()))
                .getVersion()).cluster());
    }

    @Test
    void aRemovedLedgerIsGoneFromEveryCluster() throws Exception {
        site.plant(a, closed(1, 9, 90, OF_A).build());
        site.plant(b, copy(ledger(1, OF_B), "9:90"));
        get(ledgers.removeLedgerMetadata(1, Version.ANY));
        assertFalse(site.has(a, 1) || site.has(b, 1));
        assertEquals(ABSENT, errorOf(ledgers.removeLedgerMetadata(1, Version.ANY)));
    }

    @Test
    void aRemovalNeedsAnAnswerOfEachCluster() throws Exception {
        site.plant(a, closed(1, 9, 90, OF_A).build());
        site.plant(b, copy(closed(1, 9, 90, OF_B), "9:90"));
        for (FlakyStore.Mood mood : List.of(FlakyStore.Mood.FAILING, FlakyStore.Mood.HANGING)) {
            FlakyStore.set(b.storeUrl(), mood);
            assertTrue(errorOf(ledgers.removeLedgerMetadata(1, Version.ANY)) != ABSENT);
        }
        FlakyStore.set(b.storeUrl(), FlakyStore.Mood.WELL);
        get(ledgers.removeLedgerMetadata(1, Version.ANY));
        assertFalse(site.has(a, 1) || site.has(b, 1));
    }

    @Test
    void anExactVersionIsHeldByTheClusterItCameFrom() throws Exception {
        Versioned<LedgerMetadata> made = get(ledgers.createLedgerMetadata(1, ledger(1, OF_B).build()));
        get(ledgers.writeLedgerMetadata(1, made.getValue(), made.getVersion()));
        assertEquals(BKException.Code.MetadataVersionException,
                errorOf(ledgers.removeLedgerMetadata(1, made.getVersion())));
        get(ledgers.removeLedgerMetadata(1, get(ledgers.readLedgerMetadata(1)).getVersion()));
        assertFalse(site.has(b, 1));
    }

    @Test
    void inASharedClusterOnlyLedgersWithOurMarkAreThere() throws Exception {
        Site.Cluster shared = site.flaky("s", true, "s1:3181");
        site.register("s", "b", "a");
        site.await(follower, 3);
        site.plant(shared, ledger(1, "s1:3181").build());
        site.plant(shared, ledger(2, "s1:3181")
                .withCustomMetadata(Map.of(LedgerMarks.OWNER, "00000000".getBytes(UTF_8))).build());
        for (long id = 1; id <= 2; id++) {
            assertEquals(ABSENT, errorOf(ledgers.readLedgerMetadata(id)));
            assertEquals(ABSENT, errorOf(ledgers.removeLedgerMetadata(id, Version.ANY)));
            assertEquals(BKException.Code.LedgerExistException,
                    errorOf(ledgers.createLedgerMetadata(id, ledger(id, "s1:3181").build())));
            site.plant(a, ledger(id, OF_A).build());
            assertEquals("a", placeOf(id));
            get(ledgers.removeLedgerMetadata(id, Version.ANY));
            assertTrue(site.has(shared, id) && !site.has(a, id));
        }
        get(ledgers.createLedgerMetadata(3, ledger(3, "s1:3181").build()));
        assertEquals("s", placeOf(3));
        get(ledgers.removeLedgerMetadata(3, Version.ANY));
        assertFalse(site.has(shared, 3));
    }

    private static LedgerMetadata marked(long id, String owner, String... bookies) {
        return closed(id, 9, 90, bookies).withCustomMetadata(Map.of(LedgerMarks.OWNER, owner.getBytes(UTF_8))).build();
    }

    /** Register the two again, b active, with what the registry says of ledgers without our mark. */
    private void own(Long belowInA, Long belowInB) throws Exception {
        site.bootstrap = "a";
        site.formerOwners.add("0badc0de");
        site.unmarkedBelow.put("a", belowInA);
        site.unmarkedBelow.put("b", belowInB);
        site.register("b", "a");
        site.await(follower, site.epoch);
    }

    @Test
    void aLedgerWithoutAMarkInAFurtherClusterIsNotReadAndNotRemoved() throws Exception {
        own(null, 0L);
        site.plant(a, closed(3, 9, 90, OF_A).build());
        site.plant(b, closed(3, 99, 990, OF_B).build());
        assertEquals("a", placeOf(3));
        get(ledgers.removeLedgerMetadata(3, Version.ANY));
        assertTrue(site.has(b, 3) && !site.has(a, 3));
        assertEquals(ABSENT, errorOf(ledgers.readLedgerMetadata(3)));
        assertEquals(ABSENT, errorOf(ledgers.removeLedgerMetadata(3, Version.ANY)));
        assertEquals(BKException.Code.LedgerExistException,
                errorOf(ledgers.createLedgerMetadata(3, ledger(3, OF_B).build())));
    }

    @Test
    void whatWasMadeThereBeforeTheRangeWasClosedIsOurs() throws Exception {
        own(null, 5L);
        site.plant(b, closed(4, 9, 90, OF_B).build());
        site.plant(b, closed(5, 9, 90, OF_B).build());
        assertEquals("b", placeOf(4));
        assertEquals(ABSENT, errorOf(ledgers.readLedgerMetadata(5)));
        get(ledgers.removeLedgerMetadata(4, Version.ANY));
        assertFalse(site.has(b, 4));
    }

    @Test
    void theMarkOfAFormerOwnerIsOurs() throws Exception {
        own(7L, 0L);
        site.plant(b, marked(1, "0badc0de", OF_B));
        site.plant(b, marked(2, Site.OWNER, OF_B));
        assertEquals("b", placeOf(1));
        assertEquals("b", placeOf(2));
        get(ledgers.removeLedgerMetadata(1, Version.ANY));
        assertFalse(site.has(b, 1));
    }

    @Test
    void theMarkOfAStrangerIsReadInTheFirstClusterAlone() throws Exception {
        own(7L, 0L);
        site.plant(a, marked(9, "1badc0de", OF_A));
        site.plant(b, marked(8, "1badc0de", OF_B));
        assertEquals("a", placeOf(9));
        assertEquals(ABSENT, errorOf(ledgers.readLedgerMetadata(8)));
    }

    @Test
    void withARegistryOfTheFirstReleaseEveryLedgerOfAClusterThatIsNotSharedIsOurs() throws Exception {
        site.plant(b, closed(4, 9, 90, OF_B).build());
        site.plant(b, marked(8, "1badc0de", OF_B));
        assertEquals("b", placeOf(4));
        assertEquals("b", placeOf(8));
    }

    @Test
    void aListenerHearsOfChangesWhereTheLedgerIsAndOfItsMove() throws Exception {
        List<Optional<Version>> heard = new ArrayList<>();
        Versioned<LedgerMetadata> made = get(ledgers.createLedgerMetadata(1, closed(1, 9, 90, OF_A).build()));
        ledgers.registerLedgerMetadataListener(1, (id, metadata) -> {
            synchronized (heard) {
                heard.add(Optional.ofNullable(metadata).map(Versioned::getVersion));
            }
        });
        Site.until(() -> heardLast(heard, made.getVersion()));
        Version written = get(ledgers.writeLedgerMetadata(1, made.getValue(), made.getVersion())).getVersion();
        Site.until(() -> heardLast(heard, written));
        site.plant(b, copy(closed(1, 9, 90, OF_B), "9:90"));
        site.register("b", "a");
        site.await(follower, 3);
        Site.until(() -> heardOf(heard, "b"));
        site.delete(a, "00/0000/L0001");
        site.delete(b, "00/0000/L0001");
        Site.until(() -> {
            synchronized (heard) {
                return heard.get(heard.size() - 1).isEmpty();
            }
        });
    }

    private static boolean heardLast(List<Optional<Version>> heard, Version version) {
        synchronized (heard) {
            return !heard.isEmpty() && heard.get(heard.size() - 1).equals(Optional.of(version));
        }
    }

    private static boolean heardOf(List<Optional<Version>> heard, String cluster) {
        synchronized (heard) {
            return heard.stream().flatMap(Optional::stream).anyMatch(each -> ((PlacedVersion) each).cluster()
                    .equals(cluster));
        }
    }

    @Test
    void ledgersAreNotListed() throws Exception {
        CompletableFuture<Integer> code = new CompletableFuture<>();
        ledgers.asyncProcessLedgers((id, done) -> { }, (rc, path, context) -> code.complete(rc), null, 0, -7);
        assertEquals(-7, get(code));
    }
}
