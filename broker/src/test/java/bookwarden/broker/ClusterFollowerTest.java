package bookwarden.broker;

import static java.nio.charset.StandardCharsets.UTF_8;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import io.prometheus.client.CollectorRegistry;
import java.io.IOException;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import org.apache.bookkeeper.client.BKException;
import org.apache.bookkeeper.net.BookieId;
import org.apache.bookkeeper.versioning.Version;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;

/** What of the registry is followed, what is refused, and what is said of it. */
class ClusterFollowerTest {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final long NEVER = 3_600_000;
    private Site site;
    private Site.Cluster a;
    private Site.Cluster b;

    @BeforeEach
    void start() throws Exception {
        site = new Site();
        a = site.cluster("a", "a1:3181");
        b = site.flaky("b", false, "b1:3181");
    }

    @AfterEach
    void stop() throws Exception {
        site.close();
    }

    private static double errors() {
        return CollectorRegistry.defaultRegistry.getSampleValue("bookwarden_bookie_clusters_registry_errors_total");
    }

    /** Wait until a reading of the registry was of no use, and then for one that is not the one under way. */
    private static void awaitRefusal() throws Exception {
        double before = errors();
        Site.until(() -> errors() >= before + 2);
    }

    private JsonNode seen() throws Exception {
        Site.until(() -> site.own.getChildren(Registry.PATH + "-seen").get().size() == 1);
        List<String> names = site.own.getChildren(Registry.PATH + "-seen").get();
        return JSON.readTree(site.own.get(Registry.PATH + "-seen/" + names.get(0)).get().get().getValue());
    }

    @Test
    void allClientsOfAProcessShareAFollower() throws Exception {
        site.register("a");
        ClusterFollower first = site.follow();
        assertSame(first, site.follow());
    }

    @Test
    void aSwitchIsFollowedAndSaid() throws Exception {
        site.register("a");
        ClusterFollower follower = site.follow();
        site.register("a", "b");
        site.register("b", "a");
        site.await(follower, 3);
        assertEquals("b", follower.view().active().name());
        Site.until(() -> seen().get("epoch").longValue() == 3);
        JsonNode said = seen();
        assertEquals("b", said.get("active").textValue());
        assertEquals(Site.OWNER, said.get("owner").textValue());
        assertEquals(ProcessHandle.current().pid(), said.get("pid").longValue());
        assertEquals(b.instance(), said.get("instances").get("b").textValue());
        assertEquals(a.instance(), said.get("instances").get("a").textValue());
        assertEquals(0, said.get("unreachable").size());
        assertEquals("[\"unmarkedBelow\",\"storeUrl\"]", said.get("understands").toString());
    }

    @Test
    void whichLedgersAreOursMayChangeWithoutAnotherConnection() throws Exception {
        site.register("a");
        site.register("a", "b");
        ClusterFollower follower = site.follow();
        BookieCluster before = follower.view().oldestFirst().get(1);
        site.unmarkedBelow.put("b", 7L);
        site.register("a", "b");
        site.await(follower, 3);
        assertSame(before, follower.view().oldestFirst().get(1));
        assertEquals(7L, follower.view().registry().ownership().get("b").unmarkedBelow());
        ObjectNode shared = site.registry(4, "a", "b");
        ((ObjectNode) shared.get("clusters").get("b")).put("shared", true).put("deprecated", true);
        site.write(shared);
        site.await(follower, 4);
    }

    @Test
    void theAddressOfARegisteredClustersStoreMayChange() throws Exception {
        site.register("a");
        site.register("a", "b");
        ClusterFollower follower = site.follow();
        String before = b.storeUrl();
        Site.Cluster moved = site.flaky("b", false, "b1:3181");
        site.put(moved, "INSTANCEID", b.instance());
        site.clusters.put("b", new Site.Cluster(moved.first(), moved.storeUrl(), b.root(), b.instance(), false));
        site.register("a", "b");
        site.await(follower, 3);
        assertEquals(moved.storeUrl(), follower.view().oldestFirst().get(1).entry().storeUrl());
        Site.until(() -> FlakyStore.sessions(before).size() == 0);
    }

