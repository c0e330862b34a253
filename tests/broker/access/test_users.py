"""Users with passwords, and what RabbitMQ's patterns of names let them do."""

import asyncio
import base64
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from weir.broker.api.security import Identity
from weir.broker.metadata.grants import hash_password
from weir.broker.metadata.registry import Registry
from weir.broker.security.authentication import Authenticator, SecuritySettings
from weir.broker.security.authorization import TO_HAVE_GROUPS, Authoriser, ExchangeAccess, NameOwners, TopicGuard
from weir.broker.security.tokens import TokenVerifier, create_token
from weir.meta.local import MemoryCore, MemoryMeta
from weir.model.errors import InvalidNameError, NotAllowedError, NotAuthenticatedError, NotAuthorisedError
from weir.model.queues import namespace_of_vhost, topic_of_queue, vhost_of
from weir.model.registry import Action, Grants, NamePatterns, PasswordHashing, User, tags_of
from weir.model.topics import NamespaceName
from weir.runtime.interfaces import Runtime
from weir.testing.world.world import World, simulate
from weir.wire.registry import decode_grants, encode_grants

SECRET = bytes(range(64))
NS = NamespaceName("public", "default")
SECURE = SecuritySettings(authentication=True, authorisation=True, superusers=("root",))


def run(scenario: Callable[[Runtime, Registry, Registry], Awaitable[None]]) -> None:
    """With the registries of two brokers of one cluster."""

    async def main(world: World) -> None:
        async def on_node(runtime: Runtime) -> None:
            core = MemoryCore(runtime.clock)
            one, two = [Registry(MemoryMeta(core, runtime), runtime) for _ in range(2)]
            await one.start()
            await two.start()
            await scenario(runtime, one, two)

        await world.node("broker").start(on_node)

    simulate(1, main)


# --- passwords ------------------------------------------------------------------------------------------------


def test_a_hash_of_a_real_rabbitmq_lets_its_password_in() -> None:
    """RabbitMQ's own example (its guide on passwords): salt 908D C60A, password test12."""

    async def scenario(runtime: Runtime, registry: Registry, _: Registry) -> None:
        known = "kI3GCqW5JLMJa4iX1lo7X4D6XbYqlLgxIs30+P6tENUV2POR"
        assert hash_password(b"test12", bytes.fromhex("908DC60A"), PasswordHashing.SHA256) == known
        await registry.users.put(User("ann", known))
        authenticator = Authenticator(runtime.clock, SECURE, users=registry.users)
        assert authenticator.authenticate("password", b"ann\0test12") == Identity("ann")
        for wrong in (b"ann\0test13", b"ann\0", b"ann", b"", b"bob\0test12", b"\0test12", b"ann\0test12\0"):
            with pytest.raises(NotAuthenticatedError):
                authenticator.authenticate("password", wrong)

    run(scenario)


@pytest.mark.parametrize("hashing", list(PasswordHashing))
def test_a_user_gets_in_by_its_password_on_every_broker_until_it_is_deleted(hashing: PasswordHashing) -> None:
    async def scenario(runtime: Runtime, one: Registry, two: Registry) -> None:
        hashed = hash_password("pässword".encode(), b"salt", hashing)
        assert await one.users.put(User("ann", hashed, hashing, ("management",)))
        assert not await one.users.put(User("ann", hashed, hashing))
        while two.users.find("ann") != one.users.find("ann"):
            await asyncio.sleep(0)
        authenticator = Authenticator(runtime.clock, SECURE, users=two.users)
        assert authenticator.authenticate("password", "ann\0pässword".encode()).role == "ann"
        assert await one.users.delete("ann")
        assert not await one.users.delete("ann")
        while two.users.find("ann") is not None:
            await asyncio.sleep(0)
        with pytest.raises(NotAuthenticatedError):
            authenticator.authenticate("password", "ann\0pässword".encode())

    run(scenario)


