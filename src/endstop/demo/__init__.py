"""The demo: a research agent over a folder of Markdown documents, on a small model that runs on this machine."""
