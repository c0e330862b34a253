"""The console in a real browser: each page, each action, each refusal; and the screenshots of the docs.

`WEIR_SCREENSHOTS=docs/images pytest tests/console/test_browser.py` writes them anew.
"""

import base64
import os
import re
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pulsar
import pytest
from pulsar import schema as kinds
from tests.admin.conftest import Weir

from weir.broker.security.tokens import create_token

webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed: no browser can be driven")
from selenium.common.exceptions import NoSuchElementException, StaleElementReferenceException  # noqa: E402
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.support import expected_conditions as until  # noqa: E402
from selenium.webdriver.support.ui import Select, WebDriverWait  # noqa: E402

pytestmark = pytest.mark.process

SECRET = bytes(range(64))
EVIL = '<script>document.title = "owned"</script><img src=x onerror="document.title=1">'
TRACEPARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
_STREAM_ENDED = re.compile(r"/htmx\.min\.js \S+ \"\[object Event\]\"$|/console/live/\S+ - Failed to load resource")
SHOTS = os.environ.get("WEIR_SCREENSHOTS")


class Order(kinds.Record):
    item = kinds.String()
    amount = kinds.Double()
    customer = kinds.String()


def _find_browser() -> tuple[str, str]:
    """Chromium and its driver, installed now where that can be done."""
    found = shutil.which("chromium"), shutil.which("chromedriver")
    if not all(found) and os.geteuid() == 0 and shutil.which("apt-get"):
        with suppress(subprocess.SubprocessError, OSError):
            command = ["apt-get", "install", "-y", "-qq", "chromium", "chromium-driver"]
            subprocess.run(command, capture_output=True, timeout=240, check=False)
        found = shutil.which("chromium"), shutil.which("chromedriver")
    if not found[0] or not found[1]:
        pytest.skip("no browser can be had: install chromium and chromium-driver")
    return found[0], found[1]


class Browser:
    """Chromium without a screen, at one console."""

    def __init__(self, driver: Any, base: str) -> None:
        self.driver = driver
        self.base = base

    def open(self, path: str) -> "Browser":
        self.driver.get(self.base + path)
        return self

    def wait(self, condition: Callable[[Any], Any]) -> Any:
        patience = WebDriverWait(self.driver, 60, 0.05, [NoSuchElementException, StaleElementReferenceException])
        return patience.until(condition)

    def find(self, selector: str) -> Any:
        return self.wait(until.presence_of_element_located((By.CSS_SELECTOR, selector)))

    def all(self, selector: str) -> list[Any]:
        return list(self.driver.find_elements(By.CSS_SELECTOR, selector))

    def click(self, selector: str) -> None:
        self.wait(until.element_to_be_clickable((By.CSS_SELECTOR, selector))).click()

    def type(self, selector: str, text: str) -> None:
        field = self.find(selector)
        field.clear()
        field.send_keys(text)

    def send(self, selector: str, *, confirm: bool | None = None) -> None:
        """Submit a form by its button, answer the question, and wait for the page that follows."""
        button = self.find(selector)
        self.driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", button)
        page = self.driver.find_element(By.TAG_NAME, "html")
        button.click()
        if confirm is not None:
            alert = self.wait(until.alert_is_present())
            if not confirm:
                alert.dismiss()
                return
            alert.accept()
        self.wait(until.staleness_of(page))
        self.find("#main")

    def text(self, selector: str = "main") -> str:
        return str(self.wait(lambda driver: (driver.find_element(By.CSS_SELECTOR, selector).text,))[0])

    def wait_text(self, text: str, selector: str = "main") -> None:
        self.wait(until.text_to_be_present_in_element((By.CSS_SELECTOR, selector), text))

    def complaints(self) -> list[str]:
        """What the browser wrote to its console: a forbidden script or style among it. Not that a stream of events
        has ended, which htmx says of each page that is left, and of a topic that was deleted."""
        said = [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] == "SEVERE"]
        return [message for message in said if not _STREAM_ENDED.search(message)]

    def shot(self, name: str, width: int = 1280, height: int = 860) -> None:
        if SHOTS:
            self.driver.set_window_size(width, height)
            Path(SHOTS).mkdir(parents=True, exist_ok=True)
            self.driver.save_screenshot(str(Path(SHOTS) / f"console-{name}.png"))
            self.driver.set_window_size(1280, 860)


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    chromium, chromedriver = _find_browser()
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    profile = tmp_path_factory.mktemp("profile")
    for flag in (
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-quic",
        "--disable-dev-shm-usage",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--hide-scrollbars",
        "--force-device-scale-factor=1",
        "--lang=en",
        f"--user-data-dir={profile}",
    ):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    options.unhandled_prompt_behavior = "ignore"
    service = webdriver.ChromeService(executable_path=chromedriver)
    try:
        found = webdriver.Chrome(options=options, service=service)
    except Exception as broken:  # a browser that is there and does not start is no browser
        pytest.skip(f"the browser does not start: {str(broken)[:200]}")
    found.set_window_size(1280, 860)
    yield found
    found.quit()


