"""The models of the goldens: a transformers class and config of each, the stored type, and how it is published.

Each kind of model has a file. A row of MODELS is described by write_model and try_seed in make_goldens.py, which
read it.
"""
import golden_dense
import golden_latent
import golden_moe
import golden_recurrent
import golden_sparse

KINDS = (golden_dense, golden_moe, golden_latent, golden_recurrent, golden_sparse)
MODELS = {name: spec for kind in KINDS for name, spec in kind.MODELS.items()}
assert len(MODELS) == sum(len(kind.MODELS) for kind in KINDS)
