"""The picture of an audit: the graph top-down, its loops, and where the limit bites, as one SVG file."""

from endstop.langgraph._picture._figure import render_svg

__all__ = ["render_svg"]