@pytest.fixture(scope="module")
def weir(start_weir: Callable[..., Weir]) -> Weir:
    return start_weir(
        "auth.authenticate=true",
        "auth.authorise=true",
        "auth.superusers=root",
        "listeners.amqp=127.0.0.1:0",
        "listeners.kafka=127.0.0.1:0",
        f"auth.token_secret=base64:{base64.b64encode(SECRET).decode()}",
    )


@pytest.fixture(scope="module")
def filled(weir: Weir) -> Iterator[Weir]:
    """With some topics, and a producer and a consumer that go on."""
    root = create_token(SECRET, "root")
    weir.do("PUT", "persistent/public/default/payments/partitions", 4, token=root)
    quiet = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    client = pulsar.Client(weir.url, authentication=pulsar.AuthenticationToken(root), logger=quiet)
    orders = client.create_producer(
        "public/default/orders", schema=kinds.AvroSchema(Order), batching_enabled=False
    )
    consumer = client.subscribe("public/default/orders", "billing", consumer_type=pulsar.ConsumerType.Shared)
    slow = client.subscribe("public/default/orders", "warehouse", consumer_type=pulsar.ConsumerType.Shared)
    for number in range(40):
        item = ("nails", "rope", "paint", "timber")[number % 4]
        value = Order(item=item, amount=9.5 + number, customer=f"customer {number % 7}")
        orders.send(value, partition_key=f"c{number % 7}", properties={"trace": f"{number:04x}"})
    weir.do("PUT", "persistent/public/default/parcels", token=root)
    weir.do("POST", "persistent/public/default/parcels/traceRate", 1.0, token=root)
    parcels = client.create_producer("public/default/parcels", producer_name="warehouse")
    scanner = client.subscribe(
        "public/default/parcels", "scanner", initial_position=pulsar.InitialPosition.Earliest
    )
    parcels.send(b"three boxes", partition_key="p-17", properties={"traceparent": TRACEPARENT})
    scanner.acknowledge(scanner.receive(60_000))
    evil = client.create_producer("public/default/evil")
    evil.send(EVIL.encode(), partition_key=EVIL, properties={"note": EVIL})
    dead = client.create_producer("public/default/orders-warehouse-DLQ")
    for number in range(3):
        dead.send(f"broken {number}".encode(), properties={"REAL_TOPIC": "persistent://public/default/rescued"})
    weir.do("PUT", "persistent/public/default/rescued", token=root)
    for name in ("clicks", "signups", "invoices", "audit", "shipments"):
        weir.do("PUT", f"persistent/public/default/{name}", token=root)
    for number in range(55):
        weir.do("PUT", f"persistent/public/default/sensor-{number:03}", token=root)
    weir.do("PUT", "/api/queues/%2F/jobs", {"durable": True}, token=root)
    sql = "SELECT item, sum(amount) AS total\nFROM orders\nGROUP BY item"
    stream = {"sql": sql, "sources": ["persistent://public/default/orders"]}
    made = weir.do("PUT", "/admin/weir/v1/streams/public/default/totals", stream, token=root)
    told = {
        "id": made["id"],
        "state": "running",
        "rows": 1840,
        "rowsPerSecond": 23.5,
        "lag": 2,
        "batch": 46,
        "batchMs": 212,
    }
    weir.do("PUT", "/admin/weir/v1/streams/public/default/totals/progress", told, token=root)
    runner = {"runner": "r1", "where": "process 4711 of weir-1", "ttlMs": 600_000}
    weir.do("PUT", "/admin/weir/v1/stream-runner", runner, token=root)
    weir.do("POST", "namespaces/public/default/permissions/reader", ["consume"], token=root)
    weir.do("PUT", "namespaces/public/hidden", token=root)
    weir.do("PUT", "persistent/public/hidden/secret", token=root)
    ended = threading.Event()

    def go_on() -> None:
        number = 0
        while not ended.wait(0.05):
            orders.send_async(Order(item="nails", amount=1.0, customer="live"), lambda *_: None)
            number += 1
            with suppress(pulsar.Timeout):
                consumer.acknowledge(consumer.receive(10))
            if number % 3 == 0:
                with suppress(pulsar.Timeout):
                    slow.acknowledge(slow.receive(10))

    busy = threading.Thread(target=go_on, daemon=True)
    busy.start()
    yield weir
    ended.set()
    busy.join(30)
    client.close()


