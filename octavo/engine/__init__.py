"""How requests become tokens.

| owns | does not own |
|---|---|
| the scheduler: who computes what in a step | blocks and their sharing (`kv`) |
| the sampler: logits -> token ids, log-probabilities | the forward pass (`ops`, `models`) |
| stop conditions, deltas, timings, counters | tokenizing, detokenizing, matching stop strings (`text`) |
| the memory plan: `--memory` as a hard total | fetching and reading models (`weights`, `models`) |
| `LLM` (offline), `AsyncEngine` (a thread for servers) | HTTP (`serve`) |

One step is three calls: `schedule -> execute -> publish` (`engine.py`).
"""

from octavo.engine.async_engine import AsyncEngine, DeltaStream, EngineStopped
from octavo.engine.build import BuiltEngine, build_engine
from octavo.engine.config import EngineConfig
from octavo.engine.engine import Engine
from octavo.engine.llm import LLM
from octavo.engine.memory import MemoryPlan
from octavo.engine.stats import EngineStats

__all__ = [
    "LLM",
    "AsyncEngine",
    "BuiltEngine",
    "DeltaStream",
    "Engine",
    "EngineConfig",
    "EngineStats",
    "EngineStopped",
    "MemoryPlan",
    "build_engine",
]