def test_hashes_have_salt_of_their_own_and_an_empty_one_lets_nobody_in() -> None:
    async def scenario(runtime: Runtime, registry: Registry, _: Registry) -> None:
        users = registry.users
        assert users.hashed("x") != users.hashed("x")
        await users.put(User("ann", users.hashed("x")))
        await users.put(User("nobody", ""))
        await users.put(User("blank", users.hashed("")))
        assert users.names() == ["ann", "blank", "nobody"]
        authenticator = Authenticator(runtime.clock, SECURE, users=users)
        assert authenticator.authenticate("password", b"ann\0x") == Identity("ann")
        for credentials in (b"nobody\0", b"nobody\0x", b"blank\0"):
            with pytest.raises(NotAuthenticatedError):
                authenticator.authenticate("password", credentials)
        for bad in ("x", "not base64!", base64.b64encode(bytes(35)).decode()):
            with pytest.raises(NotAllowedError):
                await users.put(User("ann", bad))
        with pytest.raises(InvalidNameError):
            await users.put(User("a\0b", users.hashed("x")))

    run(scenario)


def test_a_token_is_a_password_for_its_own_role_and_a_password_may_look_like_one() -> None:
    async def scenario(runtime: Runtime, registry: Registry, _: Registry) -> None:
        await registry.users.put(User("ann", registry.users.hashed("a.b.c")))
        authenticator = Authenticator(runtime.clock, SECURE, tokens=TokenVerifier(SECRET), users=registry.users)
        token = create_token(SECRET, "bob").encode()
        assert authenticator.authenticate("password", b"whoever\0" + token) == Identity("bob")
        assert authenticator.authenticate("password", b"ann\0a.b.c") == Identity("ann")
        with pytest.raises(NotAuthenticatedError, match="the token is not valid"):
            authenticator.authenticate("password", b"bob\0a.b.c")
        assert "password" in authenticator.methods

    run(scenario)


def test_with_authentication_off_any_name_and_password_do() -> None:
    async def scenario(runtime: Runtime, registry: Registry, _: Registry) -> None:
        authenticator = Authenticator(runtime.clock, SecuritySettings(), users=registry.users)
        assert authenticator.authenticate("password", b"guest\0guest") == Identity("anonymous")

    run(scenario)


# --- tags -----------------------------------------------------------------------------------------------------


def test_an_administrator_may_everything_and_the_other_tags_do_not() -> None:
    async def scenario(runtime: Runtime, registry: Registry, _: Registry) -> None:
        authoriser = Authoriser(registry, SECURE)
        seen = authoriser.revision
        await registry.users.put(User("ann", tags=("administrator",)))
        assert authoriser.revision > seen
        assert authoriser.is_superuser("ann")
        assert authoriser.may("ann", Action.PRODUCE, NS)
        for tag, looks in (("monitoring", True), ("management", False), ("policymaker", False)):
            await registry.users.put(User("ann", tags=(tag,)))
            assert not authoriser.is_superuser("ann")
            assert not authoriser.may("ann", Action.CONSUME, NS)
            assert authoriser.may_monitor("ann") is looks
        assert authoriser.may_monitor("root")
        assert not authoriser.may_monitor("nobody")

    run(scenario)


def test_tags_are_a_list_or_text_with_commas() -> None:
    assert tags_of("administrator, monitoring,") == tags_of(["administrator", "monitoring"])
    assert tags_of("") == ()


# --- patterns -------------------------------------------------------------------------------------------------


def test_every_name_is_a_grant_on_the_namespace() -> None:
    async def scenario(runtime: Runtime, registry: Registry, _: Registry) -> None:
        await registry.grants.permit(NS, "ann", NamePatterns(".*", ".*", ".*"))
        assert registry.grants.on(NS) == Grants({"ann": (Action.PRODUCE, Action.CONSUME)})
        await registry.grants.permit(NS, "ann", NamePatterns("", ".*", ""))
        assert registry.grants.on(NS).roles == {"ann": (Action.PRODUCE,)}
        assert Authoriser(registry, SECURE).may("ann", Action.PRODUCE, NS)
        await registry.grants.grant(NS, "ann", [Action.CONSUME])
        assert registry.grants.on(NS) == Grants({"ann": (Action.CONSUME,)})
        await registry.grants.permit(NS, "ann", NamePatterns("^a", "^a", "^a"))
        await registry.grants.revoke(NS, "ann")
        assert registry.grants.on(NS) == Grants()

    run(scenario)