@pytest.fixture(scope="module")
def signed_in(driver: Any, filled: Weir) -> Browser:
    browser = Browser(driver, filled.http)
    sign_in(browser, "root")
    return browser


@pytest.fixture
def browser(signed_in: Browser) -> Iterator[Browser]:
    """Signed in as a superuser; whatever the pages did, the browser had nothing to complain about."""
    signed_in.complaints()
    yield signed_in
    assert signed_in.complaints() == []


def sign_in(browser: Browser, role: str) -> None:
    browser.driver.delete_all_cookies()
    browser.open("/")
    browser.type("input[name=token]", create_token(SECRET, role))
    browser.send("button.first")
    assert browser.text("#role") == role


def topic(name: str, page: str = "") -> str:
    return f"/console/topic/persistent/public/default/{name}" + (f"/{page}" if page else "")


# --- pages ------------------------------------------------------------------------------------------------------


def test_who_is_not_signed_in_is_asked_to_and_wrong_tokens_are_told(driver: Any, filled: Weir) -> None:
    browser = Browser(driver, filled.http)
    driver.delete_all_cookies()
    browser.open("/console/topics")
    assert "/console/signin?next=%2Fconsole%2Ftopics" in driver.current_url
    browser.shot("signin", 900, 620)
    browser.type("input[name=token]", "nonsense")
    browser.send("button.first")
    assert browser.all(".flash.bad")
    browser.type("input[name=token]", create_token(SECRET, "root"))
    browser.send("button.first")
    assert driver.current_url.endswith("/console/topics"), "one is led to where one wanted to go"


def test_the_overview_moves_by_itself(browser: Browser) -> None:
    browser.open("/")
    first = browser.find("#tiles")
    browser.wait(until.staleness_of(first))  # pushed: nothing was asked for
    browser.wait(lambda _: any("orders" in row.text for row in browser.all("tbody tr")))
    browser.wait(lambda _: not browser.text("#rate-in").startswith("0 "))
    assert len(browser.all("svg.plot")) == 3


def test_the_browser_says_when_the_first_page_was_painted(browser: Browser) -> None:
    browser.open("/")
    script = "return performance.getEntriesByName('first-contentful-paint').map(entry => entry.startTime)"
    assert browser.wait(lambda driver: driver.execute_script(script))


def test_topics_are_found_while_one_types(browser: Browser) -> None:
    browser.open("/console/topics")
    browser.shot("topics")
    browser.find("[data-search]").send_keys("sensor-01")
    browser.wait(
        lambda _: (
            {row.text.split()[0] for row in browser.all("#topics tbody tr")}
            == {f"sensor-01{n}" for n in range(10)}
        )
    )
    browser.open("/console/topics?q=sensor")
    browser.send("a[rel=next]")
    assert len(browser.all("#topics tbody tr")) == 5


def test_a_topic_is_shown_with_plots_that_move(browser: Browser) -> None:
    browser.open(topic("orders"))
    first = browser.find("#live figure")
    browser.wait(until.staleness_of(first))
    assert "billing" in browser.text("#live")
    browser.shot("topic")