    @Test
    void theSeenNodeIsWrittenAgainWhenItIsGoneAndGoesWithTheLastClient() throws Exception {
        site.register("a");
        ClusterFollower follower = ClusterFollower.acquire(site.settings());
        String folder = Registry.PATH + "-seen";
        Site.until(() -> site.own.getChildren(folder).get().size() == 1);
        String first = site.own.getChildren(folder).get().get(0);
        site.own.delete(folder + "/" + first, Optional.empty()).get();
        Site.until(() -> site.own.getChildren(folder).get().size() == 1);
        follower.release();
        assertEquals(0, site.own.getChildren(folder).get().size());
    }

    @Test
    void whatIsOfNoUseIsRefusedAndTheLastGoodStateKept() throws Exception {
        site.register("a");
        site.register("b", "a");
        ClusterFollower follower = site.follow();
        ObjectNode otherIds = site.registry(3, "a", "b");
        otherIds.put("idRoot", "/other");
        ObjectNode otherOwner = site.registry(3, "a", "b");
        otherOwner.put("owner", "00000000");
        ObjectNode otherRoot = site.registry(3, "a", "b");
        ((ObjectNode) otherRoot.get("clusters").get("a")).put("ledgersRoot", "/elsewhere");
        ObjectNode otherInstance = site.registry(3, "a", "b");
        ((ObjectNode) otherInstance.get("clusters").get("a")).put("instance", "another");
        site.since.put("c", 3L);
        site.clusters.put("c", new Site.Cluster(site.own, null, "/bookies-c", "nobody", false));
        Object[] broken = {"{", site.registry(1, "a", "b"), site.registry(2, "a", "b"), otherIds, otherOwner,
                otherRoot, otherInstance, site.registry(3, "a", "b", "c"), site.registry(3, "c", "a", "b")};
        for (Object each : broken) {
            site.write(each);
            awaitRefusal();
            assertEquals(2, follower.view().registry().epoch());
            assertEquals("b", follower.view().active().name());
        }
        site.own.delete(Registry.PATH, Optional.empty()).get();
        awaitRefusal();
        assertEquals(2, follower.view().registry().epoch());
        site.write(site.registry(3, "a", "b"));
        site.await(follower, 3);
        assertEquals("a", follower.view().active().name());
    }

    @Test
    void anUnreachableClusterIsNotMadeActiveBeforeItAnswers() throws Exception {
        site.register("a");
        site.register("a", "b");
        ClusterFollower follower = site.follow();
        FlakyStore.set(b.storeUrl(), FlakyStore.Mood.HANGING);
        site.register("b", "a");
        awaitRefusal();
        assertEquals("a", follower.view().active().name());
        Site.until(() -> seen().get("unreachable").size() == 1);
        FlakyStore.set(b.storeUrl(), FlakyStore.Mood.WELL);
        site.await(follower, 3);
        Site.until(() -> seen().get("unreachable").size() == 0);
    }

    @Test
    void noLedgerIsAbsentWhileANewerRegistryIsRefused() throws Exception {
        site.register("a");
        ClusterFollower follower = site.follow();
        RoutingLedgerManager ledgers = new RoutingLedgerManager(follower);
        assertAbsent(ledgers);
        site.plant(b, Site.ledger(7, "b1:3181").build());
        FlakyStore.set(b.storeUrl(), FlakyStore.Mood.FAILING);
        // Registered and made active while this broker was away.
        site.since.put("b", 2L);
        site.write(site.registry(3, "b", "a"));
        awaitRefusal();
        assertUnknown(ledgers);
        assertEquals(1, follower.view().registry().epoch());
        FlakyStore.set(b.storeUrl(), FlakyStore.Mood.WELL);
        site.await(follower, 3);
        assertEquals("b", ((PlacedVersion) Site.get(ledgers.readLedgerMetadata(7)).getVersion()).cluster());
        ledgers.close();
    }

    @Test
    void noLedgerIsAbsentWhileTheRegistryIsGoneOrBroken() throws Exception {
        site.register("a");
        RoutingLedgerManager ledgers = new RoutingLedgerManager(site.follow());
        site.write("{");
        assertUnknown(ledgers);
        site.own.delete(Registry.PATH, Optional.empty()).get();
        assertUnknown(ledgers);
        site.write(site.registry(1, "a"));
        assertAbsent(ledgers);
        ledgers.close();
    }

