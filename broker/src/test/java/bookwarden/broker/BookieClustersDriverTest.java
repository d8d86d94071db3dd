package bookwarden.broker;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.net.URI;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import org.apache.bookkeeper.client.EnsemblePlacementPolicy;
import org.apache.bookkeeper.client.RackawareEnsemblePlacementPolicy;
import org.apache.bookkeeper.conf.ClientConfiguration;
import org.apache.bookkeeper.meta.LedgerIdGenerator;
import org.apache.bookkeeper.meta.LedgerManager;
import org.apache.bookkeeper.meta.MetadataClientDriver;
import org.apache.bookkeeper.meta.MetadataDrivers;
import org.apache.bookkeeper.meta.exceptions.MetadataException;
import org.apache.bookkeeper.stats.NullStatsLogger;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;

/** The driver as BookKeeper's client loads it, with the configuration that a broker gives. */
class BookieClustersDriverTest {
    private Site site;

    @BeforeEach
    void start() throws Exception {
        site = new Site();
        site.cluster("a", "a1:3181");
        site.cluster("b", "b1:3181");
    }

    @AfterEach
    void stop() throws Exception {
        site.close();
    }

    private ClientConfiguration ofABroker() {
        ClientConfiguration conf = new ClientConfiguration();
        conf.setMetadataServiceUri("bookwarden://zk-1:2181;zk-2:2181/ledgers");
        conf.setProperty("METADATA_STORE_INSTANCE", site.own);
        return conf;
    }

    private static MetadataClientDriver load(ClientConfiguration conf) throws Exception {
        new BookieClustersDriver();
        MetadataClientDriver driver = MetadataDrivers.getClientDriver(URI.create(conf.getMetadataServiceUri()));
        return driver.initialize(conf, null, NullStatsLogger.INSTANCE, Optional.empty());
    }

    private static long nextId(MetadataClientDriver driver) throws Exception {
        CompletableFuture<Long> id = new CompletableFuture<>();
        try (LedgerIdGenerator ids = driver.getLedgerManagerFactory().newLedgerIdGenerator()) {
            ids.generateLedgerId((code, value) -> id.complete(value));
            return Site.get(id);
        }
    }

    @Test
    void aBrokersConfigurationIsEnough() throws Exception {
        site.register("a");
        ClientConfiguration conf = ofABroker();
        Class<? extends EnsemblePlacementPolicy> configured = conf.getEnsemblePlacementPolicy();
        assertEquals(RackawareEnsemblePlacementPolicy.class, configured);
        try (MetadataClientDriver driver = load(conf);
                LedgerManager ledgers = driver.getLedgerManagerFactory().newLedgerManager()) {
            assertEquals(PerClusterPlacementPolicy.class, conf.getEnsemblePlacementPolicy());
            Site.get(ledgers.createLedgerMetadata(1, Site.ledger(1, "a1:3181").build()));
            assertTrue(site.has(site.clusters.get("a"), 1));
            assertEquals(1, Site.get(driver.getRegistrationClient().getWritableBookies()).getValue().size());
        }
    }

    @Test
    void idsAreOneSequenceForAllClustersAndClients() throws Exception {
        site.register("a", "b");
        try (MetadataClientDriver one = load(ofABroker()); MetadataClientDriver other = load(ofABroker())) {
            long first = nextId(one);
            assertEquals(first + 1, nextId(other));
            site.register("b", "a");
            ClusterFollower follower = site.follow();
            site.await(follower, 2);
            assertEquals(first + 2, nextId(one));
            assertEquals(first + 3, nextId(other));
        }
        assertFalse(site.own.getChildren("/ids").get().isEmpty());
    }

    @Test
    void theLastClientToCloseEndsTheFollower() throws Exception {
        site.register("a");
        MetadataClientDriver one = load(ofABroker());
        MetadataClientDriver other = load(ofABroker());
        one.close();
        one.close();
        String folder = Registry.PATH + "-seen";
        Site.until(() -> site.own.getChildren(folder).get().size() == 1);
        other.close();
        assertEquals(0, site.own.getChildren(folder).get().size());
    }

    @Test
    void aToolWithoutAStoreOfPulsarsOpensIt() throws Exception {
        String url = site.flaky("pulsar", false).storeUrl();
        ClientConfiguration conf = new ClientConfiguration();
        conf.setMetadataServiceUri("bookwarden://unused/ledgers");
        conf.setProperty(Settings.STORE_URL, url);
        conf.setProperty(Settings.REGISTRY, "/elsewhere");
        assertThrows(MetadataException.class, () -> load(conf));
        Site.until(() -> FlakyStore.sessions(url).isEmpty());
        site.register("a");
        Site.Cluster pulsar = site.clusters.get("pulsar");
        site.put(new Site.Cluster(pulsar.first(), url, "/bookies-a", "x", false), "INSTANCEID",
                site.clusters.get("a").instance());
        pulsar.first().put("/elsewhere", site.own.get(Registry.PATH).get().get().getValue(), Optional.empty()).get();
        try (MetadataClientDriver driver = load(conf)) {
            assertEquals(1, FlakyStore.sessions(url).size());
            assertSame(driver.getRegistrationClient(), driver.getRegistrationClient());
        }
        assertEquals(0, FlakyStore.sessions(url).size());
    }

    @Test
    void withoutARegistryTheClientDoesNotStart() {
        assertThrows(MetadataException.class, () -> load(ofABroker()));
    }
}
