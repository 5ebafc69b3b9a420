"""Models: the protocol, scripted and recorded ones, any OpenAI-compatible endpoint, any LangChain chat model."""
