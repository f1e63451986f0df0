"""kombu's filesystem transport, for an app with `Redelivery`: a message is in its queue whole, or not at all.

kombu's own writes it into a file that workers can see already: one that takes it half written loses it, and ends. Here it is
written under another name (`….unfinished`, which nobody takes), and given its own when it is whole.
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
        """As kombu's: the same name in the same folder. Raises `ChannelError`."""
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
