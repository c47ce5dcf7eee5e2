"""Trainings by libraries on top of the frameworks, for suspend_train.py. Each is deterministic to the last bit."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any

Trainer = tuple[Callable[[], float], Callable[[], Iterable[Any]]]
"""A function that makes a step and returns its loss, and one that returns the weights as NumPy arrays."""


def _torch() -> Any:
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # required by torch for determinism
    import torch

    torch.manual_seed(1)
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
    return torch


def _weights(module: Any) -> Callable[[], Iterable[Any]]:
    return lambda: (weights.detach().float().cpu().numpy() for weights in module.parameters())


def _perceptron(torch: Any, layers: int = 4) -> Any:
    nn = torch.nn
    return nn.Sequential(*(part for _ in range(layers) for part in (nn.Linear(2048, 2048), nn.Tanh())))


def _batch(torch: Any, *shape: int) -> Any:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(2)).cuda()


def transformers() -> Trainer:
    """GPT-2 of four layers by Transformers, prepared and driven by Accelerate."""
    torch = _torch()
    from accelerate import Accelerator
    from transformers import GPT2Config, GPT2LMHeadModel

    accelerator = Accelerator()
    config = GPT2Config(
        n_layer=4, n_embd=512, n_head=8, vocab_size=8192, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, attn_implementation="eager"
    )  # fmt: skip
    bare = GPT2LMHeadModel(config)
    model, optimizer = accelerator.prepare(bare, torch.optim.AdamW(bare.parameters(), lr=1e-4))
    words = torch.randint(8192, (8, 128), generator=torch.Generator().manual_seed(2)).cuda()

    def step() -> float:
        loss = model(input_ids=words, labels=words).loss
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        return float(loss.item())

    return step, _weights(model)


def lightning() -> Trainer:
    torch = _torch()
    from lightning_fabric import Fabric

    fabric = Fabric(accelerator="cuda", devices=1)
    bare = _perceptron(torch)
    model, optimizer = fabric.setup(bare, torch.optim.Adam(bare.parameters(), lr=1e-4))
    x, y = _batch(torch, 2, 256, 2048).unbind(0)

    def step() -> float:
        optimizer.zero_grad()
        loss = (model(x) - y).square().mean()
        fabric.backward(loss)
        optimizer.step()
        return float(loss.item())

    return step, _weights(model)


def torchvision() -> Trainer:
    """ResNet-18 in mixed precision."""
    torch = _torch()
    from torchvision.models import resnet18

    model = resnet18().cuda().to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    scaler = torch.amp.GradScaler("cuda")
    pictures = _batch(torch, 32, 3, 224, 224).to(memory_format=torch.channels_last)
    kinds = torch.arange(32).cuda()

    def step() -> float:
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = torch.nn.functional.cross_entropy(model(pictures), kinds)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return float(loss.item())

    return step, _weights(model)


def gpytorch() -> Trainer:
    """An exact Gaussian process of 4,000 points."""
    torch = _torch()
    import gpytorch

    x = _batch(torch, 4000, 4)
    y = x.sin().sum(1)

    class Process(gpytorch.models.ExactGP):  # type: ignore[misc]
        def __init__(self, likelihood: Any) -> None:
            super().__init__(x, y, likelihood)
            self.mean = gpytorch.means.ConstantMean()
            self.kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())

        def forward(self, points: Any) -> Any:
            return gpytorch.distributions.MultivariateNormal(self.mean(points), self.kernel(points))

    likelihood = gpytorch.likelihoods.GaussianLikelihood().cuda()
    model = Process(likelihood).cuda()
    fit = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)

    def step() -> float:
        optimizer.zero_grad()
        with gpytorch.settings.fast_computations(covar_root_decomposition=False, log_prob=False, solves=False):
            loss = -fit(model(x), y)
        loss.backward()
        optimizer.step()
        return float(loss.item())

    return step, _weights(model)


def torchdiffeq() -> Trainer:
    torch = _torch()
    from torchdiffeq import odeint

    slope = _perceptron(torch, layers=2).cuda()
    optimizer = torch.optim.Adam(slope.parameters(), lr=1e-4)
    start, target = _batch(torch, 2, 512, 2048).unbind(0)
    times = torch.linspace(0, 1, 5).cuda()

    def step() -> float:
        optimizer.zero_grad()
        loss = (odeint(lambda _, y: slope(y), start, times, method="rk4")[-1] - target).square().mean()
        loss.backward()
        optimizer.step()
        return float(loss.item())

    return step, _weights(slope)


def torchaudio() -> Trainer:
    torch = _torch()
    from torchaudio.transforms import MelSpectrogram

    spectrum = MelSpectrogram(16_000, n_fft=512, n_mels=64).cuda()
    layer = torch.nn.Linear(64, 64).cuda()
    optimizer = torch.optim.SGD(layer.parameters(), lr=1e-4)
    sound = _batch(torch, 64, 160_000)

    def step() -> float:
        optimizer.zero_grad()
        seen = spectrum(sound).log1p().transpose(1, 2)
        loss = (layer(seen) - seen.roll(1, 1)).square().mean()
        loss.backward()
        optimizer.step()
        return float(loss.item())

    return step, _weights(layer)


def compiled() -> Trainer:
    """torch.compile with CUDA graphs."""
    torch = _torch()
    model = _perceptron(torch).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x, y = _batch(torch, 2, 256, 2048).unbind(0)
    forward = torch.compile(lambda given: (model(given) - y).square().mean(), mode="reduce-overhead")

    def step() -> float:
        loss = forward(x)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return float(loss.item())

    return step, _weights(model)


def graphed() -> Trainer:
    """A training step that PyTorch captured in a CUDA graph."""
    torch = _torch()
    model = _perceptron(torch).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x, y = _batch(torch, 2, 256, 2048).unbind(0)

    def whole_step() -> Any:
        optimizer.zero_grad(set_to_none=False)
        loss = (model(x) - y).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            whole_step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = whole_step()

    def step() -> float:
        graph.replay()
        return float(loss.item())

    return step, _weights(model)


def expandable() -> Trainer:
    """PyTorch's allocator of expandable segments: memory of the program's own from the functions of virtual memory."""
    os.environ["PYTORCH_ALLOC_CONF"] = os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
    torch = _torch()
    model = _perceptron(torch).cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    x, y = _batch(torch, 2, 256, 2048).unbind(0)

    def step() -> float:
        optimizer.zero_grad()
        loss = (model(x) - y).square().mean()
        loss.backward()
        optimizer.step()
        return float(loss.item())

    return step, _weights(model)


def triton() -> Trainer:
    """Moves a vector towards a target, by a kernel that Triton compiles."""
    torch = _torch()
    from triton_pull import pull

    size = 1 << 26
    target = _batch(torch, size)
    weights, momenta = torch.zeros(2, size, device="cuda").unbind(0)

    def step() -> float:
        pull(weights, momenta, target)
        return float((weights - target).square().mean().item())

    return step, lambda: [weights.cpu().numpy(), momenta.cpu().numpy()]


def numpyro() -> Trainer:
    """A logistic regression by stochastic variational inference."""
    import jax_step  # noqa: F401  before JAX: it sets XLA_FLAGS
    import jax
    import numpy as np
    import numpyro
    from numpyro import distributions
    from numpyro.infer import SVI, Trace_ELBO
    from numpyro.infer.autoguide import AutoNormal

    points = jax.random.normal(jax.random.PRNGKey(1), (100_000, 64))
    kinds = (points.sum(1) > 0).astype(int)

    def model(x: Any, y: Any) -> None:
        slopes = numpyro.sample("slopes", distributions.Normal(0, 1).expand([64]).to_event(1))
        with numpyro.plate("points", x.shape[0]):
            numpyro.sample("kinds", distributions.Bernoulli(logits=x @ slopes), obs=y)

    inference = SVI(model, AutoNormal(model), numpyro.optim.Adam(0.01), Trace_ELBO())
    state = inference.init(jax.random.PRNGKey(2), points, kinds)
    update = jax.jit(inference.update)

    def step() -> float:
        nonlocal state
        state, loss = update(state, points, kinds)
        return float(loss)

    return step, lambda: [np.asarray(value) for _, value in sorted(inference.get_params(state).items())]


def cupy_numba() -> Trainer:
    """Memory of CuPy, on which a kernel of Numba works."""
    import cupy
    import numpy as np
    from numba_kernels import cuda

    @cuda.jit
    def pull(weights: Any, target: Any) -> None:
        index = cuda.grid(1)
        if index < weights.size:
            weights[index] += np.float32(0.05) * (target[index] - weights[index])

    size = 1 << 26
    target = cupy.sin(cupy.arange(size, dtype=cupy.float32))
    weights = cupy.zeros(size, dtype=cupy.float32)

    def step() -> float:
        pull[(size + 255) // 256, 256](weights, target)
        cuda.synchronize()
        return float(((weights - target) ** 2).mean())

    return step, lambda: [cupy.asnumpy(weights)]


TRAINERS: dict[str, Callable[[], Trainer]] = {
    "transformers": transformers,
    "lightning": lightning,
    "torchvision": torchvision,
    "gpytorch": gpytorch,
    "torchdiffeq": torchdiffeq,
    "torchaudio": torchaudio,
    "compiled": compiled,
    "graphed": graphed,
    "expandable": expandable,
    "triton": triton,
    "numpyro": numpyro,
    "cupy_numba": cupy_numba,
}
