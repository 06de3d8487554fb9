"""Options of the encodings: `RoPEOptions` belong to `RoPE`. Does not import PyTorch.

Options that encodings share are not listed here, because `ClockOptions` would be the options of a class `Clock`.
"""

# ruff: noqa: F401
from .channels import RCMHAOptions, SPEOptions, TransformerXLOptions
from .content import (
    CARoPEOptions,
    CoPEOptions,
    DAPEOptions,
    FoXOptions,
    GRAPEAdditiveOptions,
    GRAPEMultiplicativeOptions,
    GRAPEPathOptions,
    KernelizedRPEOptions,
    PaTHFoXOptions,
    PaTHOptions,
    RePoOptions,
    SelectiveRoPEOptions,
    StickBreakingOptions,
    TAPAOptions,
    TAPEOptions,
)
from .distance import (
    ALiBiOptions,
    BAMOptions,
    FIREOptions,
    IRPEOptions,
    KerpleLogOptions,
    KerplePowerOptions,
    LearnedDistanceOptions,
    SandwichOptions,
    ShawOptions,
    T5Options,
    URPEOptions,
    WaveletOptions,
)
from .inputs import AbsoluteLearnedOptions, AbsoluteSinusoidalOptions, LegendreOptions, TPEOptions
from .layers import LayerPatternOptions, NoPEOptions
from .rotation import (
    AxialRoPEOptions,
    ComRoPEOptions,
    FoPEOptions,
    GridPEOptions,
    HoPEHighFrequencyOptions,
    HoPEHyperbolicOptions,
    PartialRoPEOptions,
    PoPEOptions,
    PRoPEOptions,
    RoPEOptions,
    RoPEPPOptions,
    XPosOptions,
)
from .shared import PositionalAttentionOptions, SeqPEOptions
