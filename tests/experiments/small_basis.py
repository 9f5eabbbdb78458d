"""The synthetic experiment at a size for tests."""

from tokengt.experiments.basis import SETTINGS, BasisConfig, Setting

SMALL = BasisConfig(
    width=96,
    head_dim=16,
    # Trained as a product, w_in of this width wants more steps than a test has.
    input_factor=False,
    steps=250,
    warmup=60,
    learning_rate=3e-3,
    dense_batch=12,
    sparse_batch=12,
    train_graphs=64,
    test_graphs=16,
    min_nodes=4,
    dense_max_nodes=4,
    sparse_max_nodes=5,
    precision="float32",
)


def named(name: str) -> Setting:
    (setting,) = (setting for setting in SETTINGS if setting.name == name)
    return setting
