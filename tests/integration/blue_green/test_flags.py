"""The flags of a cluster and of a namespace, and the nodes of topics, as the brokers of both clusters have them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bookwarden.redirects import ClusterFlag, RedirectUrls
from bookwarden.wiring.blue_green import redirect_urls
from servers.blue_green.site import BlueGreenSite, blue_green_site

pytestmark = [pytest.mark.servers, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BlueGreenSite]:
    with blue_green_site(tmp_path_factory.mktemp("flags")) as running:
        yield running


def test_the_flags_are_written_and_read_back(site: BlueGreenSite) -> None:
    namespace = site.make_namespace("flags/one")
    with site.context() as context:
        blue, admin = context.blue, context.blue.admin
        assert (blue.cluster, context.green.cluster) == ("blue", "green")
        assert admin.read_flag(blue.cluster) is None
        urls = redirect_urls(context.clients)
        admin.write_flag(blue.cluster, ClusterFlag(False, urls))
        assert admin.read_flag(blue.cluster) == ClusterFlag(False, urls)
        assert not admin.is_migrated(namespace)
        admin.set_migrated(namespace, True)
        assert admin.is_migrated(namespace)
        admin.set_migrated(namespace, False)
        admin.write_flag(blue.cluster, ClusterFlag(False, RedirectUrls()))
        assert context.green.admin.read_flag("green") is None
