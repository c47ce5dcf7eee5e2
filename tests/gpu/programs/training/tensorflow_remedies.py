"""Remedies that articles recommend so that TensorFlow takes less memory, a script for each: `tensorflow_remedies.py NAME STEPS`.

Prints these events, and waits for a command after each. The losses are the same in every run, to the last bit.
  imported  it is ready
  trained   it has made the script's settings, and trained
  after     it has applied the remedy
  again     it has trained once more, as the next cell of a notebook does
"""

from __future__ import annotations

import gc
import os
import statistics
import sys
import time
from typing import Any

# Otherwise XLA tries several kernels for each product and takes the fastest of this run, whose roundings may differ.
os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_gpu_deterministic_ops=true"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")

import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402
from talk import kind, say, wait  # noqa: E402
from tensorflow import keras  # noqa: E402

_SIDE, BATCH, _CLASSES = 64, 128, 10
_BATCHES = 8
_LIMIT_MIB = 2048
_PIECE_MIB, _MOST_PIECES = 256, 1024
_WARM_UP_STEPS = 20
_TIMED_TOGETHER = 50
"""The speed is the median time of so many steps, so a delay by another process does not count."""


def images(batches: int = _BATCHES) -> tuple[np.ndarray, np.ndarray]:
    """Returns images and their classes. The class can be learnt: it is the row of the bright line."""
    random = np.random.default_rng(1)
    x = random.random((batches * BATCH, _SIDE, _SIDE, 3), np.float32)
    y = random.integers(_CLASSES, size=len(x))
    x[np.arange(len(x)), y * _SIDE // _CLASSES] += 1
    return x, y


def cnn(filters: int = 32) -> Any:
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((_SIDE, _SIDE, 3)),
            layers.Conv2D(filters, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(2 * filters, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(64, activation="relu"),
            layers.Dense(_CLASSES),
        ]
    )


def function_step(model: Any) -> Any:
    """Returns a training step as a tf.function. It takes images and classes, and returns the loss."""
    optimizer = keras.optimizers.SGD(0.05, momentum=0.9)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    @tf.function
    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of(y, model(x, training=True))
        slopes = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(slopes, model.trainable_variables, strict=True))
        return loss

    return step


