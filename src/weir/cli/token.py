"""`weir token`: keys and tokens (JWT) that authenticate a client's role."""

import base64
import json
from pathlib import Path

import click

from weir.broker.security.tokens import (
    access_key_secret,
    create_key_pair,
    create_secret,
    create_token,
    load_private_key,
    load_secret,
    read_key,
)
from weir.cli.command import examples
from weir.cli.output import Output, print_json
from weir.cli.remote import Remote, remote_options
from weir.client.admin import join
from weir.model.errors import ConfigError
from weir.model.moments import parse_span_ms
from weir.runtime.real import RealClock, run


@click.group(
    epilog="""
\b
Examples:
  weir token secret > secret.key
  weir token create alice --secret file:secret.key --expires 30d
  weir up --set auth.authenticate=true --set auth.token_secret=file:secret.key
  weir token keys --out signer                      signer.key and signer.pub
  weir token create alice --private-key file:signer.key
"""
)
def token() -> None:
    """Create keys and tokens, and decode tokens."""


@token.command(
    epilog=examples(
        "weir token create alice --secret file:secret.key --expires 30d",
        "weir token create alice --private-key file:signer.key",
    )
)
@click.argument("role")
@click.option("--secret", metavar="KEY", help="The shared secret: file:/path or base64.")
@click.option("--private-key", metavar="KEY", help="The private key (RSA, EC): file:/path, PEM or DER.")
@click.option("--expires", metavar="SPAN", help="Validity, as in 12h or 30d; by default for ever.")
@click.option("--audience", metavar="NAME", help="The audience of the token.")
@click.option("--algorithm", metavar="NAME", help="HS256, RS256, ES256 etc.; by default that of the key type.")
def create(
    *,
    role: str,
    secret: str | None,
    private_key: str | None,
    expires: str | None,
    audience: str | None,
    algorithm: str | None,
) -> None:
    """Print a token for ROLE."""
    if (secret is None) == (private_key is None):
        raise ConfigError(
            "a token is signed with a secret or a private key", hint="give --secret or --private-key"
        )
    source = _with_folder(secret or private_key or "")
    data = run(lambda runtime: read_key(source, runtime.disk))
    signed = create_token(
        load_secret(data).key if secret is not None else load_private_key(data),
        role,
        expires_ms=None if expires is None else RealClock().wall_ms() + parse_span_ms(expires),
        algorithm=algorithm,
        audience=audience,
    )
    click.echo(signed)


@token.command(
    "access-key",
    epilog=examples(
        "weir token access-key alice                              from the server, for RocketMQ clients",
        "weir token access-key alice --secret file:secret.key     from the token secret, without a server",
    ),
)
@click.argument("role")
@click.option("--secret", metavar="KEY", help="The token secret: file:/path or base64; by default the server's.")
@remote_options
def access_key(*, role: str, secret: str | None, remote: Remote, out: Output) -> None:
    """Print the access key and the secret key that authenticate RocketMQ clients as ROLE."""
    if secret is None:
        path = join("access-keys", role)
        found = remote.admin(lambda admin: admin.own("GET", path))["secretKey"]
    else:
        source = _with_folder(secret)
        data = run(lambda runtime: read_key(source, runtime.disk))
        found = access_key_secret(load_secret(data).key, role)
    if out.json:
        print_json({"accessKey": role, "secretKey": found})
        return
    click.echo(f"access key: {role}")
    click.echo(f"secret key: {found}")


@token.command(epilog=examples("weir token secret > secret.key"))
def secret() -> None:
    """Print a new shared secret as base64."""
    click.echo(base64.b64encode(create_secret()).decode())


@token.command(epilog=examples("weir token keys --out signer     signer.key and signer.pub"))
@click.option("--out", required=True, metavar="NAME", help="Writes NAME.key and NAME.pub.")
@click.option("--kind", type=click.Choice(["RSA", "EC"]), default="EC", show_default=True)
def keys(out: str, kind: str) -> None:
    """Create a private key, which signs tokens, and its public key, which verifies them."""
    private, public = create_key_pair(kind)
    for path, data, mode in ((Path(f"{out}.key"), private, 0o600), (Path(f"{out}.pub"), public, 0o644)):
        if path.exists():
            raise ConfigError(f"{path} exists", hint="choose another --out")
        path.touch(mode=mode)
        path.write_bytes(data)
        click.echo(str(path))


@token.command(epilog=examples("weir token show $(cat alice.token)"))
@click.argument("text", metavar="TOKEN")
def show(text: str) -> None:
    """Decode a token. Its signature is not verified."""
    try:
        head, claims, _ = (base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)) for part in text.split("."))
        print_json({"header": json.loads(head), "claims": json.loads(claims)})
    except ValueError:
        raise ConfigError("this is not a token", hint="a token has three parts with dots between them") from None


def _with_folder(source: str) -> str:
    """Resolve `file:name` relative to the current folder."""
    if not source.startswith("file:"):
        return source
    return f"file:{Path(source.removeprefix('file:').removeprefix('//')).absolute()}"
