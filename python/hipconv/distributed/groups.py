"""A process group, as every function of `hipconv.distributed` takes one: a ProcessGroup, or a DeviceMesh of one dimension."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from ..arguments import describe


class Group(NamedTuple):
    """A process group and the place of this process in it. Ranks are the group's own everywhere, never the world's."""

    process_group: Any
    rank: int
    size: int


def group_of(group: object) -> Group:
    """Return what an argument `group` means: None is the default group.
    TypeError or ValueError where this process has no part in it.
    """
    if not (dist.is_available() and dist.is_initialized()):
        got = "None (the default group)" if group is None else describe(group)
        raise ValueError(f"group: got {got}, but torch.distributed.init_process_group was not called")
    if group is None:
        group = dist.group.WORLD
    elif hasattr(group, "get_group") and hasattr(
        group, "mesh_dim_names"
    ):  # a DeviceMesh, whose module takes a second to import
        if group.ndim != 1:  # type: ignore[attr-defined]
            raise ValueError(
                f"group: got a DeviceMesh of {group.ndim} dimensions, "  # type: ignore[attr-defined]
                "expected one of a single dimension, such as mesh['context']"
            )
        ranks = group.mesh.tolist()  # type: ignore[attr-defined]
        group = group.get_group()
        if ranks != sorted(ranks):  # as those of a group always are
            raise ValueError(
                f"group: got a DeviceMesh of the ranks {ranks}, expected them in rising order, in which its process group has "
                f"them"
            )
    if group is dist.GroupMember.NON_GROUP_MEMBER:
        raise ValueError("group: got a group that this process is not a member of, expected its own; only members may call")
    if not isinstance(group, dist.ProcessGroup):
        raise TypeError(f"group: got {describe(group)}, expected a torch.distributed.ProcessGroup, a DeviceMesh or None")
    return Group(group, group.rank(), group.size())


def device_for_messages(group: Group, near: object = None) -> torch.device:
    """Return where small messages between processes may lie: on the host, where the group has a backend for it (a host then
    need not wait for its GPU), else on the GPU of the tensor `near`, which this rank's data will travel from too, else on the
    one that the group was made for, or the current one.
    """
    devices = {getattr(device, "type", device) for device in getattr(group.process_group, "_device_types", ())}
    if "cpu" in devices or not devices:
        return torch.device("cpu")
    if isinstance(near, torch.Tensor) and near.is_cuda:
        return near.device
    return getattr(group.process_group, "bound_device_id", None) or torch.device("cuda", torch.cuda.current_device())
