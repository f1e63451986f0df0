"""kombu's filesystem transport, for an app with `Redelivery`: workers never see a half-written message.

kombu's own transport writes a message into a file that workers already see: a worker that takes a half-written file loses the
message, and ends. Here the message is written to a file that no worker takes (`….unfinished`), which is then renamed.
"""

from __future__ import annotations

import time
import uuid
from pathlib import Path
from typing import Any

from kombu.exceptions import ChannelError
from kombu.transport import filesystem
from kombu.utils.json import dumps


class Channel(filesystem.Channel):
    """kombu's channel, which publishes in one step."""

    def _put(self, queue: str, payload: dict[str, Any], **_: Any) -> None:  # type: ignore[override]  # as kombu's own does
        """As kombu's: the file has the same name and folder. Raises `ChannelError`."""
        path = Path(self.data_folder_out) / f"{round(time.monotonic() * 1000)}_{uuid.uuid4()}.{queue}.msg"
        unfinished = path.with_name(f"{path.name}.unfinished")
        try:
            unfinished.write_bytes(dumps(payload).encode())
            unfinished.rename(path)
        except OSError as exc:
            msg = f"cannot add the file {str(path)!r}: {exc}"
            raise ChannelError(msg) from exc


class FilesystemTransport(filesystem.Transport):
    """kombu's transport, with our channels."""

    Channel = Channel
