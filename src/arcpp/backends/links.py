"""The links arcpp has itself, as a plugin. Their runtimes are imported when one is opened."""

from __future__ import annotations

from arcpp import hookimpl
from arcpp.link import LinkEnd, LinkReceiver, LinkSender
from arcpp.link.ring import is_supported
from arcpp.settings import Settings


@hookimpl(trylast=True)
def arcpp_open_link(end: LinkEnd, settings: Settings) -> LinkSender | LinkReceiver:
    """An end of a ring in shared memory; of a gloo link where the settings or the machine say so.

    Both work on any device.
    """
    if settings.link == "gloo" or not is_supported():
        from .gloo_link import open_gloo_end

        return open_gloo_end(end)
    from .ring_link import open_ring_end

    return open_ring_end(end, settings)
