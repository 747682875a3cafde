"""Run a command under the restrictions of a managed container; only the standard library is needed."""
