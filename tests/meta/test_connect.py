"""A URL names a store, or the error says what would."""

from pathlib import Path
from typing import Any

import pytest

from weir.meta.connect import connect
from weir.meta.embedded import EmbeddedMeta
from weir.meta.etcd import EtcdMeta
from weir.meta.local import MemoryMeta
from weir.model.errors import ConfigError
from weir.runtime.interfaces import Runtime


async def test_memory_is_a_store_of_its_own(runtime: Runtime) -> None:
    first, second = await connect("memory:", runtime), await connect("memory:", runtime)
    assert isinstance(first, MemoryMeta)
    await first.put("/a", b"1")
    assert await second.get("/a") is None


@pytest.mark.parametrize("form", ["file:{}", "file://{}", "file:{}/", "file://localhost{}"])
async def test_a_file_url_names_the_embedded_stores_folder(runtime: Runtime, tmp_path: Path, form: str) -> None:
    store = await connect(form.format(f"{tmp_path}/some%20where"), runtime)
    assert isinstance(store, EmbeddedMeta)
    await store.put("/a", b"1")
    await store.close()
    assert (tmp_path / "some where" / "lock").exists()


@pytest.mark.process
async def test_an_etcd_url_names_endpoints(runtime: Runtime, etcd_server: Any) -> None:
    store = await connect(f"etcd://127.0.0.1:1,127.0.0.1:{etcd_server.port}", runtime)
    assert isinstance(store, EtcdMeta)
    await store.put("/a", b"1")
    await store.close()


@pytest.mark.parametrize(
    "url",
    ["", "memory", "memory:x", "file:", "file:/", "file:relative", "file://host/x", "etcd:host:1", "etcd://",
     "etcd://a:b", "etcd://a:1,", "etcd://a:99999", "etcd://a:1/path", "etcd://u:p@a:1", "redis://a:1", "/path"],
)  # fmt: skip
async def test_anything_else_is_a_configuration_error_that_says_what_is_possible(
    runtime: Runtime, url: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        await connect(url, runtime)
    assert "etcd://host:port" in str(refused.value)
