package bookwarden.broker;

import io.netty.util.HashedWheelTimer;
import java.util.Collection;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.function.Function;
import org.apache.bookkeeper.client.BKException.BKNotEnoughBookiesException;
import org.apache.bookkeeper.client.BookieInfoReader.BookieInfo;
import org.apache.bookkeeper.client.BookiesHealthInfo;
import org.apache.bookkeeper.client.DistributionSchedule;
import org.apache.bookkeeper.client.EnsemblePlacementPolicy;
import org.apache.bookkeeper.client.api.LedgerMetadata;
import org.apache.bookkeeper.common.util.ReflectionUtils;
import org.apache.bookkeeper.conf.ClientConfiguration;
import org.apache.bookkeeper.feature.FeatureProvider;
import org.apache.bookkeeper.net.BookieId;
import org.apache.bookkeeper.net.DNSToSwitchMapping;
import org.apache.bookkeeper.proto.BookieAddressResolver;
import org.apache.bookkeeper.stats.StatsLogger;
import org.apache.commons.configuration2.ex.ConfigurationException;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * The configured placement policy, once for each bookie cluster; none ever sees another cluster's bookies. New
 * ensembles are chosen by that of the active cluster, replacements by that of the ensemble's own.
 */
public final class PerClusterPlacementPolicy implements EnsemblePlacementPolicy {
    private static final Logger LOG = LoggerFactory.getLogger(PerClusterPlacementPolicy.class);
    private static final String FOLLOWER = "bookwarden.follower";
    private static final String POLICY = "bookwarden.placementPolicy";

    private ClusterFollower follower;
    private Function<BookieCluster, EnsemblePlacementPolicy> make;
    private final Map<Registry.Entry, EnsemblePlacementPolicy> policies = new ConcurrentHashMap<>();

    /** Put this policy around the configured one; the client reads its policy from the same object afterwards. */
    static void wrap(ClientConfiguration conf, ClusterFollower follower) throws ConfigurationException {
        Class<? extends EnsemblePlacementPolicy> configured = conf.getEnsemblePlacementPolicy();
        if (configured != PerClusterPlacementPolicy.class) {
            conf.setProperty(POLICY, configured.getName());
        }
        conf.setEnsemblePlacementPolicy(PerClusterPlacementPolicy.class);
        conf.setProperty(FOLLOWER, follower);
    }

    @Override
    public EnsemblePlacementPolicy initialize(ClientConfiguration conf, Optional<DNSToSwitchMapping> resolver,
                                              HashedWheelTimer timer, FeatureProvider features, StatsLogger stats,
                                              BookieAddressResolver addresses) {
        follower = (ClusterFollower) conf.getProperty(FOLLOWER);
        String name = conf.getString(POLICY);
        make = cluster -> ReflectionUtils.newInstance(name, EnsemblePlacementPolicy.class).initialize(conf, resolver,
                timer, features, stats.scopeLabel("bookie_cluster", cluster.name()), addresses);
        ClusterView view = follower.view();
        view.oldestFirst().forEach(each -> of(view, each));
        return this;
    }

    @Override
    public void uninitalize() {
        policies.values().forEach(EnsemblePlacementPolicy::uninitalize);
        policies.clear();
    }

    /** Return the policy of a cluster; a new one knows the cluster's bookies at once, before the next notification. */
    private EnsemblePlacementPolicy of(ClusterView view, BookieCluster cluster) {
        return policies.computeIfAbsent(cluster.entry(), x -> {
            EnsemblePlacementPolicy made = make.apply(cluster);
            made.onClusterChanged(only(view, cluster, cluster.writable()), only(view, cluster, cluster.readOnly()));
            return made;
        });
    }

    private static Set<BookieId> only(ClusterView view, BookieCluster cluster, Collection<BookieId> bookies) {
        Set<BookieId> found = new HashSet<>(bookies);
        found.removeIf(each -> view.clusterOf(each) != cluster);
        return found;
    }