    @Test
    void aRegistryThatNobodyAnnouncedIsReadBeforeALedgerIsAbsentAndFollowed() throws Exception {
        site.pollMillis = NEVER;
        site.register("a");
        ClusterFollower follower = site.follow();
        RoutingLedgerManager ledgers = new RoutingLedgerManager(follower);
        site.plant(b, Site.ledger(7, "b1:3181").build());
        site.since.put("b", 2L);
        byte[] next = site.registry(2, "a", "b").toString().getBytes(UTF_8);
        site.another().put(Registry.PATH, next, Optional.empty()).get();
        assertEquals(1, follower.view().registry().epoch());
        assertEquals(BKException.Code.MetaStoreException, Site.errorOf(ledgers.readLedgerMetadata(7)));
        site.await(follower, 2);
        assertEquals("b", ((PlacedVersion) Site.get(ledgers.readLedgerMetadata(7)).getVersion()).cluster());
        ledgers.close();
    }

    private static void assertAbsent(RoutingLedgerManager ledgers) throws Exception {
        int absent = BKException.Code.NoSuchLedgerExistsOnMetadataServerException;
        assertEquals(absent, Site.errorOf(ledgers.readLedgerMetadata(7)));
        assertEquals(absent, Site.errorOf(ledgers.removeLedgerMetadata(7, Version.ANY)));
    }

    private static void assertUnknown(RoutingLedgerManager ledgers) throws Exception {
        assertEquals(BKException.Code.MetaStoreException, Site.errorOf(ledgers.readLedgerMetadata(7)));
        assertEquals(BKException.Code.MetaStoreException, Site.errorOf(ledgers.removeLedgerMetadata(7, Version.ANY)));
    }

    @Test
    void aNewClusterThatIsUnreachableIsFollowedAndFailsUntilItAnswers() throws Exception {
        site.register("a");
        ClusterFollower follower = site.follow();
        RoutingLedgerManager ledgers = new RoutingLedgerManager(follower);
        BookieUnion union = new BookieUnion(follower);
        CompletableFuture<Void> both = whenBothAreHeardOf(union);
        FlakyStore.set(b.storeUrl(), FlakyStore.Mood.FAILING);
        site.register("a", "b");
        site.await(follower, 2);
        Site.until(() -> seen().get("unreachable").size() == 1);
        assertEquals(1, seen().get("instances").size());
        assertUnknown(ledgers);
        // One more change is followed too.
        site.register("a", "b");
        site.await(follower, 3);
        site.register("b", "a");
        awaitRefusal();
        assertEquals("a", follower.view().active().name());
        FlakyStore.set(b.storeUrl(), FlakyStore.Mood.WELL);
        site.await(follower, 4);
        Site.get(both);
        assertAbsent(ledgers);
        Site.until(() -> seen().get("instances").size() == 2 && seen().get("unreachable").isEmpty());
        union.close();
        ledgers.close();
    }

    @Test
    void aClusterThatWasSilentAtFirstTakesPartOnlyOnceItsIdentityAndBookiesWereChecked() throws Exception {
        site.register("a");
        ClusterFollower follower = site.follow();
        RoutingLedgerManager ledgers = new RoutingLedgerManager(follower);
        BookieUnion union = new BookieUnion(follower);
        CompletableFuture<Void> both = whenBothAreHeardOf(union);
        FlakyStore.set(b.storeUrl(), FlakyStore.Mood.FAILING);
        site.put(b, "INSTANCEID", "another");
        site.put(b, "available/a1:3181", "");
        site.register("a", "b");
        site.await(follower, 2);
        BookieCluster late = follower.view().oldestFirst().get(1);
        FlakyStore.set(b.storeUrl(), FlakyStore.Mood.WELL);
        Site.until(() -> late.isWrong() && late.trouble().getMessage().contains("INSTANCEID"));
        assertUnknown(ledgers);
        site.put(b, "INSTANCEID", b.instance());
        Site.until(() -> late.isWrong() && late.trouble().getMessage().contains("also registered in a"));
        assertUnknown(ledgers);
        assertEquals("a", follower.view().clusterOf(BookieId.parse("a1:3181")).name());
        assertEquals(1, seen().get("instances").size());
        site.delete(b, "available/a1:3181");
        Site.until(() -> seen().get("instances").size() == 2);
        assertAbsent(ledgers);
        assertEquals("b", follower.view().clusterOf(BookieId.parse("b1:3181")).name());
        Site.get(both);
        union.close();
        ledgers.close();
    }

