"""LoRA updates: a manifest, and prepare/commit into a shadow adapter."""
