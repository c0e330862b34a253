"""How another Kafka cluster, or another Weir, is reached."""

from weir.client.kafka.settings import KafkaSettings, Login, TlsFiles, parse_servers
from weir.connect.secrets import reveal
from weir.connect.task import Job

#: The runner tries again, and says meanwhile what is wrong.
_PATIENCE_S = 15.0


def other_kafka(job: Job) -> KafkaSettings:
    token, password = reveal(job.option("token")), reveal(job.option("password"))
    login = None
    if token is not None or password is not None:
        login = Login(job.option("username") or "token", token or password or "")
    tls = None
    if job.option("tls") or job.option("ca") or job.option("certificate"):
        tls = TlsFiles(job.option("ca"), job.option("certificate"), job.option("key"))
    servers = parse_servers(job.option("bootstrap_servers"))
    return KafkaSettings(servers, "weir-connect", tls, login, retry_for_s=_PATIENCE_S)
