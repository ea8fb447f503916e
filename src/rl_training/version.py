"""The version, told once: the package's metadata and everything that is written name this one."""

__version__ = "0.2.0"
