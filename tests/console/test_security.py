"""Nobody comes in but by their credentials, and no other site's page does anything in their name."""

from collections.abc import Callable
from urllib.parse import quote

import pytest
from tests.admin.conftest import Weir
from tests.console.conftest import Visitor

from weir.broker.security.tokens import create_token
from weir.console.app import Console

SECRET = bytes(range(64))


@pytest.fixture(scope="module")
def guarded(start_weir: Callable[..., Weir]) -> Weir:
    """One that asks everybody who they are."""
    import base64

    return start_weir(
        "auth.authenticate=true",
        "auth.authorise=true",
        "auth.superusers=root",
        f"auth.token_secret=base64:{base64.b64encode(SECRET).decode()}",
    )


def signed_in(weir: Weir, role: str) -> Visitor:
    visitor = Visitor(weir)
    page = visitor.post("/console/signin", on="/console/signin", token=create_token(SECRET, role), follow=False)
    assert page.status == 303
    return visitor


PAGES = ["/", "/console/topics", "/console/live/overview"]


@pytest.mark.parametrize("path", PAGES)
def test_who_is_not_signed_in_gets_no_page_but_that_to_sign_in(guarded: Weir, path: str) -> None:
    page = Visitor(guarded).get(path, follow=False)
    assert (page.status, page.text) == (303, "")
    assert page.headers["location"] == f"/console/signin?next={quote(path, safe='')}"


def test_credentials_of_the_api_are_no_way_round_the_session(guarded: Weir) -> None:
    page = Visitor(guarded).get("/", follow=False, authorization=f"Bearer {create_token(SECRET, 'root')}")
    assert page.status == 303


def test_a_token_signs_in_and_the_page_says_as_whom(guarded: Weir) -> None:
    page = signed_in(guarded, "root").get("/")
    assert page.status == 200
    assert '<b id="role">root</b>' in page.text


def test_a_user_signs_in_with_name_and_password(guarded: Weir) -> None:
    token = create_token(SECRET, "root")
    body = {"password": "with:colon", "tags": ""}
    assert guarded.ask("PUT", "/api/users/maria", body, token=token).status in (201, 204)
    visitor = Visitor(guarded)
    wrong = visitor.post("/console/signin", on="/console/signin", name="maria", password="other")
    assert wrong.status == 401
    assert "the name or the password is wrong" in wrong.words
    assert visitor.post("/console/signin", on="/console/signin", name="maria", password="with:colon").status == 200
    assert '<b id="role">maria</b>' in visitor.get("/").text
    assert guarded.ask("DELETE", "/api/users/maria", token=token).status == 204
    assert visitor.get("/", follow=False).status == 303, "a user who was deleted is out at once"


def test_a_token_that_is_none_is_refused_with_the_reason(guarded: Weir) -> None:
    visitor = Visitor(guarded)
    page = visitor.post("/console/signin", on="/console/signin", token="nonsense")
    assert page.status == 401
    assert "weir_session" in visitor.cookies
    assert visitor.get("/", follow=False).status == 303


def test_who_signs_out_is_out(guarded: Weir) -> None:
    visitor = signed_in(guarded, "root")
    assert visitor.post("/console/signout", follow=False).status == 303
    assert visitor.get("/", follow=False).status == 303


def test_a_cookie_that_was_changed_is_worth_nothing(guarded: Weir) -> None:
    visitor = signed_in(guarded, "root")
    sealed = visitor.cookies["weir_session"]
    visitor.cookies["weir_session"] = sealed[:-4] + ("AAA=" if sealed[-4:] != "AAA=" else "BBB=")
    assert visitor.get("/", follow=False).status == 303


def test_the_cookie_is_for_our_pages_alone_and_for_no_script(guarded: Weir) -> None:
    said = Visitor(guarded).get("/console/signin").headers["set-cookie"]
    assert "HttpOnly" in said
    assert "SameSite=Strict" in said


def test_over_tls_the_cookie_is_for_tls_alone() -> None:
    assert "Secure" in Console(None, [], None, None, None, tls=True).session_cookie("x")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "where", ["https://evil.example/", "//evil.example", "/\\evil.example", "javascript:alert(1)"]
)
def test_signing_in_leads_to_no_other_site(guarded: Weir, where: str) -> None:
    visitor = Visitor(guarded)
    page = visitor.post(
        "/console/signin", on="/console/signin", follow=False, token=create_token(SECRET, "root"), next=where
    )
    assert page.headers["location"] == "/"


# --- forms of others ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "headers",
    [
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"origin": "https://evil.example"},
        {"origin": "null"},
    ],
)
def test_a_form_of_another_site_is_refused_even_with_the_right_proof(
    visitor: Visitor, unique: str, headers: dict[str, str]
) -> None:
    page = visitor.post("/console/topics", head=headers, namespace="public/default", name=unique)
    assert page.status == 403
    assert visitor.weir.ask("GET", f"persistent/public/default/{unique}/stats").status == 404


def test_a_form_without_the_session_s_proof_is_refused(visitor: Visitor, unique: str) -> None:
    visitor.get("/")
    for proof in ("", "0" * 64, Visitor(visitor.weir).get("/console/topics").proof):
        data = f"proof={proof}&namespace=public/default&name={unique}".encode()
        assert visitor.request("POST", "/console/topics", data).status == 403
    assert visitor.weir.ask("GET", f"persistent/public/default/{unique}/stats").status == 404


def test_a_form_of_our_own_page_is_taken(visitor: Visitor, unique: str) -> None:
    host = str(visitor.weir.up.addresses["http"])
    ours = {"sec-fetch-site": "same-origin", "origin": f"http://{host}"}
    page = visitor.post("/console/topics", head=ours, follow=False, namespace="public/default", name=unique)
    assert page.status == 303
    assert visitor.weir.ask("GET", f"persistent/public/default/{unique}/stats").status == 200


# --- what browsers are told ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/console/topics",
        "/console/signin",
        "/console/static/console.css",
        "/console/topics?namespace=no/such",
    ],
)
def test_every_answer_forbids_frames_sniffing_and_what_is_not_ours(visitor: Visitor, path: str) -> None:
    headers = visitor.get(path).headers
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self';" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert headers["x-frame-options"] == "DENY"
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "same-origin"
