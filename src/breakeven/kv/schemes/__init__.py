"""Quantization schemes of the KV cache: one module a quantizer, one file in conf/kv/ a scheme.

To add one: a module here with `Settings` (the keys of its conf file, a frozen dataclass), `code_bits`, `levels`,
`group_numbers` and `quantize`, as `uniform` has them, and a file in conf/kv/ whose `quantizer` names the module.
"""
