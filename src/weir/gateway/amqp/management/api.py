"""All routes of the management API below `/api`."""

from dataclasses import replace

from weir.admin.context import AdminContext
from weir.gateway.amqp.management.connections import ConnectionRoutes
from weir.gateway.amqp.management.definitions import DefinitionRoutes, Importers
from weir.gateway.amqp.management.errors import MANAGEMENT_FORM
from weir.gateway.amqp.management.exchanges import BindingRoutes, ExchangeRoutes
from weir.gateway.amqp.management.overview import AlivenessRoutes, OverviewRoutes
from weir.gateway.amqp.management.queues import MessageRoutes, QueueRoutes
from weir.gateway.amqp.management.service import Management
from weir.gateway.amqp.management.users import PermissionRoutes, TopicPermissionRoutes, UserRoutes
from weir.gateway.amqp.management.vhosts import LimitRoutes, ParameterRoutes, PolicyRoutes, VhostRoutes
from weir.rest.routes import Route


def management_routes(context: AdminContext) -> list[Route]:
    """All management routes; none if this broker serves no exchanges and queues."""
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
    routes = [
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
    return [replace(route, form=MANAGEMENT_FORM) for route in routes]
