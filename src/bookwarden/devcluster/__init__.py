"""A real Pulsar on this machine, for the demo and the tests."""

from bookwarden.devcluster.cluster import DevCluster
from bookwarden.devcluster.processes.process import ServerProcess, ServerSpec
from bookwarden.devcluster.servers.settings import ClusterOptions, ClusterPorts
from bookwarden.devcluster.status import ServerStatus

__all__ = ["ClusterOptions", "ClusterPorts", "DevCluster", "ServerProcess", "ServerSpec", "ServerStatus"]
