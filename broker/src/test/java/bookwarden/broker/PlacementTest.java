package bookwarden.broker;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.netty.util.HashedWheelTimer;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.bookkeeper.client.BKException.BKNotEnoughBookiesException;
import org.apache.bookkeeper.client.EnsemblePlacementPolicy;
import org.apache.bookkeeper.client.RackawareEnsemblePlacementPolicy;
import org.apache.bookkeeper.conf.ClientConfiguration;
import org.apache.bookkeeper.feature.SettableFeatureProvider;
import org.apache.bookkeeper.net.BookieId;
import org.apache.bookkeeper.net.BookieSocketAddress;
import org.apache.bookkeeper.stats.NullStatsLogger;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;

/** Which bookies new ensembles and replacements get: a has three, b two. */
class PlacementTest {
    private static final Set<BookieId> OF_A = Set.copyOf(Site.ids("a1:3181", "a2:3181", "a3:3181"));
    private static final Set<BookieId> OF_B = Set.copyOf(Site.ids("b1:3181", "b2:3181"));
    /** Policies that live, with the bookies that each has ever been told of. */
    private static final Map<EnsemblePlacementPolicy, Set<BookieId>> LIVING = new ConcurrentHashMap<>();

    /** A policy as it may be configured, which remembers what it was told. */
    public static final class Watched extends RackawareEnsemblePlacementPolicy {
        @Override
        public Set<BookieId> onClusterChanged(Set<BookieId> writable, Set<BookieId> readOnly) {
            LIVING.computeIfAbsent(this, x -> ConcurrentHashMap.newKeySet()).addAll(writable);
            return super.onClusterChanged(writable, readOnly);
        }

        @Override
        public void uninitalize() {
            LIVING.remove(this);
            super.uninitalize();
        }
    }

    private Site site;
    private ClusterFollower follower;
    private BookieUnion bookies;
    private EnsemblePlacementPolicy policy;

    @BeforeEach
    void start() throws Exception {
        LIVING.clear();
        site = new Site();
        site.cluster("a", "a1:3181", "a2:3181", "a3:3181");
        site.cluster("b", "b1:3181", "b2:3181");
        site.register("a");
        follower = site.follow();
        bookies = new BookieUnion(follower);
        policy = policy(Watched.class);
        Site.get(bookies.watchWritableBookies(now -> policy.onClusterChanged(now.getValue(), Set.of())));
    }

    private EnsemblePlacementPolicy policy(Class<? extends EnsemblePlacementPolicy> configured) throws Exception {
        ClientConfiguration conf = new ClientConfiguration();
        conf.setEnsemblePlacementPolicy(configured);
        PerClusterPlacementPolicy.wrap(conf, follower);
        PerClusterPlacementPolicy.wrap(conf, follower);
        assertEquals(PerClusterPlacementPolicy.class, conf.getEnsemblePlacementPolicy());
        return new PerClusterPlacementPolicy().initialize(conf, Optional.empty(), new HashedWheelTimer(),
                SettableFeatureProvider.DISABLE_ALL, NullStatsLogger.INSTANCE,
                BookieSocketAddress.LEGACY_BOOKIEID_RESOLVER);
    }

    @AfterEach
    void stop() throws Exception {
        bookies.close();
        site.close();
        policy.uninitalize();
    }

    private Set<BookieId> ensemble(int size) throws Exception {
        return new HashSet<>(policy.newEnsemble(size, size, size, Map.of(), new HashSet<>()).getResult());
    }

    @Test
    void newEnsemblesAreOfTheActiveClusterAlone() throws Exception {
        assertEquals(OF_A, ensemble(3));
        site.register("b", "a");
        site.await(follower, 2);
        assertEquals(OF_B, ensemble(2));
        assertThrows(BKNotEnoughBookiesException.class, () -> ensemble(3));
        site.register("a", "b");
        site.await(follower, 3);
        assertEquals(OF_A, ensemble(3));
    }

    @Test
    void aReplacementIsOfTheEnsemblesOwnCluster() throws Exception {
        site.register("b", "a");
        site.await(follower, 2);
        List<BookieId> ensemble = Site.ids("a1:3181", "a2:3181");
        assertEquals(BookieId.parse("a3:3181"), policy.replaceBookie(2, 2, 2, Map.of(), ensemble, ensemble.get(0),
                new HashSet<>()).getResult());
        List<BookieId> both = Site.ids("b1:3181", "b2:3181");
        assertThrows(BKNotEnoughBookiesException.class,
                () -> policy.replaceBookie(2, 2, 2, Map.of(), both, both.get(0), new HashSet<>()));
        List<BookieId> none = Site.ids("c1:3181", "c2:3181");
        assertThrows(BKNotEnoughBookiesException.class,
                () -> policy.replaceBookie(2, 2, 2, Map.of(), none, none.get(0), new HashSet<>()));
        List<BookieId> mixed = Site.ids("a1:3181", "b2:3181");
        assertThrows(BKNotEnoughBookiesException.class,
                () -> policy.replaceBookie(2, 2, 2, Map.of(), mixed, mixed.get(0), new HashSet<>()));
    }

    @Test
    void noPolicyEverSeesBookiesOfTwoClusters() throws Exception {
        site.register("a", "b");
        site.register("b", "a");
        site.await(follower, 3);
        Site.until(() -> LIVING.values().stream().anyMatch(OF_B::equals));
        assertEquals(2, LIVING.size());
        LIVING.values().forEach(each -> assertTrue(each.equals(OF_A) || each.equals(OF_B), each.toString()));
    }

    @Test
    void thePolicyOfAClusterThatIsNotRegisteredAnyMoreEnds() throws Exception {
        site.register("a", "b");
        Site.until(() -> LIVING.size() == 2);
        site.register("a");
        Site.until(() -> LIVING.size() == 1);
        assertFalse(LIVING.containsValue(OF_B));
    }
}
