"""Checks every checksum of a stopped data folder, and says by topic and offsets what is lost."""

from weir.bookie.survey import Progress
from weir.datafolder.folder import stopped
from weir.datafolder.survey import FolderSurvey, survey_folder
from weir.meta.survey import survey_meta
from weir.runtime.interfaces import Runtime


async def verify_folder(
    runtime: Runtime, path: str, progress: Progress = lambda _done, _all: None, *, entry_logs: bool = True
) -> FolderSurvey:
    """FileLockedError while a Weir runs on it; ConfigError if it is no data folder. Nothing is written. Without
    `entry_logs` only what a start reads too, and no losses are listed."""
    async with stopped(runtime, path) as folder:
        meta = await survey_meta(runtime.disk, folder.meta)
        return await survey_folder(runtime, folder, meta, progress=progress, entry_logs=entry_logs)