    @Test
    void withoutARegistryOrItsActiveClusterABrokerDoesNotStart() throws Exception {
        assertThrows(IOException.class, site::follow);
        site.write("{}");
        assertThrows(IOException.class, site::follow);
        site.register("a");
        site.register("b", "a");
        FlakyStore.set(b.storeUrl(), FlakyStore.Mood.FAILING);
        assertThrows(IOException.class, site::follow);
        FlakyStore.set(b.storeUrl(), FlakyStore.Mood.WELL);
        site.follow();
    }

    @Test
    void aBrokerStartsWhileAClusterThatIsNotActiveIsOutOfReach() throws Exception {
        site.register("a");
        site.register("a", "b");
        FlakyStore.set(b.storeUrl(), FlakyStore.Mood.FAILING);
        ClusterFollower follower = site.follow();
        Site.until(() -> seen().get("unreachable").size() == 1);
        assertEquals(1, seen().get("instances").size());
        RoutingLedgerManager ledgers = new RoutingLedgerManager(follower);
        assertEquals(BKException.Code.MetaStoreException, Site.errorOf(ledgers.readLedgerMetadata(7)));
        FlakyStore.set(b.storeUrl(), FlakyStore.Mood.WELL);
        Site.until(() -> seen().get("instances").size() == 2);
        assertEquals(BKException.Code.NoSuchLedgerExistsOnMetadataServerException,
                Site.errorOf(ledgers.readLedgerMetadata(7)));
        ledgers.close();
    }

    @Test
    void metadataThatIsAnothersOrOfAnotherLayoutIsRefusedAtTheStartToo() throws Exception {
        site.register("a");
        site.register("a", "b");
        site.put(b, "INSTANCEID", "another");
        assertRefusedAtTheStart();
        site.put(b, "INSTANCEID", b.instance());
        site.put(b, "LAYOUT", "2\norg.apache.bookkeeper.meta.LongHierarchicalLedgerManagerFactory:1");
        assertRefusedAtTheStart();
        site.put(b, "LAYOUT", "2\norg.apache.bookkeeper.meta.HierarchicalLedgerManagerFactory:1");
        site.follow();
    }

    private void assertRefusedAtTheStart() throws Exception {
        assertThrows(IOException.class, site::follow);
        // Its session is closed a moment later, and takes no writes then.
        Site.until(() -> FlakyStore.sessions(b.storeUrl()).isEmpty());
    }

    @Test
    void aClusterWhoseMetadataWasReplacedIsNeverTakenForEmpty() throws Exception {
        site.register("a");
        site.register("a", "b");
        ClusterFollower follower = site.follow();
        RoutingLedgerManager ledgers = new RoutingLedgerManager(follower);
        site.put(b, "INSTANCEID", "another");
        Site.until(() -> follower.view().oldestFirst().get(1).isWrong());
        assertUnknown(ledgers);
        ledgers.close();
    }

    @Test
    void aClusterWhoseMetadataWasReplacedIsNeverTakenForEmptyBeforeTheNextProbeEither() throws Exception {
        site.pollMillis = NEVER;
        site.register("a");
        site.register("a", "b");
        RoutingLedgerManager ledgers = new RoutingLedgerManager(site.follow());
        assertAbsent(ledgers);
        site.put(b, "INSTANCEID", "another");
        assertEquals(BKException.Code.MetaStoreException, Site.errorOf(ledgers.removeLedgerMetadata(7, Version.ANY)));
        assertUnknown(ledgers);
        ledgers.close();
    }

    @Test
    void aReadingFindsOutToo() throws Exception {
        site.pollMillis = NEVER;
        site.register("a");
        site.register("a", "b");
        RoutingLedgerManager ledgers = new RoutingLedgerManager(site.follow());
        site.delete(b, "INSTANCEID");
        assertUnknown(ledgers);
        ledgers.close();
    }

