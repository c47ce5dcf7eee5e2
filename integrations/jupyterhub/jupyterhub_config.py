# Copy these lines into your jupyterhub_config.py. Install curb's wheel in the Hub's environment, readable for users.
c = get_config()  # noqa: F821

c.JupyterHub.spawner_class = "curb.jupyterhub.CurbSpawner"
c.CurbMixin.cap = "6GiB"         # each kernel
c.CurbMixin.user_cap = "10GiB"   # all kernels of a user together
c.CurbMixin.nap = "10m"

# By user: c.CurbMixin.cap = lambda spawner: "20GiB" if spawner.user.name in {"alice", "bob"} else "6GiB"
# A policy file for each user, which you may edit while kernels run:
# c.CurbMixin.policy = lambda spawner: f"/etc/curb/users/{spawner.user.name}.json"
# To make TensorFlow and JAX allocate as they need it: c.CurbMixin.steer = True
# With another spawner: from curb.jupyterhub import CurbMixin; class Spawner(CurbMixin, DockerSpawner): pass
