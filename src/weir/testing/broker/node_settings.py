"""How simulated brokers differ from those of `weir up`: names, ports and times."""

from weir.gateway.pulsar.settings import PulsarSettings, SessionLimits

PULSAR_PORT = 6650
TAIL_BYTES = 3_000
_LIMITS = SessionLimits(connect_timeout_s=2.0, idle_timeout_s=3.0, stall_timeout_s=3.0, settle_s=0.5, linger_s=0.2)


def pulsar_url(name: str) -> str:
    return f"pulsar://{name}:{PULSAR_PORT}"


def pulsar_settings(name: str) -> PulsarSettings:
    """Of the broker of this name."""
    return PulsarSettings(
        host=name,
        port=PULSAR_PORT,
        advertise=pulsar_url(name),
        limits=_LIMITS,
        sweep_interval_s=0.5,
        close_grace_s=1.0,
    )