    @Test
    void aClusterThatIsNotRegisteredAnyMoreIsLetGo() throws Exception {
        site.register("a");
        site.register("a", "b");
        ClusterFollower follower = site.follow();
        assertEquals(1, FlakyStore.sessions(b.storeUrl()).size());
        site.register("a");
        site.await(follower, 3);
        Site.until(() -> FlakyStore.sessions(b.storeUrl()).size() == 0);
        site.since.remove("b");
        site.register("a", "b");
        site.await(follower, 4);
        assertEquals(1, FlakyStore.sessions(b.storeUrl()).size());
    }

    @Test
    void clustersInOneStoreShareASession() throws Exception {
        Site.Cluster c = new Site.Cluster(b.store(), b.storeUrl(), "/bookies-c", "c", false);
        site.clusters.put("c", c);
        site.put(c, "INSTANCEID", "c");
        site.register("a", "b", "c");
        site.follow();
        assertEquals(1, FlakyStore.sessions(b.storeUrl()).size());
    }

    @Test
    void bookiesThatAreInTwoClustersRefuseTheNewOneAndBelongToNone() throws Exception {
        site.put(b, "available/a1:3181", "");
        site.register("a");
        ClusterFollower follower = site.follow();
        site.register("a", "b");
        awaitRefusal();
        assertEquals(1, follower.view().registry().epoch());
        site.delete(b, "available/a1:3181");
        site.await(follower, 2);
        site.put(b, "available/a1:3181", "");
        BookieId both = BookieId.parse("a1:3181");
        Site.until(() -> follower.view().clusterOf(both) == null);
    }

    @Test
    void aStoppedBookieStaysAMemberByItsCookie() throws Exception {
        site.register("a");
        ClusterFollower follower = site.follow();
        BookieId stopped = BookieId.parse("a1:3181");
        site.delete(a, "available/a1:3181");
        Site.until(() -> follower.view().active().registered().isEmpty());
        assertEquals("a", follower.view().clusterOf(stopped).name());
        site.delete(a, "cookies/a1:3181");
        Site.until(() -> follower.view().clusterOf(stopped) == null);
    }

    @Test
    void clientsHearOfTheBookiesOfAllClusters() throws Exception {
        site.register("a");
        ClusterFollower follower = site.follow();
        BookieUnion union = new BookieUnion(follower);
        CompletableFuture<Void> both = whenBothAreHeardOf(union);
        site.register("a", "b");
        Site.get(both);
        assertTrue(Site.get(union.getAllBookies()).getValue().size() == 2);
        union.close();
    }

    private static CompletableFuture<Void> whenBothAreHeardOf(BookieUnion union) throws Exception {
        CompletableFuture<Void> both = new CompletableFuture<>();
        Site.get(union.watchWritableBookies(bookies -> {
            if (bookies.getValue().equals(java.util.Set.copyOf(Site.ids("a1:3181", "b1:3181")))) {
                both.complete(null);
            }
        }));
        return both;
    }

    @Test
    void closingLeavesNoThreadAndNoSession() throws Exception {
        site.register("a");
        site.register("a", "b");
        ClusterFollower follower = ClusterFollower.acquire(site.settings());
        follower.release();
        Site.until(() -> FlakyStore.sessions(b.storeUrl()).size() == 0);
        Site.until(() -> Thread.getAllStackTraces().keySet().stream()
                .noneMatch(each -> each.getName().startsWith("bookwarden-")));
    }

    @Test
    void theMetricsSayWhatIsFollowed() throws Exception {
        site.register("a");
        site.register("b", "a");
        ClusterFollower follower = site.follow();
        Site.until(() -> metric("epoch") == 2 && metric("active", "b") == 1 && metric("active", "a") == 0);
        FlakyStore.set(b.storeUrl(), FlakyStore.Mood.FAILING);
        Site.until(() -> metric("unreachable", "b") == 1);
        FlakyStore.set(b.storeUrl(), FlakyStore.Mood.WELL);
        Site.until(() -> metric("unreachable", "b") == 0);
        site.register("a");
        site.await(follower, 3);
        Site.until(() -> metric("active", "b") == -1 && metric("active", "a") == 1);
    }

    /** Return a metric's value; -1 if there is none. */
    private static double metric(String name, String... cluster) {
        String[] labels = cluster.length == 0 ? cluster : new String[] {"bookie_cluster"};
        Double value = CollectorRegistry.defaultRegistry.getSampleValue("bookwarden_bookie_clusters_" + name, labels,
                cluster);
        return value == null ? -1 : value;
    }
}
