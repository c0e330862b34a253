"""Consumer groups as one role may use them: the coordinator behind the question whose a group is.

Which group a name means, and whether the role may use it, is asked here on every path. What a role may not know of
is answered as if it were not there; only who would make a group of that name is told that it is taken.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from weir.broker.api.broker import Owner
from weir.broker.api.groups import GroupInfo, Joined, JoinRequest, Synced, SyncRequest
from weir.broker.groups.group import GroupClaims
from weir.broker.groups.group_coordinator import GroupCoordinator
from weir.broker.metadata.registry import Registry
from weir.broker.peers.peer_calls import PeerCalls, PeerHandlers
from weir.broker.security.authorization import TO_HAVE_GROUPS, Authoriser
from weir.model.errors import (
    IllegalGenerationError,
    InvalidGroupError,
    InvalidNameError,
    NotAuthorisedError,
    UnknownGroupError,
    UnknownMemberError,
    WeirError,
)
from weir.model.registry import Action
from weir.model.topics import TopicName, check_unmarked, full_name, kept_name, plain_name, tenant_of_name
from weir.model.transactions import CommittedOffset
from weir.runtime.interfaces import Clock
from weir.wire.peer.coordinator_calls import AskKeptGroup, KeptGroup

#: So many groups are looked at, then it is the others' turn.
_GROUPS_PER_TURN = 200


class GroupAccess:
    """The coordinator's groups, for every role. `peers`: other brokers, which coordinate the other groups."""

    def __init__(
        self,
        groups: GroupCoordinator,
        authoriser: Authoriser,
        registry: Registry,
        clock: Clock,
        peers: PeerCalls | None = None,
    ) -> None:
        self._groups = groups
        self._authoriser = authoriser
        self._registry = registry
        self._clock = clock
        self._peers = peers

    def of(self, role: str) -> "OwnedGroups":
        return OwnedGroups(
            self._groups, self._authoriser, self._registry, self._clock, role=role, peers=self._peers
        )

    def answer(self, handlers: PeerHandlers) -> None:
        """Answer other brokers for the groups that are here."""
        handlers.on(AskKeptGroup, self._kept_for)

    async def _kept_for(self, request: AskKeptGroup) -> KeptGroup:
        groups = OwnedGroups(self._groups, self._authoriser, self._registry, self._clock, role=request.role)
        return KeptGroup(await groups.kept(request.name))


