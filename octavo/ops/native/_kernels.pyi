from typing import Any

KEY_TILE: int
KEY_PART: int

def quantize_rows(
    x: Any,
    codes: Any,
    scales: Any,
    sums: Any,
    group: int,
    first: int = 0,
    unit: str = "",
    whole_row: bool = False,
    fixed_scale: float = 0.0,
) -> None: ...
def round_e4m3(x: Any, fixed_scale: float = 0.0, unit: str = "") -> None: ...
def rms_norm(x: Any, weight: Any, eps: float, unit: str = "") -> None: ...
def add(y: Any, x: Any, unit: str = "") -> None: ...
def gated(gate: Any, up: Any, activation: str, unit: str = "") -> None: ...
def rope(heads: Any, cos: Any, sin: Any, unit: str = "") -> None: ...
def softcap(x: Any, cap: float, unit: str = "") -> None: ...

class PagedLayer:
    def __init__(
        self,
        memory: Any,
        block_table: Any,
        block_size: int,
        num_kv_heads: int,
        head_dim: int,
        format: str,
        scales: list[float] = ...,
    ) -> None: ...
    @staticmethod
    def bytes_per_block(block_size: int, num_kv_heads: int, head_dim: int, format: str) -> int: ...

class AttentionPart:
    def __init__(self, output: Any, highest: Any, total: Any) -> None: ...

def write_kv(layer: PagedLayer, first_position: int, keys: Any, values: Any, unit: str = "") -> None: ...
def attend_part(
    layer: PagedLayer,
    q: Any,
    first_position: int,
    kv_head: int,
    first: int,
    end: int,
    out: AttentionPart,
    scale: float,
    softcap: float = 0.0,
    window: int = 0,
    unit: str = "",
) -> None: ...
def fold_part(into: AttentionPart, part: AttentionPart, unit: str = "") -> None: ...
def finish_part(layer: PagedLayer, part: AttentionPart, kv_head: int, y: Any, unit: str = "") -> None: ...
def kernel_units() -> list[tuple[str, str, bool, str]]: ...
def best_unit() -> str: ...
def self_test(unit: str, thorough: bool = False) -> str: ...
def answers_digest(unit: str) -> int: ...
def broken_self_test(how: str) -> str: ...
def cpu_features() -> list[str]: ...

class ThreadTeam:
    num_threads: int
    def __init__(self, num_threads: int) -> None: ...
    def first_bad_job(self, num_jobs: int, most_phases: int, num_tasks: int) -> int: ...

class AttentionShape:
    def __init__(
        self,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        scale: float,
        softcap: float = 0.0,
        window: int = 0,
    ) -> None: ...

class KvStore:
    num_bytes: int
    def __init__(
        self,
        layers: list[tuple[int, int]],
        num_blocks: int,
        block_size: int,
        format: str,
        scales: list[list[float]] = ...,
    ) -> None: ...
    @staticmethod
    def bytes_per_block(layers: list[tuple[int, int]], block_size: int, format: str) -> int: ...
    def copy_block(self, source: int, target: int) -> None: ...

class Program:
    scratch_bytes: int
    def __init__(
        self,
        team: ThreadTeam,
        unit: str,
        kv: KvStore,
        max_rows: int,
        max_logit_rows: int,
        experts_per_token: int = 0,
    ) -> None: ...
    def slot(self, bytes_per_row: int, domain: str = "tokens") -> int: ...
    def float_rows(self, slot: int, features: int) -> int: ...
    def quantized_rows(
        self, slot: int, features: int, group: int, source: str = "group", scale: float = 0.0
    ) -> int: ...
    def fp8_rows(self, slot: int, features: int, grid: str, group: int, source: str, scale: float) -> int: ...
    @staticmethod
    def float_row_bytes(features: int) -> int: ...
    @staticmethod
    def quantized_row_bytes(features: int, group: int) -> int: ...
    def rope_table(self, half: int) -> int: ...
    def set_rope_table(self, rope: int, cos: Any, sin: Any) -> None: ...
    def set_block_table(self, sequence_id: int, first_index: int, blocks: list[int]) -> None: ...
    def forget(self, sequence_id: int) -> None: ...
    def run(
        self, tokens: list[int], chunks: list[tuple[int, int, int]], logit_rows: list[int], logits: Any
    ) -> None: ...
    def profile(
        self, tokens: list[int], chunks: list[tuple[int, int, int]], logit_rows: list[int], logits: Any
    ) -> list[float]: ...
    def instructions(self) -> list[dict[str, str]]: ...
    def costs(
        self, num_rows: int, context: int, num_logit_rows: int, num_sequences: int
    ) -> list[tuple[float, float]]: ...

def available_threads() -> int: ...
def measure_bandwidth(team: ThreadTeam, num_bytes: int) -> float: ...
def measure_dot_rate(team: ThreadTeam, unit: str) -> float: ...

class SequenceSampler:
    num_output_tokens: int
    def __init__(
        self,
        *,
        temperature: float,
        top_k: int,
        top_p: float,
        min_p: float,
        repetition_penalty: float,
        presence_penalty: float,
        frequency_penalty: float,
        seed: int,
        sequence_index: int,
        prompt: list[int],
        bias: list[tuple[int, float]],
        banned: list[int],
        min_tokens: int,
    ) -> None: ...
    def append(self, token: int) -> None: ...
    def adjust(self, row: Any) -> None: ...
    def candidates(self, row: Any, unit: str = "") -> tuple[list[int], list[float]]: ...

def sample_rows(logits: Any, rows: list[int], samplers: list[SequenceSampler], unit: str = "") -> list[int]: ...
def row_logprobs(
    logits: Any, rows: list[int], chosen: list[int], counts: list[int], unit: str = ""
) -> list[list[tuple[int, float, int]]]: ...
def uniform(seed: int, sequence_index: int, position: int) -> float: ...
def sampling_units() -> list[str]: ...

class PackedMatrix:
    bits: int
    outputs: int
    inputs: int
    tiles: int
    group: int
    num_bytes: int
    def __init__(
        self,
        codes: str,
        outputs: int,
        inputs: int,
        group: int,
        inputs_per_scale: int,
        scale_format: str,
        has_zeros: bool,
        output_scale: float = 1.0,
    ) -> None: ...
    def fill(self, words: int, row_bytes: int, scales: int, zeros: int, first_tile: int, end_tile: int) -> None: ...
    @staticmethod
    def bytes_of(
        codes: str,
        outputs: int,
        inputs: int,
        group: int,
        inputs_per_scale: int,
        scale_format: str,
        has_zeros: bool,
        output_scale: float = 1.0,
    ) -> int: ...

class DenseMatrix:
    outputs: int
    inputs: int
    tiles: int
    num_bytes: int
    def __init__(self, outputs: int, inputs: int, format: str, group: int = 0) -> None: ...
    def fill(self, values: int, row_elements: int, scales: int, first_tile: int, end_tile: int) -> None: ...
    @staticmethod
    def bytes_of(outputs: int, inputs: int, format: str, group: int = 0) -> int: ...

def packed_linear(
    matrix: PackedMatrix,
    codes: Any,
    scales: Any,
    sums: Any,
    first_tile: int,
    end_tile: int,
    y: Any,
    unit: str = "",
) -> None: ...
def dense_linear(matrix: DenseMatrix, x: Any, first_tile: int, end_tile: int, y: Any, unit: str = "") -> None: ...
def packed_row(matrix: PackedMatrix, output: int, multiplier: float, y: Any, unit: str = "") -> None: ...
def dense_row(matrix: DenseMatrix, output: int, multiplier: float, y: Any, unit: str = "") -> None: ...
