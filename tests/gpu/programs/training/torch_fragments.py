"""Trains in PyTorch, then leaves fragments in its cache: `torch_fragments.py STEPS`.

It first trains as train.py does, with the same events. Then each segment has one small live tensor and a large free block.
"""

from __future__ import annotations

import sys

import torch
import train
from talk import say, wait

_SEGMENTS = 24
_LARGE, _SMALL = 256 << 20, 2 << 20


def marked(size: int, mark: int) -> torch.Tensor:
    return torch.empty(size, dtype=torch.uint8, device="cuda").fill_(mark)


def fragments() -> list[torch.Tensor]:
    """Returns the small tensors. For each, a block of a whole segment is allocated and freed, which PyTorch then divides."""
    small, large = [], []
    for mark in range(_SEGMENTS):
        whole = marked(_LARGE, mark)
        del whole
        small.append(marked(_SMALL, mark))
        large.append(marked(_LARGE - _SMALL, mark))
    return small


def intact(tensors: list[torch.Tensor]) -> bool:
    return all(one[0].item() == one[-1].item() == mark for mark, one in enumerate(tensors))


def main() -> None:
    torch.cuda.init()
    torch.cuda.empty_cache()  # otherwise the small tensors would go into free blocks of the training
    small = fragments()
    torch.cuda.synchronize()
    right = intact(small)
    settings = torch.cuda.memory._snapshot()["allocator_settings"]
    say("fragmented", intact=right, expandable=bool(settings["expandable_segments"]))
    wait()
    again = [marked(_LARGE, mark) for mark in range(4)]
    say("again", intact=intact(small) and intact(again))
    wait()


if __name__ == "__main__":
    train.main(int(sys.argv[1]))
    main()
