"""The links arcpp has itself, as a plugin. Their runtimes are imported when one is opened."""

from __future__ import annotations

from arcpp import hookimpl
from arcpp.link import LinkEnd, LinkReceiver, LinkSender


@hookimpl(trylast=True)
def arcpp_open_link(end: LinkEnd) -> LinkSender | LinkReceiver:
    """An end of a gloo link, which works on any device."""
    import torch

    from .gloo_link import GlooReceiver, GlooSender

    if end.sends:
        return GlooSender(end.name, end.peer, end.group)
    return GlooReceiver(end.name, end.peer, end.group, torch.device(end.device))
