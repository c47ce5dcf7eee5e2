"""Uses TensorFlow as a notebook does. Reads commands from stdin, one a line."""

import gc
import sys

import tensorflow as tf
from tensorflow.python.client import device_lib

PIECE_MIB = 256
gpus = [device for device in device_lib.list_local_devices() if device.device_type == "GPU"]
pieces = []
if gpus:
    one = tf.constant(1.0)
print("ready", flush=True)
for line in sys.stdin:
    answer = "ok"
    if line == "gpus\n":
        answer = " ".join(str(gpu.memory_limit) for gpu in gpus)
    elif line == "fill\n":
        try:
            while True:
                pieces.append(tf.fill([PIECE_MIB << 18], one))
        except tf.errors.OpError as error:
            answer = f"{type(error).__name__} {len(pieces)}"
    elif line == "drop\n":
        pieces.clear()
        gc.collect()
    print(answer, flush=True)
