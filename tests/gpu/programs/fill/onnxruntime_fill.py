"""Fills the cap with ONNX Runtime's CUDA provider. Its arena allocates by cudaMalloc and returns nothing to the driver."""

from __future__ import annotations

import hashlib
import sys
from typing import Any

import numpy as np
import onnxruntime
from fill import run
from frameworks import Framework
from onnx import TensorProto, helper
from talk import say


def _model() -> bytes:
    """Returns a model that computes relu(x @ x) of a square matrix."""
    square = ["n", "n"]
    nodes = [helper.make_node("MatMul", ["x", "x"], ["product"]), helper.make_node("Relu", ["product"], ["y"])]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, square) for name in ("x", "y"))
    model = helper.make_model(helper.make_graph(nodes, "square", [x], [y]), opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 9
    return bytes(model.SerializeToString())


class OnnxRuntime(Framework):
    sizes = (256, 32)

    def __init__(self) -> None:
        self._session = onnxruntime.InferenceSession(_model(), providers=["CUDAExecutionProvider"])
        used = self._session.get_providers()
        if "CUDAExecutionProvider" not in used:
            say("unavailable", why=f"this build of ONNX Runtime has only {', '.join(used)}")
            sys.exit()

    def warm_up(self) -> None:
        for _ in range(3):
            self.compute()
        self.holds(self.piece(2, 1), 1)

    def piece(self, mib: int, mark: int) -> Any:
        return onnxruntime.OrtValue.ortvalue_from_numpy(np.full(mib << 18, mark, np.float32), "cuda", 0)

    def holds(self, piece: Any, mark: int) -> bool:
        data = piece.numpy()
        return bool(data[0] == mark and data[-1] == mark)

    def result(self) -> str:
        x = np.sin(np.arange(512 * 512, dtype=np.float32)).reshape(512, 512)
        return hashlib.sha256(self._session.run(None, {"x": x})[0].tobytes()).hexdigest()

    def compute(self) -> bool:
        """Computes a matrix product of powers of two. Returns true if it is exact."""
        twos = np.full((1024, 1024), 2.0, np.float32)
        return bool((self._session.run(None, {"x": twos})[0] == 4096).all())


run(OnnxRuntime())
