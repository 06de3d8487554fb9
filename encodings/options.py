"""Options of the encodings in this folder: `RoPEOptions` belong to `RoPE`. Does not import PyTorch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field

from ..core.options import Count, Natural, NonNegative, Options, Positive, Share
from ..kernels.implementations import Implementation

AboveZero = Annotated[float, Field(gt=0, le=1)]
Scaling = Literal["none", "interpolation", "ntk", "yarn", "llama3", "power", "truncated"]


@dataclass(frozen=True)
class EncodingOptions(Options):
    """Options of every encoding.

    Attributes:
        implementation: attention kernels: auto, triton, cudnn (decodes with triton) or torch. A named implementation
            that does not support the inputs raises an error; it is never replaced by another. PaTH and PaTH-FoX do not
            support cudnn.
    """

    implementation: Implementation = "auto"


@dataclass(frozen=True)
class WindowOptions(EncodingOptions):
    """Options of every encoding that can attend to a sliding window.

    Attributes:
        window: number of tokens that a query attends to, itself included; null for all.
    """

    window: Count | None = None


@dataclass(frozen=True)
class ClockOptions(WindowOptions):
    """Options of every encoding that transforms q and k by their positions.

    Attributes:
        clock: what positions count: index, the tokens; or medium, the time of the data: grid points of maestro, letters
            of genome, bytes of text and openwebtext, 16ths of jsb (where axial_rope also uses the voice).
    """

    clock: Literal["index", "medium"] = "index"


@dataclass(frozen=True)
class NoPEOptions(WindowOptions):
    """No positional encoding: order is known from the causal mask only.

    Attributes:
        length_scaling: factor on the scores of the query at position t = 0, 1, ..., which keeps attention sharp among
            many keys. With a = `scaling_length`, log (SWAN) is log_a(a + t), and llama4 is
            1 + 0.1 ln(1 + floor((t + 1) / a)). SWAN scales trained models only; here training uses the factor too.
        scaling_length: a of `length_scaling`, in tokens. SWAN fits 362 to a model trained on 1,024 tokens; Llama 4 has
            8192.
    """

    length_scaling: Literal["none", "log", "llama4"] = "none"
    scaling_length: Annotated[int, Field(gt=1)] = 362


@dataclass(frozen=True)
class AbsoluteLearnedOptions(WindowOptions):
    """A learned vector for each position, added to the embeddings.

    Attributes:
        length: number of positions, and so the longest context. Positions from data.length on are trained only with
            `draw`.
        draw: what training draws in each pass: nothing; offset, the position at which documents start; or subset, the
            positions of a row, in order (Ruoss et al.). Evaluation starts at 0 and leaves out no position.
    """

    length: Count = 2048
    draw: Literal["none", "offset", "subset"] = "none"


@dataclass(frozen=True)
class FixedTableOptions(WindowOptions):
    """Options of positions that are computed and added to the embeddings.

    Attributes:
        scale: learned multiplies the positions by one learned number, which starts so that they are as large as the
            embeddings. raw multiplies the embeddings by the square root of model.width instead (Vaswani et al.).
    """

    scale: Literal["learned", "raw"] = "learned"


@dataclass(frozen=True)
class AbsoluteSinusoidalOptions(FixedTableOptions):
    """Sines and cosines of the position, added to the embeddings.

    Attributes:
        base: base of the frequencies; 10000 is common.
    """

    base: Positive = 10000.0


@dataclass(frozen=True)
class LegendreOptions(FixedTableOptions):
    """Legendre polynomials of a degree equal to the position, added to the embeddings."""


@dataclass(frozen=True)
class TPEOptions(WindowOptions):
    """A causal moving average of the embeddings, with a learned decay in each head."""


@dataclass(frozen=True)
class PositionOptions(ClockOptions):
    """Options of encodings whose positions need not be the tokens' indices.

    Attributes:
        randomise: in training, the positions of a row are drawn in order from 0 to this number minus 1 (Ruoss et al.);
            choose the longest context to evaluate. 0 uses indices.
        random_steps: in training, the distances between neighbouring tokens are drawn from 0 to 2 (Giraffe).
        spacing: distance between neighbouring tokens in evaluation, which draws nothing. With `randomise`,
            `randomise / data.length` is the mean distance in training.
    """

    randomise: Natural = 0
    random_steps: bool = False
    spacing: Positive = 1.0

    def check_together(self) -> None:
        if self.randomise and self.random_steps:
            raise ValueError(f"randomise={self.randomise}, random_steps=true: choose one of them")
        if self.clock == "medium" and (self.randomise or self.random_steps or self.spacing != 1):
            raise ValueError("clock=medium: randomise, random_steps and spacing change indices; use clock=index")


@dataclass(frozen=True)
class ScalingOptions(PositionOptions):
    """Options of encodings that can be trained with scaled frequencies, as with `rope_scaling` in transformers.

    Attributes:
        scaling: change of the frequencies, in training and afterwards; see `kernels/stretching.py`. task=extrapolate
            cannot change them again.
        scaling_factor: longest context divided by `scaling_length`, for interpolation, ntk, yarn and llama3.
        scaling_length: context length in tokens before scaling, for yarn, llama3 and truncated.
    """

    scaling: Scaling = "none"
    scaling_factor: Annotated[float, Field(ge=1)] | None = None
    scaling_length: Count | None = None

    def check_together(self) -> None:
        super().check_together()
        takes = {
            "scaling_factor": self.scaling in ("interpolation", "ntk", "yarn", "llama3"),
            "scaling_length": self.scaling in ("yarn", "llama3", "truncated"),
        }
        for name, taken in takes.items():
            value = getattr(self, name)
            if taken and value is None:
                raise ValueError(f"{name}=null: scaling={self.scaling} needs a number")
            if not taken and value is not None:
                raise ValueError(f"{name}={value}: scaling={self.scaling} does not use it; use null")


@dataclass(frozen=True)
class RotaryOptions(ClockOptions):
    """Options of rotary encodings.

    Attributes:
        base: base of the frequencies; a larger base makes the slow pairs slower. 10000 is common.
    """

    base: Positive = 10000.0


@dataclass(frozen=True)
class RoPEOptions(ScalingOptions):
    """Rotary position embedding.

    Attributes:
        base: base of the frequencies; a larger base makes the slow pairs slower. 10000 is common.
        drop_after: share of `trainer.steps` after which keys and queries are no longer rotated (DroPE); null for never.
            The rest recalibrates the model: AdamW starts afresh, and the learning rate repeats its warm-up and
            schedule. Only checkpoints from after the drop can be the best.
    """

    base: Positive = 10000.0
    drop_after: Annotated[float, Field(gt=0, lt=1)] | None = None


@dataclass(frozen=True)
class PartialRoPEOptions(RotaryOptions):
    """RoPE on some of the channels of each head; the others carry no position.

    Attributes:
        share: share of the channels that are rotated.
    """

    share: AboveZero = 0.25


@dataclass(frozen=True)
class PRoPEOptions(RotaryOptions):
    """RoPE without its lowest frequencies (p-RoPE).

    Attributes:
        share: share of the frequencies that are kept, from the highest on; p in the paper.
    """

    share: AboveZero = 0.75


@dataclass(frozen=True)
class HoPEHighFrequencyOptions(RotaryOptions):
    """RoPE without the frequencies that make less than one turn within the trained length (HoPE, Chen et al.).

    Attributes:
        length: trained length in tokens; data.length by default.
    """

    length: Count = 512


@dataclass(frozen=True)
class RoPEPPOptions(RotaryOptions):
    """RoPE whose complex score gives two attention heads, one by its real and one by its imaginary part."""


@dataclass(frozen=True)
class HoPEHyperbolicOptions(WindowOptions):
    """Lorentz boosts with damping instead of rotations (HoPE, Dai et al.).

    Attributes:
        base: base of the rates of the boosts; 10000 is common.
    """

    base: Positive = 10000.0


@dataclass(frozen=True)
class GridPEOptions(ClockOptions):
    """RoPE with a fixed ratio between neighbouring frequencies.

    Attributes:
        ratio: ratio of each frequency to the next lower one; e is the paper's optimum for one dimension.
    """

    ratio: Annotated[float, Field(gt=1, le=16)] = 2.718281828459045


@dataclass(frozen=True)
class XPosOptions(WindowOptions):
    """RoPE whose scores decay with the distance, fastest in the channels of high frequency.

    Attributes:
        base: base of the frequencies; 10000 is common.
        scale_base: tokens over which the fastest channels decay by a factor of 3.5.
    """

    base: Positive = 10000.0
    scale_base: Positive = 512.0


@dataclass(frozen=True)
class ComRoPEOptions(RotaryOptions):
    """RoPE with learned frequencies for each key head.

    Attributes:
        base: base of the initial frequencies.
    """


@dataclass(frozen=True)
class FoPEOptions(RotaryOptions):
    """RoPE with a Fourier series instead of one frequency in each pair of channels.

    Attributes:
        sigma: scale of the random coefficients of the added frequencies; 0 for none.
        length: trained length in tokens; frequencies that make less than one turn within it are set to 0. data.length
            by default.
    """

    sigma: NonNegative = 0.3
    length: Count = 512


@dataclass(frozen=True)
class PoPEOptions(ScalingOptions):
    """Polar coordinate position embedding.

    Attributes:
        delta_init: initial phase offset: zero (the paper's choice for text, best for length extrapolation) or uniform
            over [-2 pi, 0) (its choice for other tasks).
        clamp: how delta is kept in [-2 pi, 0]. clamp is the paper's: an element outside the range gets no gradient.
            straight_through clamps but passes the gradient. periodic does not clamp, since the cosine is periodic.
        base: base of the frequencies; 10000 is common.
    """

    delta_init: Literal["zero", "uniform"] = "uniform"
    clamp: Literal["clamp", "straight_through", "periodic"] = "clamp"
    base: Positive = 10000.0
    scaling: Literal["none", "interpolation", "ntk", "power", "truncated"] = "none"


@dataclass(frozen=True)
class FoXOptions(WindowOptions):
    """Forgetting attention: scores decay by data-dependent forget gates."""


@dataclass(frozen=True)
class PaTHOptions(EncodingOptions):
    """Position as a product of data-dependent reflections.

    Attributes:
        rank: rank of the projection to the reflections' direction w; 0 for full rank.
        convolution: width in tokens of the causal depthwise convolution before w; 0 for none.
        silu: whether to apply SiLU before w is normalised.
        beta_max: upper limit of beta: 1 allows projections of keys, 2 allows reflections. In 16 bits, including
            autocast, the limit is at most 1.984 (bfloat16) or 1.998 (float16), so that rounding never makes a key grow.
    """

    rank: Natural = 32
    convolution: Natural = 3
    silu: bool = True
    beta_max: Annotated[float, Field(gt=0, le=2)] = 2.0


@dataclass(frozen=True)
class PaTHFoXOptions(PaTHOptions):
    """PaTH's reflections with FoX's forget gates."""


@dataclass(frozen=True)
class LayerPatternOptions(EncodingOptions):
    """Different encodings in different layers.

    Attributes:
        layers: encodings of the first layers, then repeated: a name, or a name with options, such as
            [{rope: {window: 512}}, nope].
    """

    layers: Annotated[Sequence[str | Mapping[str, Mapping[str, Any]]], Field(min_length=1)] = ("rope", "nope")

    def check_together(self) -> None:
        for entry in self.layers:
            if isinstance(entry, Mapping) and len(entry) != 1:
                raise ValueError(f"layers: {entry}: an entry has one encoding; give [{{rope: {{window: 512}}}}, nope]")


@dataclass(frozen=True)
class ALiBiOptions(WindowOptions):
    """Attention with linear biases: a bias that falls linearly with the distance.

    Attributes:
        heads_share: share of the heads with a bias; the others have no encoding.
    """

    heads_share: Share = 1.0


@dataclass(frozen=True)
class T5Options(WindowOptions):
    """T5's relative bias: a learned bias for each head and bucket of distances.

    Attributes:
        buckets: number of buckets; half of them hold one distance each.
        max_distance: distance from which all distances share the last bucket.
    """

    buckets: Annotated[int, Field(ge=2)] = 32
    max_distance: Count = 128

    def check_together(self) -> None:
        if self.max_distance <= self.buckets // 2:
            raise ValueError(
                f"max_distance={self.max_distance}, buckets={self.buckets}: max_distance must be above buckets // 2"
            )


@dataclass(frozen=True)
class KerpleLogOptions(WindowOptions):
    """KERPLE: a learned bias that falls with the logarithm of the distance."""


@dataclass(frozen=True)
class KerplePowerOptions(WindowOptions):
    """KERPLE: a learned bias that falls with a learned power of the distance."""


@dataclass(frozen=True)
class SandwichOptions(WindowOptions):
    """Dot products of sinusoidal position embeddings as a bias.

    Attributes:
        sinusoids: number of frequencies, half the channels of the sinusoidal embedding.
    """

    sinusoids: Count = 64


@dataclass(frozen=True)
class LearnedDistanceOptions(WindowOptions):
    """A learned bias for each head and distance.

    Attributes:
        distances: number of distances in the table; larger distances use its last entry.
    """

    distances: Count = 128


@dataclass(frozen=True)
class FIREOptions(WindowOptions):
    """A learned function of the distance, relative to the position of the query.

    Attributes:
        threshold: initial value of L, the position below which the bias depends on the distance only.
        hidden: hidden units of the function.
    """

    threshold: Positive = 512.0
    hidden: Count = 32


@dataclass(frozen=True)
class URPEOptions(T5Options):
    """Attention weights multiplied by a learned function of the distance.

    Attributes:
        bias: whether to add T5's bias to the scores.
    """

    bias: bool = True


@dataclass(frozen=True)
class ShawOptions(WindowOptions):
    """Learned embeddings of clipped distances, added to the keys.

    Attributes:
        clip: distance from which all distances share one embedding.
    """

    clip: Count = 16


@dataclass(frozen=True)
class IRPEOptions(WindowOptions):
    """Learned embeddings of piecewise buckets of distances, added to the keys.

    Attributes:
        exact: largest distance with a bucket of one distance.
        last_bucket: index of the last bucket.
        max_distance: distance at which the last bucket is reached.
    """

    exact: Count = 16
    last_bucket: Count = 32
    max_distance: Count = 128

    def check_together(self) -> None:
        if not self.exact < self.last_bucket <= self.max_distance:
            raise ValueError(
                f"exact={self.exact}, last_bucket={self.last_bucket}, max_distance={self.max_distance}: "
                "they must increase"
            )


@dataclass(frozen=True)
class AxialRoPEOptions(ClockOptions):
    """Rotary position embedding on two axes: half of the pairs turn with the row, half with the column.

    Attributes:
        base: base of the frequencies on each axis; 10000 is common.
        columns: tokens per row of the raster after the start token, with clock=index; 4 for the voices of jsb.
    """

    base: Positive = 10000.0
    columns: Count = 4


@dataclass(frozen=True)
class CARoPEOptions(WindowOptions):
    """Rotary position embedding with a frequency per head that each token computes.

    Attributes:
        base: base of the initial frequencies; 10000 is common.
    """

    base: Annotated[float, Field(gt=1)] = 10000.0


@dataclass(frozen=True)
class SelectiveRoPEOptions(EncodingOptions):
    """Rotary position embedding with angles that the tokens compute.

    Attributes:
        base: base of the temperatures, which scale the angle of each pair.
        rank: rank of the projection from the hidden state to the angles.
        convolution: width in tokens of the causal depthwise convolution after the projection; 1 weighs each channel.
        silu: whether to apply SiLU after the convolution.
        gate: whether a sigmoid of the hidden state scales the angles of each head.
        bias: whether to add a learnt positive angle per pair to every token; it is initially that of RoPE.
    """

    base: Positive = 500000.0
    rank: Count = 32
    convolution: Count = 4
    silu: bool = False
    gate: bool = False
    bias: bool = False


@dataclass(frozen=True)
class RePoOptions(WindowOptions):
    """Rotary position embedding at real-valued positions that the tokens compute.

    Attributes:
        base: base of the frequencies; 10000 is common.
        hidden: hidden width of the module that computes positions; null for an eighth of the model's width.
    """

    base: Positive = 10000.0
    hidden: Count | None = None
