"""The LangGraph side: see what a graph can do under its limits, and bound graphs that run today, unchanged.

Needs the extra `endstop[langgraph]`. Nothing of the kernel imports it.
"""
