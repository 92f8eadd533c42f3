"""aiodist inside other frameworks. Each module imports its framework, and nothing here imports any of them.

    ray         a backend of Ray Train
    lightning   a cluster environment of Lightning
    dask        ranks on the workers of a Dask cluster
    torch/      torch.distributed on aiodist: the backend "aiodist"

`hosted` is what those have in common that know their ranks, and not where these meet.
"""
