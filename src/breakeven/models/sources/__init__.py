"""Where weights come from: one file a kind, each with the same `fetch`."""
