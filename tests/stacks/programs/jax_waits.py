"""A JAX program whose compiled function has called back into Python, where it waits for ever."""

import threading

import jax
import jax.numpy as jnp
import numpy as np


def wait(value):
    print("ready", flush=True)
    threading.Event().wait()
    return value


@jax.jit
def step(x):
    y = jnp.sin(x @ x)
    return jax.pure_callback(wait, jax.ShapeDtypeStruct(y.shape, y.dtype), y)


x = jnp.ones((64, 64))
jax.jit(lambda a: a @ a)(x).block_until_ready()
np.asarray(step(x))
