"""Two actors that share a GPU, each held to its part."""

import ray
from curb.ray import on_gpu

ray.init()


@ray.remote
class Trainer:
    def train(self) -> str:
        return "trained"


trainers = [Trainer.options(**on_gpu(0.25)).remote() for _ in range(2)]
print(ray.get([trainer.train.remote() for trainer in trainers]))