def test_messages_are_opened_and_show_decoded_values_and_headers(browser: Browser) -> None:
    browser.open(f"{topic('orders', 'messages')}?by=offset&offset=0")
    browser.click("#m1 summary")
    browser.wait_text('"item": "rope"', "#m1")
    assert "trace" in browser.text("#m1")
    browser.shot("messages", height=1080)
    browser.open(f"{topic('orders', 'messages')}?by=key&key=c3")
    assert all("c3" in row.text for row in browser.all(".msg"))


def test_what_strangers_wrote_is_text(browser: Browser) -> None:
    browser.open(topic("evil", "messages"))
    browser.click(".msg summary")
    browser.wait_text("<script>", ".msg")
    assert browser.driver.title == "evil · Weir"
    assert browser.all(".msg script, .msg img") == []


def test_what_became_of_a_message_is_shown_from_the_message_on(browser: Browser) -> None:
    browser.open(topic("parcels", "messages"))
    browser.click(".msg summary")
    browser.send(".msg a[href*='/trace?']")

    def whole(_: Any) -> bool:  # what happens is written down in the background
        browser.open(f"{topic('parcels', 'trace')}?by=key&wanted=p-17")
        return "acknowledged" in browser.text()

    browser.wait(whole)
    found = browser.text()
    assert all(word in found for word in ("warehouse", "scanner", TRACEPARENT.split("-")[1]))
    browser.shot("trace")
    browser.open(topic("orders", "trace"))
    browser.wait_text("weir trace rate orders 1% begins it")


def test_each_other_page_is_there(browser: Browser) -> None:
    for path, words in (
        ("/console/groups", "Consumer groups"),
        ("/console/streams", "sum(amount)"),
        ("/console/queues", "jobs"),
        ("/console/connections", "Pulsar"),
        ("/console/cluster", "writable"),
        ("/console/access", "Make a token"),
        (topic("payments"), "4 partitions"),
        (topic("orders", "subscriptions"), "warehouse"),
        (topic("orders", "schema"), "AVRO"),
        (topic("orders", "policies"), "retention"),
        (topic("orders", "deadletters"), "orders-warehouse-DLQ"),
    ):
        browser.open(path)
        browser.wait_text(words)
        if path in ("/console/streams", "/console/cluster", "/console/access"):
            browser.shot(path.rpartition("/")[2])
        if path == topic("orders", "subscriptions"):
            browser.shot("subscriptions")


# --- actions ----------------------------------------------------------------------------------------------------


def test_a_topic_is_made_filled_and_deleted_by_hand(browser: Browser) -> None:
    browser.open("/console/topics")
    browser.click("details.form summary")
    browser.type("details.form input[name=name]", "by-hand")
    browser.send("details.form button")
    browser.wait_text("by-hand is there.")
    browser.open(topic("by-hand", "produce"))
    browser.type("textarea[name=value]", "hello from a browser")
    browser.type("input[name=key]", "k1")
    browser.type("textarea[name=headers]", "from: chromium")
    browser.shot("produce")
    browser.send("form.panel button.first")
    browser.wait_text("Sent: offset 0 of by-hand.")
    browser.click(".msg summary")
    browser.wait_text("chromium", ".msg")
    browser.send(".msg form button", confirm=True)
    browser.wait_text("Sent again: it is at offset 1 now.")
    browser.open(topic("by-hand"))
    browser.send("form[action$='/delete'] button", confirm=False)
    assert browser.text("h1") == "by-hand", "who says no has done nothing"
    browser.send("form[action$='/delete'] button", confirm=True)
    browser.wait_text("by-hand is deleted.")


def test_one_message_is_redelivered_to_one_subscription(browser: Browser) -> None:
    browser.open(topic("audit", "produce"))
    browser.type("textarea[name=value]", "again, please")
    browser.send("form.panel button.first")
    browser.open(topic("audit", "subscriptions"))
    browser.click("details.form summary")
    browser.type("details.form input[name=subscription]", "repeat")
    browser.send("details.form button")
    browser.wait_text("repeat is there.")
    browser.open(topic("audit", "messages"))
    browser.click(".msg summary")
    Select(browser.find(".msg form[action$='/redeliver'] select")).select_by_visible_text("repeat")
    browser.send(".msg form[action$='/redeliver'] button")
    browser.wait_text("is delivered again.")
    browser.open(topic("audit", "subscriptions"))
    browser.wait_text("1 wait")
    browser.send("form[action$='/subscriptions/delete'] button", confirm=True)
    browser.wait_text("repeat is deleted.")


