"""Weight updates without a training loop: payloads of published shapes, ceilings, raw samples."""
