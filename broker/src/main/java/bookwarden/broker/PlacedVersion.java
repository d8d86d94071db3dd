package bookwarden.broker;

import org.apache.bookkeeper.versioning.Version;

/**
 * The version of a ledger's metadata, and where it is. The client hands it back with each write, which so goes, without
 * a look-up, to where the metadata came from, with that cluster's own compare-and-set.
 *
 * @param epoch of the registry when it was read or written
 * @param active whether its cluster was the active one then
 * @param cluster name of its cluster
 * @param since registration of its cluster
 * @param inner the version there
 */
record PlacedVersion(long epoch, boolean active, String cluster, long since, Version inner) implements Version {
    /**
     * In one place the version there tells which is newer, whatever the registry did meanwhile: what a switch makes
     * appear newer may have come from a cache. Of two places the one that was asked first at the later epoch is newer.
     */
    @Override
    public Occurred compare(Version version) {
        if (version == null) {
            throw new NullPointerException("no version to compare with");
        }
        if (version == Version.NEW) {
            return Occurred.AFTER;
        }
        if (version == Version.ANY) {
            return Occurred.CONCURRENTLY;
        }
        if (!(version instanceof PlacedVersion)) {
            throw new IllegalArgumentException("not a version of the virtual bookie cluster: " + version);
        }
        PlacedVersion other = (PlacedVersion) version;
        if (isSamePlace(other)) {
            return inner.compare(other.inner);
        }
        int order = Long.compare(epoch, other.epoch);
        order = order != 0 ? order : Boolean.compare(active, other.active);
        order = order != 0 ? order : Long.compare(since, other.since);
        order = order != 0 ? order : other.cluster.compareTo(cluster);
        return order < 0 ? Occurred.BEFORE : Occurred.AFTER;
    }

    private boolean isSamePlace(PlacedVersion other) {
        return cluster.equals(other.cluster) && since == other.since;
    }
}
