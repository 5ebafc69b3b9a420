"""Conformance kits: contracts that anybody can run on their own parts, one module for each protocol."""
