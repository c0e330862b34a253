"""All routes of the admin server."""

from weir.admin.brokers import Brokers, BrokerStats
from weir.admin.browse import Browse, Found, Offsets
from weir.admin.cluster import Addresses, ClusterRoutes, IsolationPolicies
from weir.admin.connectors import Connectors
from weir.admin.consumer_groups import GroupRoutes, GroupSettingsRoutes
from weir.admin.context import AdminContext, AdminSettings, ServiceUrls
from weir.admin.dead_letters import Retries
from weir.admin.delayed_messages import Held
from weir.admin.functions import FunctionRoutes
from weir.admin.lake import LakeRoutes
from weir.admin.messages import Messages
from weir.admin.namespaces import Bundles, NamespaceBacklogs, Namespaces
from weir.admin.overviews import Overviews
from weir.admin.policies import PolicyRoutes
from weir.admin.prepared_messages import Half
from weir.admin.replays import ReplayRoutes
from weir.admin.schemas import Schemas
from weir.admin.sink_epochs import Sinks
from weir.admin.streams import Streams
from weir.admin.subscriptions import Subscriptions, Waiting
from weir.admin.tenants import Clusters, Tenants, permission_routes
from weir.admin.topics import Lookup, Topics
from weir.admin.trace import Traces
from weir.admin.worker_lag import Unread
from weir.model.topics import Domain
from weir.rest.routes import Route

__all__ = ["AdminContext", "AdminSettings", "ServiceUrls", "admin_routes"]


def admin_routes(context: AdminContext) -> list[Route]:
    """All routes, in matching order."""
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
    ]
