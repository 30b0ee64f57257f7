"""What crosses a wire or a memory page, written once.

Everything else in Paceline imports from here and nothing here imports from the rest. The package
declares no dependency: `dtypes`, `batch` need numpy and `schemas` needs pydantic, and are imported
only by distributions that require them.
"""