class OwnedGroups:
    """What the coordinator offers, by the names and within the rights of a role."""

    def __init__(
        self,
        groups: GroupCoordinator,
        authoriser: Authoriser,
        registry: Registry,
        clock: Clock,
        *,
        role: str,
        peers: PeerCalls | None = None,
    ) -> None:
        self._groups = groups
        self._authoriser = authoriser
        self._owners = authoriser.names
        self._registry = registry
        self._clock = clock
        self._role = role
        self._peers = peers
        self._everything = authoriser.is_superuser(role)

    # --- membership -------------------------------------------------------------------------------------

    async def join(self, name: str, request: JoinRequest) -> Joined:
        """NotAuthorisedError if the group is others'."""
        kept = await self._usable(name)
        topics = [topic for topic in request.topics if self._may_consume(self._role, topic)]
        bounded = not self._everything
        return await self._groups.join(
            kept, replace(request, role=self._role, topics=tuple(topics), bounded=bounded)
        )

    async def sync(self, name: str, request: SyncRequest) -> Synced:
        """A leader may say what it likes: members are known to have what their own roles may consume."""
        kept = await self._with_member(name, request.member_id)
        if request.parts and not self._everything:
            roles = await self._groups.roles(kept, request.parts)
            parts = {
                member: [part for part in given if member in roles and self._may_consume(roles[member], part)]
                for member, given in request.parts.items()
            }
            request = replace(request, parts=parts)
        return await self._groups.sync(kept, request)

    async def heartbeat(self, name: str, member_id: str, generation: int, instance_id: str | None = None) -> None:
        kept = await self._with_member(name, member_id)
        await self._groups.heartbeat(kept, member_id, generation, instance_id)

    async def leave(self, name: str, members: Sequence[tuple[str, str | None]]) -> list[WeirError | None]:
        kept = await self._kept(name)
        if not await self._may_use(kept):
            return [_no_member(name)] * len(members)
        return await self._groups.leave(kept, members)

    async def check_member(
        self, name: str, member_id: str, generation: int, instance_id: str | None = None
    ) -> Callable[[], None]:
        kept = await self._kept(name)
        if not await self._may_use(kept):
            raise _others(name) if generation < 0 else IllegalGenerationError(_nothing(name))
        return await self._groups.check_member(
            kept, member_id, generation, instance_id, role=self._role, bounded=not self._everything
        )

    async def kept(self, name: str) -> str:
        """What the coordinator calls the group, for a transaction that moves its positions; NotAuthorisedError.
        The one coordinator that is asked for groups of others: a transaction's may be elsewhere."""
        if self._peers is not None:
            owner = await self._groups.owner(name)
            if not owner.here:
                return (await self._peers.ask(owner.broker_id, AskKeptGroup(self._role, name))).name
        return await self._usable(name)

    # --- positions --------------------------------------------------------------------------------------

    async def commit(
        self,
        name: str,
        positions: Mapping[TopicName, CommittedOffset],
        *,
        member_id: str = "",
        generation: int = -1,
        instance_id: str | None = None,
    ) -> dict[TopicName, WeirError | None]:
        kept = await self._kept(name)
        if generation >= 0 and not await self._is_mine(kept, member_id) and not await self._may_use(kept):
            raise UnknownGroupError(_nothing(name))
        if generation < 0 and not await self._may_use(kept):
            raise _others(name)
        return await self._groups.commit(
            kept,
            positions,
            member_id=member_id,
            generation=generation,
            instance_id=instance_id,
            role=self._role,
            bounded=not self._everything,
        )

    async def fetch(
        self, name: str, parts: Sequence[TopicName] | None = None, *, stable: bool = False
    ) -> dict[TopicName, CommittedOffset | WeirError]:
        """Positions on topics that the role may consume are its to know, whosever group they are."""
        found = await self._groups.fetch(await self._kept(name), parts, stable=stable)
        return {part: at for part, at in found.items() if self._may_consume(self._role, part)}

    async def delete_offsets(self, name: str, parts: Sequence[TopicName]) -> dict[TopicName, WeirError | None]:
        return await self._groups.delete_offsets(await self._known(name), parts)

    # --- administration ---------------------------------------------------------------------------------

    async def all(self) -> list[GroupInfo]:
        """Every group that the role may use."""
        listed = await self._groups.all()
        if self._everything:
            named = [replace(info, name=full_name(info.name)) for info in listed]
            return sorted(named, key=lambda info: info.name)
        try:
            own = await self._owners.tenant(self._role, TO_HAVE_GROUPS, "")
        except NotAuthorisedError:
            return []
        found: list[GroupInfo] = []
        for number, info in enumerate(listed, 1):
            if not number % _GROUPS_PER_TURN:
                await self._clock.sleep(0)
            tenant, plain = tenant_of_name(info.name), plain_name(info.name)
            name = plain if tenant == own else full_name(info.name)
            if await self._resolved(own, name) == info.name and await self._may_use(info.name):
                found.append(replace(info, name=name))
        return found

    async def describe(self, name: str) -> GroupInfo:
        """UnknownGroupError if there is none that the role may use."""
        return replace(await self._groups.describe(await self._known(name)), name=name)

    async def delete(self, name: str) -> None:
        await self._groups.delete(await self._known(name))

    async def owner_here(self, name: str) -> bool:
        """Whether this broker is the one to ask for the group; NotAuthorisedError for who has no groups."""
        if not self._everything:
            self._owners.check(self._role, TO_HAVE_GROUPS)
        return (await self._groups.owner(name)).here

    async def owner(self, name: str) -> Owner:
        """The broker to ask for the group; NotAuthorisedError for who has no groups."""
        if not self._everything:
            self._owners.check(self._role, TO_HAVE_GROUPS)
        return await self._groups.owner(name)

    # --- which group is meant -------------------------------------------------------------------------------

    async def _kept(self, name: str) -> str:
        """NotAuthorisedError for a role that may consume nothing at all, whatever there is."""
        try:
            if self._everything:
                check_unmarked(name)
                return await self._resolved("", name)
            return await self._resolved(await self._owners.tenant(self._role, TO_HAVE_GROUPS, name), name)
        except InvalidNameError as bad:
            raise InvalidGroupError(bad.what, hint=bad.hint) from None

    async def _resolved(self, own: str, name: str) -> str:
        """The role's own tenant's; else, if there is one, another tenant's as `tenant/name`, or one from before
        names were tenants', of which all is in this tenant."""
        kept = kept_name(own, name)
        if not name or (not own and "/" not in name) or await self._groups.exists(kept):
            return kept
        tenant, slash, plain = name.partition("/")
        if slash and plain and (self._everything or self._owners.is_of(self._role, tenant)):
            theirs = kept_name(tenant, plain)
            if await self._groups.exists(theirs):
                return theirs
        before = await self._groups.claims(name) if own else None
        if before is not None and before.parts and {part.namespace.tenant for part in before.parts} == {own}:
            return name
        return kept

    # --- who may ----------------------------------------------------------------------------------------

    async def _usable(self, name: str) -> str:
        kept = await self._kept(name)
        if not await self._may_use(kept):
            raise _others(name)
        return kept

    async def _known(self, name: str) -> str:
        kept = await self._kept(name)
        if not await self._may_use(kept):
            raise UnknownGroupError(_nothing(name))
        return kept

    async def _with_member(self, name: str, member_id: str) -> str:
        kept = await self._kept(name)
        if not await self._is_mine(kept, member_id) and not await self._may_use(kept):
            raise _no_member(name)
        return kept

    async def _is_mine(self, kept: str, member_id: str) -> bool:
        roles = await self._groups.roles(kept, [member_id])
        return self._everything or roles.get(member_id) == self._role

    async def _may_use(self, kept: str) -> bool:
        """Whether the group is the role's to use. One that there is not is anybody's whose name it would be."""
        if self._everything:
            return True
        claims = await self._groups.claims(kept)
        return claims is None or await self._claims_allow(kept, claims)

    async def _claims_allow(self, kept: str, claims: GroupClaims) -> bool:
        role, tenant = self._role, tenant_of_name(kept)
        bases = [
            base
            for base in dict.fromkeys(part.base for part in claims.parts)
            if await self._registry.topics.look(base) is not None
        ]
        if bases:  # of those deleted since, no grants are left
            may = [self._authoriser.may(role, Action.CONSUME, base) for base in bases]
            # Others may have come to a founder's group with topics of their own.
            return any(may) if role == claims.founder else all(may)
        if role == claims.founder or role in claims.roles:
            return True
        if not claims.founder and not claims.roles - {""}:  # from before roles were noted
            return self._owners.is_of(role, tenant)
        return self._owners.administers(role, tenant) and self._owners.is_of(claims.founder, tenant)

    def _may_consume(self, role: str, topic: TopicName) -> bool:
        return self._authoriser.may(role, Action.CONSUME, topic)


def _nothing(name: str) -> str:
    return f"there is no group {name[:80]!r}"


def _no_member(name: str) -> UnknownMemberError:
    return UnknownMemberError(f"group {name[:80]!r} has no members")


def _others(name: str) -> NotAuthorisedError:
    return NotAuthorisedError(f"{name[:80]!r} is a group of others", hint="choose another name")
