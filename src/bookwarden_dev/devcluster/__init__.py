"""A real Pulsar on this machine, for the demo and the tests."""

from bookwarden_dev.devcluster.cluster import DevCluster
from bookwarden_dev.devcluster.processes.process import ServerProcess, ServerSpec
from bookwarden_dev.devcluster.servers.settings import ClusterOptions, ClusterPorts
from bookwarden_dev.devcluster.state import ServerStatus

__all__ = ["ClusterOptions", "ClusterPorts", "DevCluster", "ServerProcess", "ServerSpec", "ServerStatus"]
