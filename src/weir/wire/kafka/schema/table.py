"""The table of Kafka's messages, one module per family of APIs."""

from weir.wire.kafka.schema import cluster, groups, produce_fetch, topics, transactions
from weir.wire.kafka.schema.layout import Api, Layout

_FAMILIES = (produce_fetch, topics, groups, transactions, cluster)

#: Every API by its key, in the order of keys.
APIS: dict[int, Api] = {
    api.key: api for api in sorted((api for family in _FAMILIES for api in family.APIS), key=lambda api: api.key)
}

#: Every message by its name.
LAYOUTS: dict[str, Layout] = {
    layout.name: layout
    for layout in (*(one for api in APIS.values() for one in (api.request, api.response)), *groups.LAYOUTS)
}
