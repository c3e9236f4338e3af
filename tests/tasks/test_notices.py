"""Messages to people, sent to real servers of this machine: what arrives, what a broken server costs, and that no secret stays anywhere."""

from __future__ import annotations

import datetime
import logging
import ssl
import time
from ipaddress import ip_address
from types import SimpleNamespace

import pytest
import servers
import toys

from flows.cli import main as cli
from flows.cli import notify
from pipelines.base.errors import RecipeError
from pipelines.recipe.read import read_recipe
from pipelines.recipe.settings import Notify
from tasks import notices
from tasks.notices import Message

TOKEN = "T0KEN-xoxb-4711-geheim"
PASSWORD = "p4ssw0rt-of-the-mail-server"


@pytest.fixture
def webhook(monkeypatch):
    with servers.serving(servers.Webhook(TOKEN)) as hook:
        monkeypatch.setenv("NIGHTLY_WEBHOOK", hook.url)
        yield hook
        hook.free.set()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """Of a server on 127.0.0.1, signed by itself: (certificate, key)."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "mail")])
    now = datetime.datetime.now(datetime.UTC)
    own = x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))])
    made = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    made = made.serial_number(1).not_valid_before(now).not_valid_after(now + datetime.timedelta(days=1))
    signed = (
        made.add_extension(own, False).add_extension(x509.BasicConstraints(True, None), True).sign(key, hashes.SHA256())
    )
    folder = tmp_path_factory.mktemp("certificate")
    pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    (folder / "cert.pem").write_bytes(signed.public_bytes(pem))
    (folder / "key.pem").write_bytes(key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain))
    return folder / "cert.pem", folder / "key.pem"


@pytest.fixture
def mail(certificate, monkeypatch):
    """A mail server that wants STARTTLS and a password; `letters` has what arrived."""
    from aiosmtpd.controller import Controller
    from aiosmtpd.smtp import AuthResult

    letters = []

    class Handler:
        async def handle_DATA(self, server, session, envelope):
            letters.append((envelope.rcpt_tos, envelope.content.decode()))
            return "250 taken"

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    login = lambda server, session, envelope, mechanism, data: AuthResult(  # noqa: E731
        success=data.login == b"nightly" and data.password == PASSWORD.encode(), handled=False
    )
    controller = Controller(
        Handler(), hostname="127.0.0.1", port=servers.free_port(), tls_context=context, require_starttls=True,
        authenticator=login, auth_required=True,
    )  # fmt: skip
    controller.start()
    for name, value in (("SSL_CERT_FILE", str(certificate[0])), ("MAIL_USER", "nightly"), ("MAIL_PASSWORD", PASSWORD)):
        monkeypatch.setenv(name, value)
    yield SimpleNamespace(letters=letters, port=controller.port)
    controller.stop()


def by_mail(port: int, **fields) -> Notify:
    login = {"user_env": "MAIL_USER", "password_env": "MAIL_PASSWORD"}
    email = {"to": ["team@example.com"], "sender": "nights@example.com", "host": "127.0.0.1", "port": port, **login}
    return Notify.model_validate({"email": email | fields})


HOOK = Notify(webhook_env="NIGHTLY_WEBHOOK", timeout_s=1.0)
WORSE = Message("worse", "toy", ("gate: worse against champion version 3 of toy", "sums <down> & out"))


def test_a_webhook_gets_slack_s_json(webhook):
    notices.tell(HOOK, WORSE)
    notices.finish()
    assert webhook.paths == [f"/services/{TOKEN}"]
    assert webhook.bodies == [
        {"text": "whetstone worse: toy\ngate: worse against champion version 3 of toy\nsums &lt;down&gt; &amp; out"}
    ]


def test_mail_goes_out_encrypted_and_logged_in(mail):
    notices.tell(by_mail(mail.port), WORSE)
    notices.finish()
    ((recipients, letter),) = mail.letters
    assert (
        recipients == ["team@example.com"]
        and "Subject: [whetstone] toy: worse" in letter
        and "sums <down> & out" in letter
    )


def test_a_wrong_password_a_foreign_certificate_and_no_server_are_one_line_each(mail, monkeypatch, caplog):
    monkeypatch.setenv("MAIL_PASSWORD", "another-secret-word")
    faults = dict(notices.now(by_mail(mail.port), WORSE))
    assert "535" in faults["mail to team@example.com"] and "another-secret-word" not in str(faults)
    monkeypatch.delenv("SSL_CERT_FILE")
    assert "CERTIFICATE_VERIFY_FAILED" in str(list(notices.now(by_mail(mail.port), WORSE)))
    with caplog.at_level(logging.WARNING, "whetstone.notices"):
        notices.tell(by_mail(servers.free_port()), WORSE)
        notices.finish()
    said = [record.getMessage() for record in caplog.records if record.name == "whetstone.notices"]
    assert len(said) == 1 and "refused" in said[0] and not mail.letters


def test_channels_are_tried_without_a_message(webhook, mail, certificate, monkeypatch):
    both = by_mail(mail.port).model_copy(update={"webhook_env": "NIGHTLY_WEBHOOK", "timeout_s": 2.0})
    assert [fault for _, fault in notices.reached(both)] == [None, None]
    monkeypatch.setenv("MAIL_PASSWORD", "another-secret-word")
    monkeypatch.setenv("NIGHTLY_WEBHOOK", f"http://no-such-host.invalid/{TOKEN}")
    hook, letters = (fault for _, fault in notices.reached(both))
    assert hook and TOKEN not in hook and "535" in str(letters) and "another-secret-word" not in str(letters)
    monkeypatch.setenv("NIGHTLY_WEBHOOK", webhook.url.replace("http:", "https:"))
    assert "SSL" in str(next(notices.reached(both))), "a host that does not speak TLS takes no message to https"
    monkeypatch.setenv("https_proxy", webhook.url)
    monkeypatch.setenv("no_proxy", "example.com")
    monkeypatch.setenv("NIGHTLY_WEBHOOK", f"https://no-such-host.invalid/{TOKEN}")
    assert next(notices.reached(both)) == ("webhook of NIGHTLY_WEBHOOK", None), "the proxy is there"
    assert webhook.bodies == [] and mail.letters == []


@pytest.mark.parametrize("answer", [500, 404, 302, "hang"])
def test_a_server_that_does_not_take_it_costs_its_time_limit_and_one_line_without_the_address(webhook, answer, caplog):
    webhook.answer = answer
    began = time.monotonic()
    with caplog.at_level(logging.WARNING, "whetstone.notices"):
        notices.tell(HOOK, WORSE)
        assert time.monotonic() - began < 0.3, "a run does not wait while it works"
        notices.finish()
        time.sleep(0.2)
    assert time.monotonic() - began < 3 and len(webhook.paths) == 1, "a redirect is not followed"
    assert 1 <= len(caplog.messages) <= 2 and "webhook of NIGHTLY_WEBHOOK" in caplog.text and TOKEN not in caplog.text


@pytest.mark.parametrize("value", ["", f"hooks.example.com/{TOKEN}", f"http://[{TOKEN}", f"http://127.0.0.1:x/{TOKEN}"])
def test_a_variable_that_is_missing_or_holds_no_address(value, monkeypatch):
    monkeypatch.setenv("NIGHTLY_WEBHOOK", value)
    ((channel, fault),) = notices.now(HOOK, WORSE)
    assert channel == "webhook of NIGHTLY_WEBHOOK" and fault and TOKEN not in fault
    assert notices.unset(HOOK) == ([] if value else ["NIGHTLY_WEBHOOK"])


def test_only_what_was_asked_for_is_sent_and_of_a_monitor_once(webhook, tmp_path):
    from pipelines.stage.report import Report
    from tasks.tracking import alarms

    notices.tell(Notify(webhook_env="NIGHTLY_WEBHOOK", events=["alarm"]), WORSE)
    notices.tell(None, WORSE)
    report = Report(tmp_path)
    teller = alarms.AlarmNotifier("rlvr", tmp_path, notices.of_alarms("toy", HOOK))
    for step, monitor in ((1, "echo_trap"), (2, "echo_trap"), (3, "length")):
        report.event("it is so", monitor=monitor, step=step, action="warn")
        teller.tick()
    notices.finish()
    assert sorted(body["text"] for body in webhook.bodies) == [
        "whetstone alarm: toy, rlvr\nstep 1, warn: it is so",
        "whetstone alarm: toy, rlvr\nstep 3, warn: it is so",
    ]


def test_a_run_tells_of_its_failure_with_the_stage_and_of_nothing_else(webhook, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://mlflow.example.com")
    about = {"recipe": "toy", "parent_run_id": "5e1f", "experiment_id": "7"}
    notices.of_run(HOOK, about, [])
    notices.of_run(HOOK, about | {"gate": {"failed": False}}, ["gate: undecided"])
    notices.of_run(HOOK, about | {"failed": {"stage": "sft", "error": "the disk is full; http://ann:pw@host"}}, [])
    notices.finish()
    ((text,),) = [body.values() for body in webhook.bodies]
    assert text.startswith("whetstone failed: toy, sft\nthe disk is full; http://***@host\nhttp://mlflow.example.com/")


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ("{}", "a channel is missing"),
        ("{webhook_env: https://hooks.slack.com/services/T0/B0/x}", "write the name of a variable"),
        ("{webhook_env: A, events: [worst]}", "notify.events"),
        ("{email: {to: [a@b], sender: c@d, user_env: A}}", "belong together"),
        ("{email: {to: [a@b], sender: c@d, security: none, user_env: A, password_env: B}}", "in the clear"),
    ],
)
def test_what_a_recipe_may_not_say(section, words):
    with pytest.raises(RecipeError, match=words):
        read_recipe("recipes/quickstart.yaml", [f"notify={section}"])


def test_the_command_says_of_each_channel_what_came_of_it(webhook, capsys):
    words = ["notify", "recipes/quickstart.yaml", "--set", "notify={webhook_env: NIGHTLY_WEBHOOK, timeout_s: 2}"]
    assert notify.command(cli.parser(["notify"]).parse_args(words)) == 0
    assert capsys.readouterr().out == "webhook of NIGHTLY_WEBHOOK: sent\n" and webhook.bodies[0]["text"].startswith(
        "whetstone test"
    )
    webhook.answer = 410
    assert notify.command(cli.parser(["notify"]).parse_args(words)) == 1 and "410" in capsys.readouterr().out


@pytest.mark.slow
def test_no_secret_reaches_a_store(webhook, home, tmp_path):
    """A run that fails after it was opened in MLflow: its message arrives, and no file of the project folder has the token."""
    sections = "notify={webhook_env: NIGHTLY_WEBHOOK, timeout_s: 5}"
    recipe = toys.recipe(tmp_path)
    command = ["run", str(recipe), "--until", "sft", "--set", "sft.max_length=3", "--set", sections]
    done = toys.whetstone(*command, home=home, check=False)
    assert done.returncode == 2 and "are longer than 3 tokens" in done.stderr, done.stderr
    files = [path for path in home.rglob("*") if path.is_file()]
    assert {"mlflow.db", "prefect.db"} <= {path.name for path in files}
    assert [path for path in files if TOKEN.encode() in path.read_bytes()] == []
    assert TOKEN not in done.stdout + done.stderr
    assert [body["text"].split("\n")[0] for body in webhook.bodies] == ["whetstone failed: toy, sft"]