    /** Return the policy of these bookies' cluster, for questions that any policy answers without harm. */
    private EnsemblePlacementPolicy ofAny(Collection<BookieId> bookies) {
        ClusterView view = follower.view();
        BookieCluster cluster = view.clusterOf(bookies);
        return of(view, cluster == null ? view.active() : cluster);
    }

    @Override
    public Set<BookieId> onClusterChanged(Set<BookieId> writable, Set<BookieId> readOnly) {
        ClusterView view = follower.view();
        Set<BookieId> gone = new HashSet<>();
        for (BookieCluster each : view.oldestFirst()) {
            gone.addAll(of(view, each).onClusterChanged(only(view, each, writable), only(view, each, readOnly)));
        }
        for (Registry.Entry each : policies.keySet()) {
            if (!view.registry().clusters().containsValue(each)) {
                policies.remove(each).uninitalize();
            }
        }
        return gone;
    }

    @Override
    public PlacementResult<List<BookieId>> newEnsemble(int size, int write, int ack, Map<String, byte[]> custom,
                                                       Set<BookieId> exclude) throws BKNotEnoughBookiesException {
        ClusterView view = follower.view();
        return of(view, view.active()).newEnsemble(size, write, ack, custom, exclude);
    }

    @Override
    public PlacementResult<BookieId> replaceBookie(int size, int write, int ack, Map<String, byte[]> custom,
                                                   List<BookieId> ensemble, BookieId replaced, Set<BookieId> exclude)
            throws BKNotEnoughBookiesException {
        ClusterView view = follower.view();
        BookieCluster cluster = view.clusterOf(ensemble);
        if (cluster == null) {
            Metrics.countRefusal("replacement_in_no_one_cluster");
            LOG.error("refused: bookie {} is not replaced, the bookies {} are not those of one bookie cluster",
                    replaced, ensemble);
            throw new BKNotEnoughBookiesException();
        }
        return of(view, cluster).replaceBookie(size, write, ack, custom, ensemble, replaced, exclude);
    }

    @Override
    public void registerSlowBookie(BookieId bookie, long entry) {
        ofAny(List.of(bookie)).registerSlowBookie(bookie, entry);
    }

    @Override
    public DistributionSchedule.WriteSet reorderReadSequence(List<BookieId> ensemble, BookiesHealthInfo health,
                                                             DistributionSchedule.WriteSet writeSet) {
        return ofAny(ensemble).reorderReadSequence(ensemble, health, writeSet);
    }

    @Override
    public DistributionSchedule.WriteSet reorderReadLACSequence(List<BookieId> ensemble, BookiesHealthInfo health,
                                                                DistributionSchedule.WriteSet writeSet) {
        return ofAny(ensemble).reorderReadLACSequence(ensemble, health, writeSet);
    }

    @Override
    public void updateBookieInfo(Map<BookieId, BookieInfo> infos) {
        ClusterView view = follower.view();
        for (BookieCluster each : view.oldestFirst()) {
            Map<BookieId, BookieInfo> part = new HashMap<>(infos);
            part.keySet().retainAll(only(view, each, infos.keySet()));
            of(view, each).updateBookieInfo(part);
        }
    }

    @Override
    public int getStickyReadBookieIndex(LedgerMetadata metadata, Optional<Integer> current) {
        return ofAny(metadata.getAllEnsembles().firstEntry().getValue()).getStickyReadBookieIndex(metadata, current);
    }

    @Override
    public PlacementPolicyAdherence isEnsembleAdheringToPlacementPolicy(List<BookieId> ensemble, int write, int ack) {
        return ofAny(ensemble).isEnsembleAdheringToPlacementPolicy(ensemble, write, ack);
    }

    @Override
    public boolean areAckedBookiesAdheringToPlacementPolicy(Set<BookieId> acked, int write, int ack) {
        return ofAny(acked).areAckedBookiesAdheringToPlacementPolicy(acked, write, ack);
    }

    @Override
    public PlacementResult<List<BookieId>> replaceToAdherePlacementPolicy(int size, int write, int ack,
                                                                          Set<BookieId> exclude,
                                                                          List<BookieId> ensemble) {
        return ofAny(ensemble).replaceToAdherePlacementPolicy(size, write, ack, exclude, ensemble);
    }
}