def test_a_held_message_is_cancelled(browser: Browser) -> None:
    browser.open(topic("clicks", "produce"))
    browser.type("textarea[name=value]", "later")
    browser.type("input[name=at]", "2090-01-01T00:00")
    browser.send("form.panel button.first")
    browser.wait_text("1 waiting for their moment")
    browser.send("form[action$='/held/cancel'] button", confirm=True)
    browser.wait_text("it will never be seen")


def test_messages_are_looked_up_by_time_and_by_key(browser: Browser) -> None:
    browser.open(topic("audit", "produce"))
    browser.type("textarea[name=value]", "needle")
    browser.type("input[name=key]", "haystack")
    browser.send("form.panel button.first")
    browser.open(topic("audit", "messages"))
    Select(browser.find("select[name=by]")).select_by_value("moment")
    browser.find("input[type=datetime-local]")
    Select(browser.find("select[name=by]")).select_by_value("key")
    browser.type("input[name=key]", "no such key")
    browser.send("form button.first")
    browser.wait_text("No message has this key.")
    browser.type("input[name=key]", "haystack")
    browser.send("form button.first")
    browser.wait_text("needle")


def test_a_subscription_is_reset_and_deleted(browser: Browser) -> None:
    browser.open(topic("audit", "subscriptions"))
    browser.click("details.form summary")
    browser.type("details.form input[name=subscription]", "desk")
    browser.send("details.form button")
    Select(browser.find("form[action$='/move'] select[name=to]")).select_by_value("start")
    browser.send("form[action$='/move'] button")
    browser.wait_text("delivered again", "#effect")
    browser.send("form[action$='/move'] button")
    browser.wait_text("desk is at the beginning.")
    browser.send("form[action$='/subscriptions/delete'] button", confirm=True)
    browser.wait_text("desk is deleted.")


def test_dead_letters_are_redriven(browser: Browser) -> None:
    browser.open(topic("orders-warehouse-DLQ", "deadletters"))
    browser.wait_text("3 dead letters here were not redriven")
    browser.shot("deadletters")
    browser.send("form[action$='/redrive'] button", confirm=True)
    browser.wait_text("3 messages were sent to rescued.")


def test_a_token_is_made_and_shown_once(browser: Browser) -> None:
    browser.open("/console/access")
    browser.type("form[action$='/token'] input[name=role]", "newcomer")
    browser.send("form[action$='/token'] button")
    assert browser.text("#token").count(".") == 2
    browser.open("/console/access")
    assert browser.all("#token") == []


def test_a_grant_is_given_and_taken_back(browser: Browser) -> None:
    browser.open("/console/access")
    browser.type("form[action$='/grant'] input[name=role]", "dora")
    browser.type("form[action$='/grant'] input[name=scope]", "public/default")
    browser.click("form[action$='/grant'] input[name=consume]")
    browser.send("form[action$='/grant'] button")
    browser.wait_text("dora may consume on public/default.")
    browser.send("form[action$='/revoke'] button", confirm=True)
    browser.wait_text("has no grant")


# --- how it looks -----------------------------------------------------------------------------------------------


def test_dark_and_light_are_chosen_and_remembered(browser: Browser) -> None:
    browser.open("/")
    browser.wait(lambda _: any("orders" in row.text for row in browser.all("tbody tr")))
    browser.shot("overview")  # by now there is something to see
    colour = "return getComputedStyle(document.body).backgroundColor"
    before = browser.driver.execute_script(colour)
    browser.click("[data-theme-toggle]")
    after = browser.driver.execute_script(colour)
    assert after != before
    browser.wait(lambda _: any("orders" in row.text for row in browser.all("tbody tr")))
    browser.shot("dark")
    browser.open("/console/topics")
    assert browser.driver.execute_script(colour) == after
    browser.click("[data-theme-toggle]")


