"""Who somebody is, and what they may do."""

import asyncio
import datetime
from collections.abc import Awaitable, Callable
from functools import partial

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from weir.broker.api.security import Identity
from weir.broker.metadata.registry import Registry
from weir.broker.security.authentication import Authenticator, SecuritySettings
from weir.broker.security.authorization import Authoriser, TopicGuard
from weir.broker.security.tokens import TokenVerifier, create_token
from weir.meta.local import MemoryCore, MemoryMeta
from weir.model.errors import InvalidNameError, NotAuthenticatedError, NotAuthorisedError
from weir.model.registry import Action
from weir.model.topics import NamespaceName, TopicName
from weir.runtime.interfaces import Runtime
from weir.testing.world.world import World, simulate

SECRET = bytes(range(64))
ACME = NamespaceName("acme", "shop")
ORDERS = TopicName.parse("acme/shop/orders")
OTHER = TopicName.parse("acme/shop/other")
SECURE = SecuritySettings(authentication=True, authorisation=True, superusers=("root",))


def run(scenario: Callable[[Runtime], Awaitable[None]]) -> None:
    async def main(world: World) -> None:
        async def on_node(runtime: Runtime) -> None:
            await scenario(runtime)

        await world.node("broker").start(on_node)

    simulate(1, main)


async def started(runtime: Runtime, core: MemoryCore | None = None) -> Registry:
    registry = Registry(MemoryMeta(core or MemoryCore(runtime.clock), runtime), runtime)
    await registry.start()
    return registry


# --- authentication -------------------------------------------------------------------------------------------


def test_standalone_takes_everybody_for_anonymous() -> None:
    async def scenario(runtime: Runtime) -> None:
        authenticator = Authenticator(runtime.clock, SecuritySettings())
        assert authenticator.authenticate("", b"") == Identity("anonymous")
        assert authenticator.authenticate("token", b"nonsense") == Identity("anonymous")

    run(scenario)


def test_with_authentication_on_one_needs_credentials() -> None:
    async def scenario(runtime: Runtime) -> None:
        strict = Authenticator(runtime.clock, SECURE, tokens=TokenVerifier(SECRET))
        for method, credentials in (
            ("", b""),
            ("none", b""),
            ("basic", b"a:b"),
            ("token", b"x"),
            ("tls", b"CN=me"),
        ):
            with pytest.raises(NotAuthenticatedError):
                strict.authenticate(method, credentials)
        with pytest.raises(NotAuthenticatedError, match="too long"):
            strict.authenticate("token", bytes(200_000))
        with pytest.raises(NotAuthenticatedError, match="no tokens"):
            Authenticator(runtime.clock, SECURE).authenticate("token", b"x")
        lenient = Authenticator(
            runtime.clock, SecuritySettings(authentication=True, allow_anonymous=True, anonymous_role="guest")
        )
        assert lenient.authenticate("none", b"") == Identity("guest")
        with pytest.raises(NotAuthenticatedError):
            lenient.authenticate("token", b"x")

    run(scenario)


def test_a_token_names_a_role_until_it_runs_out() -> None:
    async def scenario(runtime: Runtime) -> None:
        authenticator = Authenticator(runtime.clock, SECURE, tokens=TokenVerifier(SECRET))
        ends_ms = (runtime.clock.wall_ms() // 1000 + 60) * 1000
        token = create_token(SECRET, "ann", expires_ms=ends_ms).encode()
        identity = authenticator.authenticate("token", token)
        assert identity == Identity("ann", ends_ms)
        assert not authenticator.expired(identity)
        await authenticator.expiry(identity)
        assert authenticator.expired(identity)
        assert ends_ms <= runtime.clock.wall_ms() < ends_ms + 1000
        with pytest.raises(NotAuthenticatedError, match="expired"):
            authenticator.authenticate("token", token)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(10_000):
                await authenticator.expiry(Identity("for ever"))

    run(scenario)


def certificate(*common_names: str, days: int = 30, since: datetime.datetime | None = None) -> bytes:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, cn) for cn in common_names])
    begins = since or datetime.datetime(1970, 1, 2, tzinfo=datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(begins)
        .not_valid_after(begins + datetime.timedelta(days=days))
        .sign(key, hashes.SHA256())
    )
    return made.public_bytes(serialization.Encoding.DER)


def test_a_client_certificate_counts_only_if_tls_verified_it() -> None:
    async def scenario(runtime: Runtime) -> None:
        authenticator = Authenticator(runtime.clock, SECURE)
        now = datetime.datetime.fromtimestamp(runtime.clock.wall_ms() / 1000, datetime.UTC).replace(microsecond=0)
        good = certificate("svc-1", since=now)
        ends_ms = int((now + datetime.timedelta(days=30)).timestamp() * 1000)
        assert authenticator.authenticate("tls", b"", certificate=good) == Identity("svc-1", ends_ms)
        assert authenticator.authenticate("", b"", certificate=good).role == "svc-1"
        bad = [certificate("a", "b", since=now), certificate(since=now), b"junk", b""]
        bad.append(certificate("late", since=now - datetime.timedelta(days=31)))
        for shown in bad:
            with pytest.raises(NotAuthenticatedError):
                authenticator.authenticate("tls", b"", certificate=shown)
        with pytest.raises(NotAuthenticatedError):
            authenticator.authenticate("tls", good)  # merely sent

    run(scenario)


# --- authorisation --------------------------------------------------------------------------------------------


def test_without_authorisation_everybody_may_do_everything() -> None:
    async def scenario(runtime: Runtime) -> None:
        authoriser = Authoriser(await started(runtime), SecuritySettings(authentication=True))
        authoriser.check("anybody", Action.PRODUCE, ORDERS)
        authoriser.check_admin("anybody", "acme")
        authoriser.check_superuser("anybody")
        authoriser.check_lookup("anybody", ACME)

    run(scenario)


