"""The guarantees in a few words each, for reports; in full in the documentation."""

from __future__ import annotations

__all__ = ["RULES"]

RULES = {
    "R1": "a request that must not read reaches no backend",
    "R2": "an earlier lease goes before the skip takes effect",
    "R3": "a load for a skipping request is refused",
    "R4": "a skipping request is neither query nor hit",
    "R5": "a request that must not write offers nothing",
    "R6": "policies only narrow",
    "K1": "keys that differ anywhere are kept apart",
    "K2": "another model, layout or shard is a miss",
    "K3": "salt, LoRA and images are part of the key",
    "K4": "an object is what its name says, or a miss",
    "L1": "a reported hit is leased until it is used or given up",
    "L2": "at rest nothing is held",
    "L3": "a store is invisible until it is complete",
    "L4": "requests may end while their transfers run",
    "L5": "reset empties every tier",
    "L6": "capacity is never exceeded",
    "L7": "only whole blocks of final tokens",
    "L8": "only the pages that were given, never later",
    "F1": "a failed key is a miss to everyone",
    "F2": "whatever is raised or answered, the next call works",
    "F3": "every wait has an end",
    "F4": "the scheduler's thread does no I/O",
    "F5": "a changed byte is a miss",
    "F6": "a full or read-only store serves what it can",
    "F7": "what was complete is found after a kill",
    "F8": "any number of processes share a store",
    "F9": "close returns, twice, from anywhere",
    "C1": "a wrong configuration is said at the start",
    "C2": "sizes carry units",
    "C3": "secrets stay secret",
}