def test_on_a_phone_nothing_is_wider_than_the_screen(browser: Browser) -> None:
    browser.driver.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride", {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": True}
    )
    try:
        for path in (
            "/",
            "/console/topics",
            topic("orders"),
            topic("orders", "messages"),
            topic("orders", "subscriptions"),
            topic("orders", "produce"),
            topic("parcels", "trace") + "?by=key&wanted=p-17",
            topic("orders", "deadletters"),
            "/console/groups",
            "/console/streams",
            "/console/queues",
            "/console/connections",
            "/console/cluster",
            "/console/access",
        ):
            browser.open(path)
            browser.find("main h1")
            for message in browser.all(".msg summary")[:1]:
                message.click()
            wide = browser.driver.execute_script("return document.documentElement.scrollWidth")
            assert wide <= 390, path
        browser.open("/")
        assert not browser.find("#nav").is_displayed()
        browser.click("[data-menu]")
        assert browser.find("#nav").is_displayed()
        browser.click("[data-menu]")
        if SHOTS:
            browser.driver.save_screenshot(str(Path(SHOTS) / "console-phone.png"))
    finally:
        browser.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_everything_has_a_label_and_can_be_reached_by_the_keyboard(browser: Browser) -> None:
    script = """
      const bad = [];
      for (const field of document.querySelectorAll("input:not([type=hidden]), select, textarea")) {
        if (!field.labels.length && !field.getAttribute("aria-label")) bad.push(field.outerHTML);
      }
      for (const button of document.querySelectorAll("button, a")) {
        if (!button.textContent.trim() && !button.getAttribute("aria-label")) bad.push(button.outerHTML);
        if (button.tabIndex < 0) bad.push(button.outerHTML);
      }
      for (const image of document.images) if (image.getAttribute("alt") === null) bad.push(image.outerHTML);
      return bad;
    """
    for path in (
        "/",
        "/console/topics",
        topic("orders", "messages"),
        topic("orders", "subscriptions"),
        topic("orders", "produce"),
        "/console/access",
        "/console/queues",
    ):
        browser.open(path)
        assert browser.driver.execute_script(script) == [], path
    browser.open("/console/topics")
    browser.find("body").send_keys("/")
    assert browser.driver.execute_script("return document.activeElement.name") == "q"


# --- refusals ---------------------------------------------------------------------------------------------------


def test_a_role_sees_what_it_may_and_is_told_what_it_may_not(browser: Browser) -> None:
    sign_in(browser, "reader")
    try:
        menu = browser.text("#nav")
        assert "Nodes" not in menu
        assert "Access" not in menu
        browser.open("/console/topics")
        assert [option.text for option in browser.all("select[name=namespace] option")] == ["public/default"]
        assert not browser.all("details.form")
        browser.open(topic("orders"))
        assert not browser.all("form[action$='/delete']")
        browser.open(topic("orders", "produce"))
        browser.wait_text("Your role may not produce here.")
        browser.open("/console/topic/persistent/public/hidden/secret")
        browser.wait_text("You may not")
        browser.open("/console/cluster")
        browser.wait_text("You may not")
        browser.complaints()  # a 403 is one
    finally:
        sign_in(browser, "root")


def test_another_site_s_page_can_neither_frame_nor_post(browser: Browser, tmp_path: Path) -> None:
    page = tmp_path / "evil.html"
    page.write_text(
        f'<title>evil</title><iframe id="frame" src="{browser.base}/"></iframe>'
        f'<form id="form" method="post" action="{browser.base}/console/topics">'
        '<input name="namespace" value="public/default"><input name="name" value="stolen"></form>'
    )
    browser.driver.get(page.as_uri())
    browser.wait(lambda _: any("frame-ancestors" in said or "X-Frame" in said for said in browser.complaints()))
    browser.driver.execute_script("document.getElementById('form').submit()")
    browser.wait(lambda driver: "403" in driver.title or "another site" in driver.page_source)
    browser.open("/console/topics?q=stolen")
    browser.wait_text("No topic here has")
    browser.complaints()


def test_signing_out_ends_the_session(browser: Browser) -> None:
    browser.open("/")
    browser.send("form[action='/console/signout'] button")
    browser.open("/console/topics")
    assert "/console/signin" in browser.driver.current_url
    sign_in(browser, "root")
