"""A real Pulsar on this machine, for the demo and the tests."""

from bookwarden.devcluster.cluster import DevCluster, ServerStatus
from bookwarden.devcluster.process import ServerProcess, ServerSpec
from bookwarden.devcluster.settings import ClusterOptions, ClusterPorts

__all__ = ["ClusterOptions", "ClusterPorts", "DevCluster", "ServerProcess", "ServerSpec", "ServerStatus"]
