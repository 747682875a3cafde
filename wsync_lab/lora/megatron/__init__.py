"""A stand-in for the Megatron side of a LoRA trainer: shards, gather, conversion to PEFT's names.

Names and shardings are those of ROLL's mcore_adapter over Megatron-Core (alibaba/ROLL,
``mcore_adapter/models/converter/dist_converter.py`` and ``template.py``). No Megatron is needed.
"""