class Script:
    """Keras with its defaults, without a remedy. The other scripts differ in the methods that they override."""

    jit: bool | str = False
    """XLA compiles for seconds, so only one script leaves it on, as Keras does."""
    model: Any = None
    speed: float | None = None
    """Steps per second of the training. None: it is not timed."""
    error: str | None = None
    """The error that stopped the script's allocations, by talk.kind."""

    def begin(self) -> None: ...

    def train(self, steps: int) -> list[float]:
        self.model = self.compiled()
        return self.fit(self.model, steps, *images())

    def remedy(self) -> None: ...

    def again(self, steps: int) -> list[float]:
        return self.train(steps)

    def compiled(self, filters: int = 32) -> Any:
        model = cnn(filters)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizer="adam", loss=loss, jit_compile=self.jit)
        return model

    def fit(self, model: Any, steps: int, *data: Any, **more: Any) -> list[float]:
        """Trains. Returns the loss of each epoch of `_BATCHES` steps."""
        ends: list[float] = []
        clock = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: ends.append(time.perf_counter()))
        options = {"verbose": 0, "shuffle": False, "batch_size": None if more else BATCH, "callbacks": [clock]} | more
        losses = model.fit(*data, epochs=steps // _BATCHES, **options).history["loss"]
        self.speed = speed(ends[_WARM_UP_STEPS // _BATCHES :], _BATCHES)
        return [float(loss) for loss in losses]


class MemoryGrowth(Script):
    def begin(self) -> None:
        for gpu in tf.config.list_physical_devices("GPU"):
            tf.config.experimental.set_memory_growth(gpu, True)

    def remedy(self) -> None:
        self.model = None
        gc.collect()


class MemoryLimit(MemoryGrowth):
    def begin(self) -> None:
        for gpu in tf.config.list_physical_devices("GPU"):
            limit = tf.config.LogicalDeviceConfiguration(memory_limit=_LIMIT_MIB)
            tf.config.set_logical_device_configuration(gpu, [limit])


class Fit(Script):
    jit = "auto"

    def remedy(self) -> None:
        self.model = None


class FunctionLoop(Fit):
    def train(self, steps: int) -> list[float]:
        self.model = cnn()
        step = function_step(self.model)
        x, y = map(tf.constant, images())
        losses = []
        ends = []
        for number in range(steps):
            if number >= _WARM_UP_STEPS and number % _TIMED_TOGETHER == 0:
                float(losses[-1])
                ends.append(time.perf_counter())
            at = number % _BATCHES * BATCH
            losses.append(step(x[at : at + BATCH], y[at : at + BATCH]))
        self.speed = speed(ends, _TIMED_TOGETHER)
        return [float(loss) for loss in losses]


class ClearSession(Script):
    def remedy(self) -> None:
        del self.model
        keras.backend.clear_session()
        gc.collect()


class Sessions(Script):
    """The remedy for TensorFlow 1: closes the session and resets the graph."""

    def begin(self) -> None:
        tf.compat.v1.disable_eager_execution()

    def train(self, steps: int) -> list[float]:
        v1, random = tf.compat.v1, np.random.default_rng(2)

        def weights(*shape: int) -> Any:
            start = (random.random(shape) - 0.5) / np.sqrt(np.prod(shape[:-1]))
            return v1.Variable(start.astype(np.float32))

        x = v1.placeholder(tf.float32, [None, _SIDE, _SIDE, 3])
        y = v1.placeholder(tf.int64, [None])
        hidden = tf.nn.relu(tf.nn.conv2d(x, weights(3, 3, 3, 32), strides=2, padding="SAME"))
        hidden = tf.nn.relu(tf.nn.conv2d(hidden, weights(3, 3, 32, 64), strides=2, padding="SAME"))
        flat = tf.reshape(hidden, [-1, 64 * (_SIDE // 4) ** 2])
        logits = tf.matmul(flat, weights(64 * (_SIDE // 4) ** 2, _CLASSES))
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits))
        step = v1.train.AdamOptimizer(1e-3).minimize(loss)
        data, labels = images()
        losses = []
        self.session = v1.Session()
        self.session.run(v1.global_variables_initializer())
        for number in range(steps):
            at = slice(number % _BATCHES * BATCH, (number % _BATCHES + 1) * BATCH)
            losses.append(float(self.session.run([loss, step], {x: data[at], y: labels[at]})[0]))
        return losses

    def remedy(self) -> None:
        self.session.close()
        tf.compat.v1.reset_default_graph()
        gc.collect()


class OutOfMemory(Script):
    """Allocates too much, as a notebook may; catches the error, deletes its tensors, and goes on."""

    def train(self, steps: int) -> list[float]:
        losses = super().train(steps)
        self.pieces, one = [], tf.constant(1.0)
        try:
            for _ in range(_MOST_PIECES):
                self.pieces.append(tf.fill([_PIECE_MIB << 18], one))
        except Exception as error:  # the test judges the type
            self.error = kind(error)
        return losses

    def remedy(self) -> None:
        self.pieces.clear()
        gc.collect()

    def again(self, steps: int) -> list[float]:
        return super().train(steps)


class TwoTrainings(Script):
    """The second model is larger, and replaces the first one in its variable."""

    def again(self, steps: int) -> list[float]:
        self.model = self.compiled(128)
        return self.fit(self.model, steps, *images())


class DataLoader(Script):
    def train(self, steps: int) -> list[float]:
        self.model = self.compiled()
        data = tf.data.Dataset.from_tensor_slices(images()).cache().shuffle(1024, seed=1)
        data = data.map(lambda x, y: (tf.image.flip_left_right(x), y), num_parallel_calls=tf.data.AUTOTUNE)
        self.data = data.batch(BATCH).prefetch(tf.data.AUTOTUNE)
        return self.fit(self.model, steps, self.data, shuffle=None)

    def remedy(self) -> None:
        del self.model, self.data
        gc.collect()


SCRIPTS: dict[str, type[Script]] = {
    "default": Script,
    "growth": MemoryGrowth,
    "limit": MemoryLimit,
    "fit": Fit,
    "function": FunctionLoop,
    "clear": ClearSession,
    "sessions": Sessions,
    "oom": OutOfMemory,
    "two": TwoTrainings,
    "loader": DataLoader,
}


def speed(ends: list[float], steps: int) -> float | None:
    """Returns the steps per second. `ends`: the times after each `steps` steps. None: there are too few of them."""
    times = [end - start for start, end in zip(ends, ends[1:], strict=False)]
    return steps / statistics.median(times) if times else None


def bytes_in_use() -> int | str:
    """Returns TensorFlow's own figure of the memory in use, formerly the op `memory_stats/BytesInUse`."""
    try:
        return int(tf.config.experimental.get_memory_info("GPU:0")["current"])
    except Exception as error:  # not every allocator has statistics
        return f"{type(error).__name__}: {error}"[:200]


def main(name: str, steps: int) -> None:
    script = SCRIPTS[name]()
    say("imported", version=tf.__version__)
    wait()
    keras.utils.set_random_seed(1)
    tf.config.experimental.enable_op_determinism()
    if not tf.config.list_physical_devices("GPU"):
        sys.exit("TensorFlow sees no GPU")
    script.begin()
    losses = script.train(steps)
    say("trained", losses=losses, steps_per_s=script.speed, in_use=bytes_in_use(), error=script.error)
    wait()
    script.remedy()
    say("after", in_use=bytes_in_use())
    wait()
    say("again", losses=script.again(steps), in_use=bytes_in_use())
    wait()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
