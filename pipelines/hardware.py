"""Write the fingerprint of this machine. Runs every time; timed stages depend on what it says."""

from __future__ import annotations

from breakeven import config, hardware, io
from breakeven.stage import run


def main() -> None:
    """Describe the machine as the configured target sees it."""
    fingerprint = hardware.fingerprint(config.load().hardware)
    io.write_json("build/hardware.json", fingerprint)
    accelerators = ", ".join(fingerprint["device_names"]) or fingerprint["cpu_model"]
    print(
        f"machine {fingerprint['machine']}: {fingerprint['target']} on {accelerators}, "
        f"{fingerprint['threads']} threads, {fingerprint['ram_gib']} GiB"
    )


if __name__ == "__main__":
    run(main)
