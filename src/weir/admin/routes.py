"""Every route of the admin server."""

from weir.admin.addresses import Addresses
from weir.admin.amqp.routes import management_routes
from weir.admin.broker_stats import BrokerStats
from weir.admin.brokers import Brokers
from weir.admin.browse import Browse
from weir.admin.bundles import Bundles
from weir.admin.cluster import ClusterRoutes
from weir.admin.connectors import Connectors
from weir.admin.context import AdminContext, AdminSettings, ServiceUrls
from weir.admin.found import Found
from weir.admin.functions import FunctionRoutes
from weir.admin.group_settings import GroupSettingsRoutes
from weir.admin.groups import GroupRoutes
from weir.admin.half import Half
from weir.admin.held import Held
from weir.admin.isolation import IsolationPolicies
from weir.admin.lake import LakeRoutes
from weir.admin.lookup import Lookup
from weir.admin.messages import Messages
from weir.admin.namespace_backlogs import NamespaceBacklogs
from weir.admin.namespaces import Namespaces
from weir.admin.offsets import Offsets
from weir.admin.overviews import Overviews
from weir.admin.permissions import permission_routes
from weir.admin.policies import PolicyRoutes
from weir.admin.replays import ReplayRoutes
from weir.admin.retries import Retries
from weir.admin.routing import Route
from weir.admin.schemas import Schemas
from weir.admin.sinks import Sinks
from weir.admin.streams import Streams
from weir.admin.subscriptions import Subscriptions
from weir.admin.tenants import Clusters, Tenants
from weir.admin.topics import Topics
from weir.admin.trace import Traces
from weir.admin.unread import Unread
from weir.admin.waiting import Waiting
from weir.model.topics import Domain

__all__ = ["AdminContext", "AdminSettings", "ServiceUrls", "admin_routes"]


def admin_routes(context: AdminContext) -> list[Route]:
    """All of them, in the order in which they are tried."""
    return [
        *Brokers(context).routes(),
        *BrokerStats(context).routes(),
        *Clusters(context).routes(),
        *IsolationPolicies(context).routes(),
        *ClusterRoutes(context).routes(),
        *Tenants(context).routes(),
        *Namespaces(context).routes(),
        *Bundles(context).routes(),
        *NamespaceBacklogs(context).routes(),
        *Overviews(context).routes(),
        *PolicyRoutes(context, topics=False).routes(),
        *(route for domain in Domain for route in Topics(context, domain).routes()),
        *PolicyRoutes(context, topics=True).routes(),
        *Subscriptions(context).routes(),
        *Retries(context).routes(),
        *Messages(context).routes(),
        *Browse(context).routes(),
        *permission_routes(context),
        *Schemas(context).routes(),
        *(route for domain in Domain for route in Lookup(context, domain).routes()),
        *Held(context).routes(),
        *Half(context).routes(),
        *Offsets(context).routes(),
        *Waiting(context).routes(),
        *Found(context).routes(),
        *Traces(context).routes(),
        *GroupRoutes(context).routes(),
        *GroupSettingsRoutes(context).routes(),
        *Sinks(context).routes(),
        *Unread(context).routes(),
        *Streams(context).routes(),
        *Connectors(context).routes(),
        *FunctionRoutes(context).routes(),
        *ReplayRoutes(context).routes(),
        *LakeRoutes(context).routes(),
        *Addresses(context).routes(),
        *management_routes(context),
    ]
