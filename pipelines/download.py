"""Stage download: fetch and verify the models and data files of params.yaml, write build/models.lock.json."""

from breakeven import config, io
from breakeven.models import lock
from breakeven.stage import run


def main() -> None:
    """Load, fetch, save."""
    content = lock.build(config.load(), progress=lambda line: print(line, flush=True))
    io.write_json("build/models.lock.json", content)
    for role, entry in content["models"].items():
        size = sum(file["bytes"] for file in entry["files"].values())
        print(f"{role}: {entry['name']} in {entry['folder']}, {size / 1e6:.0f} MB verified ({entry['license']})")


if __name__ == "__main__":
    run(main, offline=False)
