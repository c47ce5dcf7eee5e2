"""A training in PyTorch, and then what leaves its cache in pieces: `torch_fragments.py STEPS`; 0: without the training.

The training is train.py's: it says what it says, and waits once. Then segments are taken that each hold one small tensor
that lives on beside a large one that does not.
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
    """The small tensors. Each segment is opened by a block of its whole size, which is then divided."""
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
    torch.cuda.empty_cache()  # what the training left would take in the small tensors
    small = fragments()
    torch.cuda.synchronize()
    right = intact(small)
    settings = torch.cuda.memory._snapshot()["allocator_settings"]
    say("fragmented", intact=right, expandable=bool(settings["expandable_segments"]), small_mib=_SEGMENTS * _SMALL >> 20)
    wait()
    again = [marked(_LARGE, mark) for mark in range(4)]
    say("again", intact=intact(small) and intact(again))
    wait()


if __name__ == "__main__":
    if steps := int(sys.argv[1]):
        train.main(steps)
    main()
