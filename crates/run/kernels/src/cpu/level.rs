//! What this processor can do, found out once.

/// The vector instructions that loops are compiled for. Ordered from plain to wide.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Level {
    Portable,
    Avx2,
    Avx512,
}

impl Level {
    pub(crate) fn detect() -> Self {
        #[cfg(target_arch = "x86_64")]
        {
            let has_wide = is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("avx512vl")
                && is_x86_feature_detected!("fma");
            if has_wide {
                return Level::Avx512;
            }
            if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
                return Level::Avx2;
            }
        }
        Level::Portable
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Level::Portable => "portable",
            Level::Avx2 => "AVX2",
            Level::Avx512 => "AVX-512",
        }
    }

    /// Runs a loop compiled for this level. `work` must be `#[inline(always)]` through and through, closures
    /// included: only what is inlined here gets the wide instructions.
    #[inline(always)]
    pub(crate) fn vectorized<R>(self, work: impl FnOnce() -> R) -> R {
        #[cfg(target_arch = "x86_64")]
        match self {
            #[expect(unsafe_code, reason = "calls code for instructions that the processor has")]
            // SAFETY: `detect` gives this level only where the processor has these instructions.
            Level::Avx512 => return unsafe { with_avx512(work) },
            #[expect(unsafe_code, reason = "calls code for instructions that the processor has")]
            // SAFETY: as above.
            Level::Avx2 => return unsafe { with_avx2(work) },
            Level::Portable => {}
        }
        work()
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,bmi1,bmi2")]
fn with_avx512<R>(work: impl FnOnce() -> R) -> R {
    work()
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,bmi1,bmi2")]
fn with_avx2<R>(work: impl FnOnce() -> R) -> R {
    work()
}

/// Whether the processor multiplies tiles of bf16 and of whole numbers (AMX) and the kernel lets this process do so. Asks for permission.
pub(crate) fn has_tiles() -> bool {
    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    {
        const ARCH_REQ_XCOMP_PERM: libc::c_long = 0x1023;
        const XFEATURE_XTILEDATA: libc::c_long = 18;
        // Leaf 7 of the processor's description: bit 22 of EDX is AMX-BF16, bit 24 AMX-TILE, bit 25 AMX-INT8.
        let leaf = std::arch::x86_64::__cpuid_count(7, 0);
        let has_unit = [22, 24, 25].into_iter().all(|bit| leaf.edx >> bit & 1 == 1);
        // Packing for tiles converts with vectors, by instructions that every such processor has so far.
        let has_conversion = Level::detect() == Level::Avx512 && is_x86_feature_detected!("avx512bf16");
        if !has_unit || !has_conversion {
            return false;
        }
        #[expect(unsafe_code, reason = "a system call that the standard library lacks")]
        // SAFETY: the call takes two numbers and only raises what this process may use.
        let answer = unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) };
        return answer == 0;
    }
    #[expect(unreachable_code, reason = "reached on other machines")]
    false
}
