"""OpenVINO engine: one compiled stage per device.

``chain`` is what an engine builds on: its docstring is the interface.
"""
