/**
 * Several bookie clusters, shown to a Pulsar broker as one.
 *
 * <p>{@link bookwarden.broker.BookieClustersDriver} is what BookKeeper's client loads. All clients of a process share a
 * {@link bookwarden.broker.ClusterFollower}, which reads the registry of bookie clusters and follows its changes;
 * {@link bookwarden.broker.ClusterView} is what holds from one change to the next.
 * {@link bookwarden.broker.RoutingLedgerManager} sends each ledger to the cluster that has it, and
 * {@link bookwarden.broker.PerClusterPlacementPolicy} never lets an ensemble mix bookies of two.
 *
 * <p>The registry, and the marks in the custom metadata of ledgers, are also read and written in Python
 * (src/bookwarden/bookie_clusters). What must never happen is that a ledger is taken for absent although it is only not known
 * where it is: a managed ledger forgets a last ledger that is absent.
 */
package bookwarden.broker;