def test_patterns_allow_the_names_that_they_are_found_in() -> None:
    async def scenario(runtime: Runtime, registry: Registry, _: Registry) -> None:
        authoriser = Authoriser(registry, SECURE)
        access = ExchangeAccess(authoriser)
        seen = authoriser.revision
        await registry.grants.permit(NS, "ann", NamePatterns("^mine", "^(a|b)$", "/deep"))
        assert authoriser.revision > seen

        def may(name: str) -> list[str]:
            topic = topic_of_queue(NS, name)
            allowed = [a.value for a in (Action.PRODUCE, Action.CONSUME) if authoriser.may("ann", a, topic)]
            return [*allowed, "configure"] if authoriser.may_configure("ann", topic) else allowed

        assert may("a") == ["produce"]
        assert may("ab") == []
        assert may("x/deep/y") == ["consume"]
        assert may("mine/deep") == ["consume", "configure"]
        assert authoriser.may_look("ann", NS)
        assert not authoriser.may("ann", Action.PRODUCE, NS)
        assert not authoriser.may_configure("ann", NS)
        access.check_configure("ann", NS, "mine.exchange")
        with pytest.raises(NotAuthorisedError):
            access.check_configure("ann", NS, "a")
        assert NameOwners(registry).rights("ann") == {"public": {Action.PRODUCE, Action.CONSUME}}
        NameOwners(registry).check("ann", TO_HAVE_GROUPS)
        await registry.grants.permit(NS, "ann", NamePatterns("^$", "", "^$"))
        assert not authoriser.may_look("ann", NS)
        assert NameOwners(registry).rights("ann") == {}

    run(scenario)


def test_who_may_write_and_read_everywhere_may_be_kept_from_configuring() -> None:
    async def scenario(runtime: Runtime, registry: Registry, _: Registry) -> None:
        authoriser = Authoriser(registry, SECURE)
        await registry.grants.permit(NS, "ann", NamePatterns("^$", ".*", ".*"))
        await registry.grants.grant(NS, "bob", [Action.PRODUCE, Action.CONSUME])
        topic = topic_of_queue(NS, "q")
        assert authoriser.may("ann", Action.PRODUCE, topic)
        assert authoriser.may("ann", Action.CONSUME, topic)
        assert not authoriser.may_configure("ann", topic)
        assert authoriser.may_configure("bob", topic)

    run(scenario)


def test_a_pattern_may_look_around_as_those_of_a_rabbitmq_do() -> None:
    async def scenario(runtime: Runtime, registry: Registry, _: Registry) -> None:
        authoriser = Authoriser(registry, SECURE)
        await registry.grants.permit(NS, "ann", NamePatterns("", r"^(?!amq\.)", ""))
        assert authoriser.may("ann", Action.PRODUCE, topic_of_queue(NS, "mine"))
        assert not authoriser.may("ann", Action.PRODUCE, topic_of_queue(NS, "amq.topic"))

    run(scenario)


@pytest.mark.parametrize("pattern", ["(", "(?=look", r"(a)\1", "x" * 600])
def test_what_is_no_pattern_is_refused(pattern: str) -> None:
    async def scenario(runtime: Runtime, registry: Registry, _: Registry) -> None:
        with pytest.raises(NotAllowedError):
            await registry.grants.permit(NS, "ann", NamePatterns(pattern, ".*", ".*"))
        assert registry.grants.on(NS) == Grants()

    run(scenario)


def test_grants_keep_their_patterns_in_the_metadata_and_other_actions_stay() -> None:
    grants = Grants({"ann": (Action.FUNCTIONS,)}).permitted("ann", NamePatterns("a", "b", "c"))
    assert grants.roles == {"ann": (Action.FUNCTIONS,)}
    assert decode_grants(encode_grants(grants)) == grants
    assert b"patterns" not in encode_grants(replace(grants, patterns={}))
    assert grants.revoked("ann") == Grants()


def test_the_guard_of_topics_asks_for_what_may_be_configured() -> None:
    async def scenario(runtime: Runtime, registry: Registry, _: Registry) -> None:
        guard = TopicGuard(Authoriser(registry, SECURE))
        await registry.grants.permit(NS, "ann", NamePatterns("^mine$", "", ""))
        guard.check_configure("ann", topic_of_queue(NS, "mine"))
        with pytest.raises(NotAuthorisedError):
            guard.check_configure("ann", topic_of_queue(NS, "other"))

    run(scenario)


def test_vhosts_are_namespaces() -> None:
    for vhost, namespace in (("/", "public/default"), ("one", "public/one"), ("a/b", "a/b")):
        assert str(namespace_of_vhost(vhost)) == namespace
        assert vhost_of(namespace_of_vhost(vhost)) == vhost
    with pytest.raises(InvalidNameError):
        namespace_of_vhost("no such name")
