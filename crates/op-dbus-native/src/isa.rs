//! Instruction sets: which there are, and which of them this CPU has.

#[cfg(target_arch = "aarch64")]
use std::arch::is_aarch64_feature_detected;
use std::fmt;
use std::str::FromStr;

/// An instruction set that there are kernels for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Isa {
    /// Plain Rust, on any CPU.
    Portable,
    /// AVX2 and FMA.
    Avx2,
    /// AVX2 with 8-bit dot products.
    AvxVnni,
    /// AVX-512 F, BW, DQ and VL.
    Avx512,
    /// AVX-512 with 8-bit dot products.
    Avx512Vnni,
    /// AVX-512 with 8-bit and bfloat16 dot products.
    Avx512Bf16,
    /// AVX-512 with tile products of 8-bit integers and bfloat16.
    Amx,
    /// NEON, which every 64-bit Arm CPU has.
    Neon,
    /// NEON with 8-bit dot products.
    NeonDotprod,
    /// NEON with 8-bit matrix products.
    NeonI8mm,
    /// NEON with 8-bit and bfloat16 matrix products.
    NeonBf16,
}

impl Isa {
    /// All of them, the plainest first.
    pub const ALL: &'static [Self] = &[
        Self::Portable,
        Self::Avx2,
        Self::AvxVnni,
        Self::Avx512,
        Self::Avx512Vnni,
        Self::Avx512Bf16,
        Self::Amx,
        Self::Neon,
        Self::NeonDotprod,
        Self::NeonI8mm,
        Self::NeonBf16,
    ];

    /// Those that this CPU has and this program has kernels for, the best last.
    pub fn available() -> Vec<Self> {
        Self::ALL.iter().copied().filter(|isa| isa.is_available()).collect()
    }

    /// The best that this CPU has.
    pub fn best() -> Self {
        Self::available().last().copied().unwrap_or(Self::Portable)
    }

    /// Whether this CPU has it.
    pub fn is_available(self) -> bool {
        match self {
            Self::Portable => true,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma"),
            #[cfg(target_arch = "x86_64")]
            Self::AvxVnni => Self::Avx2.is_available() && is_x86_feature_detected!("avxvnni"),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => {
                is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vl")
            }
            #[cfg(target_arch = "x86_64")]
            Self::Avx512Vnni => {
                Self::Avx512.is_available() && is_x86_feature_detected!("avx512vnni")
            }
            #[cfg(target_arch = "x86_64")]
            Self::Avx512Bf16 => {
                Self::Avx512Vnni.is_available() && is_x86_feature_detected!("avx512bf16")
            }
            #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
            Self::Amx => Self::Avx512Bf16.is_available() && has_tiles(),
            #[cfg(target_arch = "aarch64")]
            Self::Neon => is_aarch64_feature_detected!("neon"),
            #[cfg(target_arch = "aarch64")]
            Self::NeonDotprod => {
                Self::Neon.is_available() && is_aarch64_feature_detected!("dotprod")
            }
            #[cfg(target_arch = "aarch64")]
            Self::NeonI8mm => Self::Neon.is_available() && is_aarch64_feature_detected!("i8mm"),
            #[cfg(target_arch = "aarch64")]
            Self::NeonBf16 => Self::NeonI8mm.is_available() && is_aarch64_feature_detected!("bf16"),
            _ => false,
        }
    }

    /// Whether it multiplies bfloat16 faster than 32-bit floats.
    pub fn has_bf16(self) -> bool {
        matches!(self, Self::Avx512Bf16 | Self::Amx | Self::NeonBf16)
    }

    /// The name that settings use.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Portable => "portable",
            Self::Avx2 => "avx2",
            Self::AvxVnni => "avx-vnni",
            Self::Avx512 => "avx512",
            Self::Avx512Vnni => "avx512-vnni",
            Self::Avx512Bf16 => "avx512-bf16",
            Self::Amx => "amx",
            Self::Neon => "neon",
            Self::NeonDotprod => "neon-dotprod",
            Self::NeonI8mm => "neon-i8mm",
            Self::NeonBf16 => "neon-bf16",
        }
    }
}

/// What tells CPUs of one instruction set apart: family, model and stepping on x86-64, 0 elsewhere.
pub(crate) fn signature() -> u32 {
    #[cfg(target_arch = "x86_64")]
    let signature = std::arch::x86_64::__cpuid(1).eax;
    #[cfg(not(target_arch = "x86_64"))]
    let signature = 0;
    signature
}

/// Whether the CPU has tiles of bfloat16 and of 8-bit integers, and this process may use them.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
fn has_tiles() -> bool {
    use std::arch::x86_64::{__cpuid, __cpuid_count};
    use std::sync::OnceLock;

    /// Bits of register EDX.
    const BF16_TILE_INT8: u32 = 1 << 22 | 1 << 24 | 1 << 25;
    static ANSWER: OnceLock<bool> = OnceLock::new();
    *ANSWER.get_or_init(|| {
        __cpuid(0).eax >= 7
            && __cpuid_count(7, 0).edx & BF16_TILE_INT8 == BF16_TILE_INT8
            && crate::kernels::amx::is_permitted()
    })
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for Isa {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        Self::ALL.iter().copied().find(|isa| isa.as_str() == name).ok_or_else(|| {
            let names: Vec<&str> = Self::ALL.iter().map(|isa| isa.as_str()).collect();
            format!("{name:?} is no instruction set; write one of {}", names.join(", "))
        })
    }
}