#: For each role: what it may do with the topic, with another of the namespace, with the namespace, as its
#: administrator, and in the whole cluster.
ROLES = {
    "root": ("produce consume lookup", "produce consume lookup", "lookup", True, True),
    "admin": ("produce consume lookup", "produce consume lookup", "lookup", True, False),
    "on-topic": ("produce lookup", "", "", False, False),
    "on-namespace": ("consume lookup", "consume lookup", "lookup", False, False),
    "on-tenant": ("produce lookup", "produce lookup", "lookup", False, False),
    "functions": ("", "", "", False, False),
    "nobody": ("", "", "", False, False),
}


@pytest.mark.parametrize("role", ROLES)
def test_a_role_may_do_what_it_was_granted_and_nothing_else(role: str) -> None:
    async def scenario(runtime: Runtime) -> None:
        registry = await started(runtime)
        await registry.tenants.create("acme", admin_roles=("admin",))
        await registry.namespaces.create(ACME)
        await registry.grants.grant(ORDERS, "on-topic", [Action.PRODUCE])
        await registry.grants.grant(ACME, "on-namespace", [Action.CONSUME])
        await registry.grants.grant("acme", "on-tenant", [Action.PRODUCE])
        await registry.grants.grant(ACME, "functions", [Action.FUNCTIONS])
        authoriser = Authoriser(registry, SECURE)
        on_topic, on_other, on_namespace, administers, superuser = ROLES[role]
        assert _allowed(authoriser, role, ORDERS) == on_topic
        assert _allowed(authoriser, role, ORDERS.at(3)) == on_topic
        assert _allowed(authoriser, role, OTHER) == on_other
        assert ("lookup" in _allowed(authoriser, role, ACME)) is ("lookup" in on_namespace)
        for scope in ("acme", ACME, ORDERS):
            assert _raises(lambda scope=scope: authoriser.check_admin(role, scope)) is not administers
        assert _raises(lambda: authoriser.check_superuser(role)) is not superuser
        for elsewhere in ("public", NamespaceName("public", "default"), TopicName.parse("orders")):
            assert (_allowed(authoriser, role, elsewhere) != "") is superuser
        assert authoriser.may("functions", Action.FUNCTIONS, ORDERS)

    run(scenario)


def _allowed(authoriser: Authoriser, role: str, scope: str | NamespaceName | TopicName) -> str:
    found = [
        action.value
        for action in (Action.PRODUCE, Action.CONSUME)
        if not _raises(partial(authoriser.check, role, action, scope))
    ]
    if not _raises(lambda: authoriser.check_lookup(role, scope)):
        found.append("lookup")
    return " ".join(found)


def _raises(call: Callable[[], None]) -> bool:
    try:
        call()
    except NotAuthorisedError:
        return True
    return False


def test_topics_ask_by_action_or_just_whether_they_may_be_known() -> None:
    async def scenario(runtime: Runtime) -> None:
        registry = await started(runtime)
        await registry.grants.grant(ORDERS, "ann", [Action.CONSUME])
        guard = TopicGuard(Authoriser(registry, SECURE))
        guard.check("ann", ORDERS, None)
        guard.check("ann", ORDERS.at(1), Action.CONSUME, subscription="s")
        with pytest.raises(NotAuthorisedError):
            guard.check("ann", ORDERS, Action.PRODUCE)
        with pytest.raises(NotAuthorisedError):
            guard.check("bob", ORDERS, None)

    run(scenario)


def test_a_grant_replaces_the_one_before_and_is_taken_back_on_every_broker() -> None:
    async def scenario(runtime: Runtime) -> None:
        core = MemoryCore(runtime.clock)
        one, other = await started(runtime, core), await started(runtime, core)
        authoriser = Authoriser(other, SECURE)
        await one.grants.grant(ORDERS, "ann", [Action.PRODUCE, Action.CONSUME])
        await one.grants.grant(ORDERS, "bob", [Action.PRODUCE])
        await runtime.clock.sleep(1)
        seen = authoriser.revision
        authoriser.check("ann", Action.PRODUCE, ORDERS)
        waiting = asyncio.ensure_future(authoriser.change(seen))
        await one.grants.grant(ORDERS, "ann", [Action.CONSUME])
        assert await waiting != seen
        assert not authoriser.may("ann", Action.PRODUCE, ORDERS)
        seen = authoriser.revision
        await one.grants.revoke(ORDERS, "ann")
        await authoriser.change(seen)
        assert not authoriser.may("ann", Action.CONSUME, ORDERS)
        assert authoriser.may("bob", Action.PRODUCE, ORDERS)
        seen = authoriser.revision
        await one.tenants.create("acme", admin_roles=("ann",))
        await authoriser.change(seen)
        assert authoriser.may("ann", Action.CONSUME, ORDERS)
        await one.grants.revoke(OTHER, "nobody")  # fine

    run(scenario)


def test_nobody_but_superusers_administers_what_brokers_keep_for_themselves() -> None:
    async def scenario(runtime: Runtime) -> None:
        authoriser = Authoriser(await started(runtime), SECURE)
        authoriser.check_admin("root", "pulsar")
        with pytest.raises(NotAuthorisedError):
            authoriser.check_admin("admin", "pulsar")

    run(scenario)


@pytest.mark.parametrize("role", ["", "a\nb", "x" * 1025])
def test_what_cannot_be_a_role_gets_no_grant(role: str) -> None:
    async def scenario(runtime: Runtime) -> None:
        registry = await started(runtime)
        with pytest.raises(InvalidNameError):
            await registry.grants.grant(ORDERS, role, [Action.PRODUCE])

    run(scenario)
