"""Which roles vLLM puts on which stage, and what they weigh there."""

from __future__ import annotations

from arcpp.profile.model import ROLES, SHARED, ModelProfile

#: Duplicates that the arcpp worker does not keep (arcpp_vllm.duplicates) and stock vLLM builds on
#: every stage: the default of every plan.
DROPPED: frozenset[str] = frozenset({"embed", "lm_head", "vision"})


def stage_roles(
    profile: ModelProfile,
    index: int,
    stages: int,
    *,
    dropped: frozenset[str],
    spec_tokens: int,
    vision: bool = True,
) -> dict[str, int]:
    """Role -> bytes on stage ``index``, in the order of ROLES.

    A tied lm_head on a last stage that is not the first is a copy of the embedding, and the
    draft layers of the last stage read the embedding too: neither copy can be dropped.
    vision: whether the host loads the vision tower (our OpenVINO engine is for text).
    """
    first, last = index == 0, index == stages - 1
    here: set[str] = set()
    if first:
        here |= {"embed", "vision"} if vision else {"embed"}
    if last:
        here |= {"final_norm", "lm_head"}
        if spec_tokens and "mtp" in profile.roles:
            here |= {"mtp", "embed"}
    here |= profile.duplicates - dropped
    here.add(SHARED)
    sizes = {role: profile.roles[role] for role in ROLES if role in here and role in profile.roles}
    if profile.tied and last and "embed" not in sizes:
        sizes["lm_head"] = profile.roles["embed"]
    return sizes
