"""Found by Hydra's plugin scan, in `breakeven` and in DVC alike: registers the schema and the digest resolver."""

from breakeven.hydra_setup import register

register()
