"""Every route below `/api`."""

from weir.admin.amqp.aliveness import AlivenessRoutes
from weir.admin.amqp.bindings import BindingRoutes
from weir.admin.amqp.connections import ConnectionRoutes
from weir.admin.amqp.context import Management
from weir.admin.amqp.definitions import DefinitionRoutes
from weir.admin.amqp.exchanges import ExchangeRoutes
from weir.admin.amqp.importing import Importers
from weir.admin.amqp.limits import LimitRoutes
from weir.admin.amqp.messages import MessageRoutes
from weir.admin.amqp.overview import OverviewRoutes
from weir.admin.amqp.permissions import PermissionRoutes
from weir.admin.amqp.policies import ParameterRoutes, PolicyRoutes
from weir.admin.amqp.queues import QueueRoutes
from weir.admin.amqp.topic_permissions import TopicPermissionRoutes
from weir.admin.amqp.users import UserRoutes
from weir.admin.amqp.vhosts import VhostRoutes
from weir.admin.context import AdminContext
from weir.admin.routing import Route


def management_routes(context: AdminContext) -> list[Route]:
    """None where there are no exchanges and queues."""
    if context.exchanges is None or context.queues is None:
        return []
    management = Management(context, context.exchanges, context.queues, context.connections)
    permissions = PermissionRoutes(management)
    users = UserRoutes(management, permissions)
    vhosts = VhostRoutes(management)
    policies = PolicyRoutes(management, operator=False)
    operator_policies = PolicyRoutes(management, operator=True)
    topic_permissions, limits = TopicPermissionRoutes(management), LimitRoutes(management)
    importers = Importers(
        management, users, vhosts, permissions, topic_permissions, policies, operator_policies, limits
    )
    return [
        *OverviewRoutes(management).routes(),
        *AlivenessRoutes(management).routes(),
        *ConnectionRoutes(management).routes(),
        *ExchangeRoutes(management).routes(),
        *BindingRoutes(management).routes(),
        *QueueRoutes(management).routes(),
        *MessageRoutes(management).routes(),
        *vhosts.routes(),
        *users.routes(),
        *permissions.routes(),
        *topic_permissions.routes(),
        *limits.routes(),
        *policies.routes(),
        *operator_policies.routes(),
        *ParameterRoutes(management).routes(),
        *DefinitionRoutes(management, importers).routes(),
    ]
